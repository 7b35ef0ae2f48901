"""Transforms of other libraries: adapters for samples, and modules in a chain of batch transforms."""

"""Transforms of other libraries: adapters for samples, and how a chain for batches calls modules of theirs."""

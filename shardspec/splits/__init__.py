"""Assign the samples of a dataset to splits."""

"""Readers of packed datasets for training. Names resolve on first use, so that importing the package loads no torch."""

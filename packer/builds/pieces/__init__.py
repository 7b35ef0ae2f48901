"""Pieces of a dataset, one for each task: how they are written, read and merged, also by processes that pack in shares."""

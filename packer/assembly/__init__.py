"""Merge pieces and datasets into one dataset: schemas, reports, generations, rows, the cut, shards, and their writers."""

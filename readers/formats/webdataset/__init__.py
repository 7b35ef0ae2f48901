"""WebDataset shards."""

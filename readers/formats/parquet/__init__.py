"""Parquet shards, read by our own checked code."""

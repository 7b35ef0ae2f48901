"""LMDB shards: the file is walked by our own code."""

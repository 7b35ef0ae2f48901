"""HDF5 shards, read by our own checked code."""

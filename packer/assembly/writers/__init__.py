"""One file per format, writing one shard each. Reached through `shardspec.formats`."""

"""From encoded rows to shards: row sources, the cut, one durable shard, one writer for each format."""

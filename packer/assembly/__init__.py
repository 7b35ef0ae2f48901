"""Turn encoded rows into shards: row sources, the cut into shards, durable shards, and a writer per format."""

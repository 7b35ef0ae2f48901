"""`packer.Writer`, which packs samples from the user's own loop, and the job that writes its shards."""

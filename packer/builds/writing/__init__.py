"""`packer.Writer`: samples of a loop, and the job that makes shards of them."""

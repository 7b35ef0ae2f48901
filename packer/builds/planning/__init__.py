"""Plan a build: list the items, number the classes, cut the items into tasks, and compute their digests."""

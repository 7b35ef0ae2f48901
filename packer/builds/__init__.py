"""Build a dataset from raw items: plan the tasks, pack the items into parts, write reports and shards."""

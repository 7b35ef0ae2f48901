"""Run a job of any kind: start or resume it, run its tasks, write its shards, and commit the dataset."""

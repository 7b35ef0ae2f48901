"""The stages of a job, in their order: the folder is entered, tasks run, shards are written while they do and after."""

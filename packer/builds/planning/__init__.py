"""From a source to a plan: items, classes, tasks, and the digests that identify items."""

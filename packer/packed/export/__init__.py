"""A packed dataset as plain picture files and a table, or as the shards of other libraries."""

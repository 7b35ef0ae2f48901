"""Columns of values: infer the type of a column, read tables in memory, and match their rows by a key."""

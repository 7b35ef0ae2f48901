"""A packed dataset as plain picture files and a table."""

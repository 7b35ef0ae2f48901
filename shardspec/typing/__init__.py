"""Columns of values: the types of their fields, tables in memory that hold them, and rows that are matched by a key."""

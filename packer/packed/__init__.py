"""Everything that starts from a packed dataset: convert, merge, split, and what only reads."""

"""What starts from a packed dataset: convert, merge, split, and everything that only looks."""

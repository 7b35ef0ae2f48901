"""Which sample goes into which split of a dataset."""

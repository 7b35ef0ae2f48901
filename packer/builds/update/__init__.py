"""Update a dataset: compare its items with those of a source, and check that the new items fit."""

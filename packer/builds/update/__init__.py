"""Updates of a dataset: its items compared with those of a source, and the dataset that follows from both."""

"""What tasks leave: their parts, and how they become the rows and the schema of a dataset."""

"""Parts, the output of tasks, and how they become the rows and the schema of a dataset."""

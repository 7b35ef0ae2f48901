"""Write and read parts, the output files of tasks, and derive the rows and the schema of the dataset from them."""

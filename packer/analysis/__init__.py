"""Analysis of the samples of packed datasets: computed columns, duplicates and leaks."""

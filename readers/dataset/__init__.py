"""Map-style datasets: packed datasets, and parts, clips and mixtures of them."""

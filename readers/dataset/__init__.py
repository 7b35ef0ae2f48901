"""Map-style datasets: packed ones, parts, clips and mixtures of them."""

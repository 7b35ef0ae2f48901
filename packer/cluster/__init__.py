"""A build on a cluster: submitted to Slurm, worked on by agents on any hosts, watched from any host."""

"""``--engine srun`` and ``--engine ray``: agents (``packer work``) on the hosts of a cluster."""

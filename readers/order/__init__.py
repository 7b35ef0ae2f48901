"""Order in which an epoch visits samples. Only `auto`, `progress`, `ranks` and `sampler` need torch."""

"""Which samples an epoch visits, and when. Only `auto`, `progress`, `ranks` and `sampler` need torch."""

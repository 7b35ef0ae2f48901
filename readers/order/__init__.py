"""Which samples an epoch visits, and when. Only `auto` and `sampler` need torch."""

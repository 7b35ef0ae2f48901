"""Which samples an epoch visits, and when. No torch but in `sampler`."""

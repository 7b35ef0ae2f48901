"""A packed dataset cut into several."""

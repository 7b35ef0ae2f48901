"""A packed dataset compared with its manifest, and its values with its schema."""

"""Drawings of samples: images with their geometry, on a sheet or in a notebook."""

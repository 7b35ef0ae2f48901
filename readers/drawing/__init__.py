"""Samples as people see them: images with their geometry, side by side on a sheet."""

"""Samples as people see them: pictures with their geometry, side by side on a sheet."""

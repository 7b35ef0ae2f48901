"""Transforms of clips along the axis of time."""

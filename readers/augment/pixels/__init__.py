"""Transforms of pixel values: colours, floating numbers, erasing, blur. One file per transform.

Neighbouring transforms in a `Compose` share one copy of the image, and consecutive look-up tables are merged into one
(`readers.augment.pixels.canvas`).
"""

"""Transforms of the values of pixels: colours, floating numbers, erasing, blur. One file a transform.

Neighbours of this kind in a `Compose` work on one picture in memory of their own, and look-up tables that follow one
another become one table (`readers.augment.pixels.canvas`).
"""

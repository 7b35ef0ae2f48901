"""Geometry of images: crops of faces, aligned crops, resized images, and the 2x3 matrices that describe them.

One convention throughout: pixel (0, 0) covers [0, 1) x [0, 1), x to the right and y down, so an image of width W spans
[0, W]. Shrinking averages areas, enlarging is bilinear, and outside the frame everything is black.
"""

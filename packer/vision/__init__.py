"""Pixels: decoding, geometry, face detection, landmarks. Nothing here depends on datasets."""

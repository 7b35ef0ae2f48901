"""Pixels: decoding, geometry, face detection, landmarks. Nothing here knows of datasets."""

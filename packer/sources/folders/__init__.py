"""Folders of images and videos: find files, choose them by patterns, and read columns from paths and sidecars."""

"""Folders of images and videos: finding files, patterns that choose them, columns from paths and sidecars."""

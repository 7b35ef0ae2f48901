"""Folders of pictures and videos: what lies in them, the patterns that choose, columns from paths and sidecars."""

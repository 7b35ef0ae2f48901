"""Imported by every Python process that has this folder on its path: see `support.places`."""

from support.places import watch

watch()

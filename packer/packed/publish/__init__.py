"""Descriptions of packed datasets for people and search engines: manifest entries, dataset card, Croissant."""

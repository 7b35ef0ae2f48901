"""Readers of table files, one module for each kind."""

"""Helpers that the tests of all packages share."""

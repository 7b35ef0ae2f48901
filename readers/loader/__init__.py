"""Batches by threads, straight into their place in memory."""

"""Exports of packed datasets: plain image files and a table, or the shards of other libraries."""

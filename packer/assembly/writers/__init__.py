"""Shard writers, one module per format. `shardspec.formats` names them."""

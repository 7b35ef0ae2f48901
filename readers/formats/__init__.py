"""One file per format, reading shards by the row. Reached through `shardspec.formats`; none of them needs torch."""

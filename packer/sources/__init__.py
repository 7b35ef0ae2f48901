"""Sources of raw items: folders, tables, archives, packed datasets and Python rows. Items are listed, not decoded."""

"""Table files, one file for each kind."""

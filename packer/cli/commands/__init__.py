"""One file a subcommand: its arguments, and the call of the Python function that does it."""

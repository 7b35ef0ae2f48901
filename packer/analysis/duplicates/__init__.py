"""`packer duplicates`: samples that look the same, and leaks between datasets or splits."""

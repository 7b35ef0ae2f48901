"""What the tests of all packages share."""

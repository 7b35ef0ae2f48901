"""Public datasets, laid out as published, as tables for `packer.build`."""

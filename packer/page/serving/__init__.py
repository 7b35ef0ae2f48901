"""The server of `packer view`: a module for each kind of page, the datasets, and access control."""

"""What `packer view` serves: a module for each kind of page, what is shown, and who may ask."""

"""``packer convert``: another format, or other samples."""

"""``packer inspect``: what packed datasets hold, and what they have in common."""

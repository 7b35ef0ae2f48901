"""Public datasets in the folders in which they are published: each becomes a table that `packer.build` packs."""

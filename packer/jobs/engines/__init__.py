"""Where units run: in this process, or in worker processes. `packer.recipe.engines.ENGINES` is the table of them."""

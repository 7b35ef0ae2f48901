"""One file per subcommand of ``packer``: ``add_arguments(parser)`` and ``run(options) -> exit status``."""

"""The output folder and its ``.build`` folder: paths, durable writes, the lock, the commit and its replacement of a dataset."""

from packer.workspace.durable import append_line, read_lines
from packer.workspace.paths import Workspace

__all__ = ["Workspace", "append_line", "read_lines"]

"""OUT and OUT/.build: paths, durable files, the lock, the commit, the replacement of a dataset."""

from packer.workspace.json_lines import append_line, read_lines
from packer.workspace.paths import Workspace

__all__ = ["Workspace", "append_line", "read_lines"]

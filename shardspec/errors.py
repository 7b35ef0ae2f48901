"""The errors of the whole project, one small tree.

Every message says what was expected, what was found, where, and what to do. The command line prints the message and
exits with the class's ``exit_code``.
"""

from typing import Any


class ShardspecError(Exception):
    """Root of every error that this project raises on purpose."""

    exit_code = 1


class UsageError(ShardspecError, ValueError):
    """An invalid call: an unknown name, a value out of range, two options that exclude each other."""

    exit_code = 2


class SchemaError(ShardspecError, ValueError):
    """A field or a schema that breaks the rules of the contract, or a value that does not fit its field."""


class CodecError(ShardspecError, ValueError):
    """A value that cannot be encoded, or bytes that do not decode to what the field promises."""


class MissingDependencyError(ShardspecError, ImportError):
    """A library that the chosen format, codec or step needs is not installed."""

    exit_code = 2


class DatasetError(ShardspecError):
    """A folder that cannot be read as a packed dataset."""


class NotADatasetError(DatasetError):
    """There is no manifest: no folder, no dataset, or a build that is not committed. Naming such a place is invalid."""

    exit_code = 2


class ManifestError(DatasetError, ValueError):
    """A manifest that breaks the contract. The message lists every problem with its place in the document."""


class VersionError(DatasetError):
    """The dataset was written by a newer version of the contract than this one reads."""


class ShardMissingError(DatasetError, FileNotFoundError):
    """A file named in the manifest is not there."""


class ShardCorruptError(DatasetError):
    """A file's size, digest, checksum or inner structure is not what the manifest and the format say."""


class DatasetChangedError(DatasetError):
    """A file of a dataset has been replaced or changed since the dataset was opened."""


class ReadTimeoutError(DatasetError, TimeoutError):
    """A read has not come back within its time limit."""


class ItemError(ShardspecError):
    """One item cannot give samples. A step or a source raises it, and its message becomes the reason of the reject."""


class BuildError(ShardspecError):
    """A job that cannot go on: disk full, read-only folder, a worker that cannot start."""


class BuildLockedError(BuildError):
    """Another process is building into the same folder."""


class ResumeMismatchError(BuildError):
    """The call asks for something else than the plan of the build, unfinished or finished, in the folder."""

    exit_code = 2


class TooManyRejectsError(BuildError):
    """The share of rejected items is above the limit. The dataset was committed, and lists the rejects.

    Attributes
    ----------
    result : Any
        What the build would have returned; None if no item gave a sample, so that there is no dataset.
    """

    exit_code = 3

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class VerifyError(DatasetError):
    """``packer verify`` found a difference between the manifest and the files."""


def system_reason(error: BaseException) -> str:
    """The short text of an error of the system or of libav, without its number and the file's name; never empty."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

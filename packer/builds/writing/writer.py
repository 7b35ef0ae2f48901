"""``packer.Writer``: pack samples from your own loop."""

import copy
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from packer.assembly.piece import EncodedValue
from packer.assembly.piece_writer import PieceWriter
from packer.builds.pack import image_of
from packer.builds.writing.job import WrittenJob
from packer.jobs.job import Job
from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import JobResult
from packer.recipe import Recipe
from packer.recipe.fields import Declaration, check_label, check_name, declare
from packer.recipe.options import BuildOptions
from packer.recipe.recipe import DEFAULT_ENCODING, DEFAULT_QUALITY
from packer.steps.encode import encode_text
from packer.steps.encode_sample import SampleEncoder
from packer.workspace.durable import writing
from packer.workspace.folder import output_folder
from packer.workspace.hashing import digest
from shardspec.errors import BuildError, SchemaError, UsageError
from shardspec.schema import NO_CLASS
from shardspec.typing.field_types import LABEL, FieldType, infer, join, settle_empty
from shardspec.wording import shorten

PART_ROWS = 1 << 15
PART_BYTES = 64 * 10**6
"""Most samples and approximate most bytes in a part. They do not affect the dataset."""

KEY_BYTES_MAX = 1024


class Writer:
    """Writes samples from your own loop into a packed dataset.

    Use it as a context manager. The complete dataset appears at the end of the block. If the block raises an exception,
    or the process is killed, no dataset is written, and an existing dataset is not replaced. The same samples produce
    the same bytes. A writer is not thread-safe; `pack` uses worker processes.

    Parameters
    ----------
    out : path
        Output folder; must be new or empty, unless `overwrite` is True.
    format : str
        A name in `shardspec.formats.FORMATS`.
    fields : mapping of str to type, optional
        The fields of every sample: ``bool``, ``int``, ``float``, ``str``, ``bytes``, ``dict`` or ``list`` (JSON),
        a numpy scalar type, `Image`, `Array`, or for example ``int | None`` if values may be missing. By default, the
        types are inferred from the first samples.
    classes : sequence of str, optional
        Class names of the field ``label``, whose values are names or class numbers. By default, strings in a field
        ``label`` are class names, which are numbered in sorted order.
    encode : {'jpeg', 'png', 'webp', 'webp-lossless', 'raw'}
        How to store images in undeclared fields.
    quality, subsampling
        As in `Image`, for undeclared fields.
    shard_size : str or int, optional
        Most encoded bytes in a shard, such as ``"256MB"``. By default, a shard has up to a quarter of the bytes of all
        earlier shards, but at least 32 MB and at most 256 MB.
    shuffle : int, optional
        Store the samples in a random order drawn from this seed.
    overwrite : bool
        Replace the packed dataset or unfinished build in the folder.
    progress : bool or ProgressListener
        Whether to show the progress of writing the shards on standard error, or the listener to receive it.

    Attributes
    ----------
    result : JobResult or None
        The result, once the dataset is finished.

    Raises
    ------
    UsageError
        If an argument is invalid.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        format: str = Recipe.format,
        fields: Mapping[str, Any] | None = None,
        classes: Sequence[str] | None = None,
        encode: str = DEFAULT_ENCODING,
        quality: int = DEFAULT_QUALITY,
        subsampling: str = Recipe.subsampling,
        shard_size: str | int | None = Recipe.shard_size,
        shuffle: int | None = None,
        overwrite: bool = False,
        progress: bool | ProgressListener = True,
    ) -> None:
        chosen = {"format": format, "encode": encode, "quality": quality, "subsampling": subsampling}
        recipe = Recipe.from_options({**chosen, "shard_size": shard_size, "shuffle": shuffle})
        self._declaration = declare(fields, classes, image_of(recipe, fields).codec)
        self._written = WrittenJob(recipe)
        options = BuildOptions(engine="inline", overwrite=overwrite)
        self._job = Job(self._written, output_folder(out), options, listener_of(progress))
        self._held = ExitStack()
        self._state = "new"
        self._process = os.getpid()
        self._encoder: SampleEncoder | None = None
        self._first = FirstSamples(self._declaration)
        self._part: PieceWriter | None = None
        self._part_rows = self._part_bytes = 0
        self._keys: set[bytes] | None = None  # digests: about 80 bytes for each key
        self.result: JobResult | None = None

    def __enter__(self) -> "Writer":
        """Lock the output folder.

        Raises
        ------
        UsageError
            If the folder holds a dataset or other files, or the writer was used before.
        BuildLockedError
            If another process is building in the folder.
        BuildError
            If the folder cannot be written.
        """
        if self._state != "new":
            raise UsageError(expected="a new writer", hint="use each writer in one with statement only")
        self._held.enter_context(self._job.begun())
        self._state = "open"
        if self._declaration.fields is not None:
            self._begin(self._declaration)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the dataset. After an exception in the block, remove the written files instead.

        Raises
        ------
        BuildError
            If no sample was written, an earlier write was interrupted, or a file cannot be written.
        """
        if os.getpid() != self._process:
            return
        if kind is not None:
            self._close()
            self._held.__exit__(kind, error, trace)  # clears the folder
            return
        with self._held:  # also clears the folder if this block raises an exception
            try:
                self._finish()
            finally:
                self._close()

    def write(self, **sample: Any) -> None:
        """Write one sample.

        Parameters
        ----------
        **sample
            The values by field. A value ``key`` is the sample's key, a unique string of at most 1024 bytes. Pass a key
            either with every sample or with none. By default, keys are made from the number of the sample.

        Raises
        ------
        SchemaError
            If the sample cannot be stored because a field is missing or unknown, a value does not fit its field, or the
            key is taken. The sample is skipped, and the writer can be used further.
        UsageError
            If the writer is not open.
        BuildError
            If a file cannot be written.
        """
        if self._state != "open" or os.getpid() != self._process:
            raise self._unusable()
        number = self._written.samples + self._first.count
        key = self._check_key(sample, number)
        if self._encoder is None:
            try:
                types = self._first.join(sample)
            except SchemaError as error:
                raise SchemaError(error, place=f"sample {_shown(key, number)}") from error
            self._take_key(key)
            self._first.add(key, sample, types)
            if self._first.full:
                self._settle_first()
            return
        row = self._encode(self._encoder, key, sample, number)
        self._take_key(key)
        self._append(row)

    def _check_key(self, sample: dict[str, Any], number: int) -> str:
        """Take the key out of a sample, or make one."""
        given = sample.pop("key", None)
        if number == 0:  # the first valid sample decides whether all samples have keys
            self._keys = None if given is None else set()
        if (given is None) == (self._keys is not None):
            found = "none" if given is None else shorten(given)
            wanted = "a key, as the samples before have" if given is None else "no key, as the samples before have none"
            raise SchemaError(place=f"sample {number} (counted from 0)", expected=wanted, found=found)
        if given is None:
            return f"{number:08d}-000000"
        if not isinstance(given, str) or not given:
            raise SchemaError(
                place=f"sample {number} (counted from 0)", expected="a text as the key", found=shorten(given)
            )
        if len(given) > KEY_BYTES_MAX // 4 and len(given.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
            raise SchemaError(
                place=f"sample {number}", expected=f"a key of at most {KEY_BYTES_MAX} bytes", found=shorten(given)
            )
        return given

    def _take_key(self, key: str) -> None:
        """Record a key that the caller has chosen."""
        if self._keys is None:
            return
        known = digest(key.encode("utf-8", "surrogatepass"))
        if known in self._keys:
            raise SchemaError(
                place=f"sample {shorten(key)}",
                expected="a key that no other sample has",
                found="an earlier sample with this key",
            )
        self._keys.add(known)

    def _encode(
        self, encoder: SampleEncoder, key: str, sample: Mapping[str, Any], number: int
    ) -> dict[str, EncodedValue]:
        try:
            row = encoder.encode(sample)
            row["key"] = encode_text(key)
        except ValueError as error:
            raise SchemaError(f"{error}{self._advice}", place=f"sample {_shown(key, number)}") from error
        return row

    @property
    def _advice(self) -> str:
        """Return a suggestion for a value that does not fit."""
        if self._declaration.fields is not None:
            return ""
        return f" (the types are inferred from the first {FIRST_SAMPLES} samples; declare others with fields=)"

    def _append(self, row: Mapping[str, EncodedValue]) -> None:
        """Append an encoded sample to the part. If this is interrupted, the writer cannot be used further."""
        self._state = "broken"
        with writing(self._job.layout.root):
            if self._part is None:
                path = self._job.workspace.part(self._written.parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._part = PieceWriter(path)
                self._part.begin()
            self._part.append(row)
            self._part_rows += 1
            for value in row.values():
                self._part_bytes += len(value.data)
                self._written.progressive += value.progressive
            self._written.samples += 1
            if self._part_rows >= PART_ROWS or self._part_bytes >= PART_BYTES:
                self._end_part()
        self._state = "open"

    def _end_part(self) -> None:
        if self._part is None:
            return
        with self._part as part:
            part.finish()
        self._part, self._part_rows, self._part_bytes = None, 0, 0
        self._written.parts += 1

    def _begin(self, declaration: Declaration) -> None:
        """Start writing, with the fields of a declaration."""
        self._written.declaration = declaration
        self._encoder = SampleEncoder(declaration)

    def _settle_first(self) -> None:
        """Settle the types of the fields, and write the samples kept so far."""
        self._begin(self._first.settle())
        assert self._encoder is not None
        try:
            for number, (key, sample) in enumerate(self._first.take()):
                self._append(self._encode(self._encoder, key, sample, number))
        except BaseException:
            self._state = "broken"  # the remaining samples are lost
            raise

    def _finish(self) -> None:
        if self._state != "open":
            raise self._unusable()
        if self._encoder is None and self._first.count:
            self._settle_first()
        with writing(self._job.layout.root):
            self._end_part()
        self._close()
        if not self._written.samples:
            raise BuildError("no sample was written, so there is no dataset", place=self._job.layout.root)
        self.result = self._job.finish()

    def _unusable(self) -> Exception:
        if os.getpid() != self._process:
            return UsageError(
                expected="a call by the process that made the writer", found="a fork of it", hint="use packer.pack"
            )
        if self._state == "broken":
            return BuildError(
                "an earlier write was interrupted, so the dataset would be incomplete", place=self._job.layout.root
            )
        when = "before" if self._state == "new" else "after"
        return UsageError(expected="a call inside the with statement of the writer", found=f"one {when} it")

    def _close(self) -> None:
        """Close the files. The holder of the folder removes those that are not part of a finished dataset."""
        if self._state == "open":
            self._state = "closed"
        if self._part is not None:
            self._part.__exit__()
            self._part = None
        self._keys = None


def _shown(key: str, number: int) -> str:
    return f"{shorten(key)} (number {number}, counted from 0)"


FIRST_SAMPLES = 100
FIRST_BYTES = 64 * 10**6
"""Number of samples from which the types are inferred, and the most bytes of them to keep in memory."""

_CLASS = FieldType("class")


class FirstSamples:
    """Keeps the first samples in memory until the types of the fields are settled."""

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._samples: list[tuple[str, dict[str, Any]]] = []
        self._types: dict[str, FieldType] = {}
        self._bytes = 0

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self._samples)

    @property
    def full(self) -> bool:
        """True if there are enough samples to settle the types."""
        return len(self._samples) >= FIRST_SAMPLES or self._bytes >= FIRST_BYTES

    def add(self, key: str, sample: Mapping[str, Any], types: dict[str, FieldType]) -> None:
        """Add a copy of a sample, because the caller may reuse its arrays. `types` is the result of `join`."""
        self._types = types
        self._samples.append((key, {name: _copy(value) for name, value in sample.items()}))
        self._bytes += sum(getattr(value, "nbytes", 0) or _length(value) for value in sample.values())

    def join(self, sample: Mapping[str, Any]) -> dict[str, FieldType]:
        """Return the types of the fields, given the earlier samples and this one.

        Raises
        ------
        SchemaError
            If the sample does not fit the earlier ones.
        """
        types: dict[str, FieldType] = {}
        for name, value in sample.items():
            try:
                check_name(name, "sample")
            except UsageError as error:
                raise SchemaError(str(error)) from error
            try:
                found = infer(name, value, self._declaration.image)
                known = self._types.get(name)
                if name == LABEL and self._declaration.classes is not None and value is not None:
                    found = _CLASS  # a name or its number
                joined = found if known is None else join(known, found)
            except SchemaError as error:
                raise SchemaError(error, place=f"field {name!r}") from error
            if joined is None or not self._holds(name, joined):
                assert known is not None
                raise SchemaError(
                    place=f"field {name!r}",
                    expected=f"{known.describe()}, as in the samples before",
                    found=f"{shorten(value)} ({type(value).__name__})",
                )
            types[name] = joined
        if self._samples and types.keys() != self._types.keys():
            SampleEncoder(Declaration(self._types)).encode(sample)  # names the fields
        SampleEncoder(self._declare(types)).encode(sample)
        return types

    def _holds(self, name: str, kind: FieldType) -> bool:
        """Return whether the earlier samples fit another type of a field. For example, JSON has no NaN."""
        if self._types.get(name, kind) == kind:
            return True
        encoder = SampleEncoder(Declaration({name: settle_empty(kind)}, self._declaration.classes))
        try:
            for _, sample in self._samples:
                encoder.encode({name: sample[name]})
        except SchemaError:
            return False
        return True

    def settle(self) -> Declaration:
        """Return the declaration with the types of all samples."""
        return self._declare(self._types)

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the keys and samples, and forget them."""
        samples, self._samples = self._samples, []
        return samples

    def _declare(self, types: Mapping[str, FieldType]) -> Declaration:
        fields = {name: settle_empty(kind) for name, kind in types.items()}
        classes = self._declaration.classes
        if classes is not None and LABEL not in fields:
            raise SchemaError(expected=f"a field {LABEL!r}, whose classes were given", found="none")
        try:
            check_label(fields.get(LABEL, _CLASS))
        except UsageError as error:
            raise SchemaError(str(error)) from error
        for name, kind in fields.items():
            if kind.optional and (kind.kind in ("image", "class") or (name == LABEL and classes is not None)):
                instead = f": {NO_CLASS} stands for no class" if name == LABEL and classes is not None else ""
                raise SchemaError(place=f"field {name!r}", expected="a value in every sample", found=f"None{instead}")
            if kind.optional and f"{name}_valid" in fields:
                raise SchemaError(
                    place=f"field {name!r}", expected=f"a value, since there is a field '{name}_valid'", found="None"
                )
        return Declaration(fields, classes, self._declaration.image)


def _copy(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else copy.deepcopy(value)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | bytearray) else 0

"""``packer merge``: several packed datasets become one."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from packer.assembly.packed_rows import BATCH_BYTES, PackedRows
from packer.assembly.schemas import unite_schemas
from packer.builds.pieces.folder import PieceFolder
from packer.builds.pieces.merge import merge_pieces
from packer.builds.result import BuildResult
from packer.jobs.job import Job
from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import JobResult
from packer.jobs.upload import output_place
from packer.packed.plan import BUILT_KEY, PackedInput, open_input, plan_copy, several_paths
from packer.recipe.options import BuildOptions
from packer.workspace.hashing import in_several
from shardspec.columns import Columns, IntArray
from shardspec.entries import total
from shardspec.errors import SchemaError, UsageError
from shardspec.layout import is_url
from shardspec.schema import Schema, class_name
from shardspec.wording import counted, program, shorten

CLASSES = ("same", "unite")
"""Rules for lists of classes that differ."""


@dataclass(frozen=True, repr=False)
class MergeResult(JobResult):
    """The dataset that a merge made, and warnings about it.

    Attributes
    ----------
    shapes : dict of str to tuple of str
        Shapes in the datasets, for each field whose shapes differ.
    repeated : dict of str to int
        Number of samples of a dataset that an earlier dataset has, too (all values except the key are equal), by the
        path of the dataset as given. The merged dataset has these samples twice.
    """

    shapes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    repeated: Mapping[str, int] = field(default_factory=dict)

    def describe(self) -> str:
        """Describe the dataset, with warnings about repeated samples and fields of several shapes."""
        twice = (
            f"warning: {counted(count, 'sample')} of {path} {'is' if count == 1 else 'are'} in an earlier dataset, too, "
            "and therefore twice in the merged one: merge datasets without common samples"
            for path, count in self.repeated.items()
        )
        return "\n".join([super().describe(), *twice, *(self._describe_shapes(name) for name in self.shapes)])

    def _facts(self) -> dict[str, Any]:
        shapes = {name: list(shapes) for name, shapes in self.shapes.items()}
        return {"different_shapes": shapes, "repeated": dict(self.repeated)}

    def _describe_shapes(self, name: str) -> str:
        resize = f", or resize images before the merge ({program()} build DATASET OUT --size PX --resize exact)"
        return (
            f"warning: values of field {name!r} have different shapes ({', '.join(self.shapes[name])}), "
            "so a batch has them as a list: give a DataLoader collate_fn=ds.collate"
            f"{resize if self.manifest.schema[name].is_image else ''}"
        )


def merge(
    datasets: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    classes: str = "same",
    format: str | None = None,
    shard_size: str | int | None = None,
    shuffle: int | None = None,
    workers: str | int = "auto",
    engine: str = "processes",
    overwrite: bool = False,
    progress: bool | ProgressListener = True,
) -> MergeResult | BuildResult:
    """Join packed datasets with the same fields, or pieces of one build. Nothing is decoded; the same call again resumes.

    Folders of pieces, which `packer.build` has packed in shares, become the dataset of the undivided build, with the
    options of that build. Everything below is about packed datasets.

    Lists of classes that differ are refused, or united into one list, by which the labels are renumbered
    (`packer.assembly.schemas.unite_schemas`). Images and arrays of different fixed shapes become values of varying shape.

    The samples keep the order of the datasets. Neighbours that one recipe built count as one build: datasets packed in
    pieces, then merged, have the shards, items and rejects of the one build that packs everything. The manifest lists
    all other generations; a `shuffle` mixes them into one. If two datasets have a key in common, the item numbers in the keys of the later datasets are moved up. A
    sample that is in two datasets is taken twice, and the result counts such samples.

    The licences and citations of all datasets stay. A title, description or homepage stays if all datasets have the same.

    Parameters
    ----------
    datasets : sequence of path
        Two packed datasets or more; or the folders of pieces with all shares of one build, in any order.
    out : path or str
        A folder that is new, empty, or holds the merge to resume; or a URL, as for `packer.build`.
    classes : {"same", "unite"}
        Whether lists of classes must be equal, or are united.
    format : str, optional
        Format of the shards, by default the first dataset's. A name in `shardspec.formats.FORMATS`.
    shard_size, shuffle, workers, engine, overwrite, progress
        See `packer.convert`.

    Returns
    -------
    MergeResult or BuildResult
        A `BuildResult` for pieces.

    Raises
    ------
    UsageError
        If there are fewer than two datasets, if one is given twice, or if their schemas differ in anything else. The
        message names every difference, and the remedy. Also if the pieces belong to different plans.
    DatasetError, ResumeMismatchError, BuildLockedError, BuildError
        See `packer.convert`. A `BuildError` also names missing shares.
    TooManyRejectsError
        If pieces have more rejects than the build allowed.
    """
    if pieces := _open_pieces(datasets):
        chosen = {"classes": (classes, "same"), "format": (format, None), "shard_size": (shard_size, None)}
        for name, (value, default) in {**chosen, "shuffle": (shuffle, None)}.items():
            if value != default:
                raise UsageError(
                    option=name,
                    expected="packed datasets",
                    found="pieces, whose plan has all options of the dataset",
                    hint="leave the option out",
                )
        listener = listener_of(progress)
        how: dict[str, Any] = {"workers": workers, "engine": engine, "overwrite": overwrite}
        return merge_pieces(pieces, *output_place(out), **how, listener=listener)
    target, upload = output_place(out)
    place = target if upload is None else upload.url
    inputs = [open_input(path, place) for path in several_paths(datasets, "to merge")]
    places = [one.path.resolve() for one in inputs]
    if len(set(places)) != len(places):
        raise UsageError(
            expected="every packed dataset once", found=f"one twice among {', '.join(str(one.place) for one in inputs)}"
        )
    if classes not in CLASSES:
        raise UsageError(option="classes", expected=f"one of {', '.join(CLASSES)}", found=shorten(classes))
    _check_schemas(inputs)
    _check_sound(inputs)
    if classes == "same":
        _check_classes(inputs)
    small = _SmallFields(inputs)
    again = {os.fspath(path): count for path, count in zip(datasets, small.repeated, strict=True) if count}
    options: dict[str, Any] = {"format": inputs[0].manifest.format if format is None else format}
    options |= {"shard_size": shard_size, "shuffle": shuffle}
    one_build = len(plan_copy("merge", inputs, {**options, "shuffle": None}).generations) == 1
    plan = plan_copy("merge", small.number_keys(one_build=one_build), options)
    del small  # the hashes of all keys
    options_of_job = BuildOptions(workers=workers, engine=engine, overwrite=overwrite)
    result = Job(plan, target, options_of_job, listener_of(progress), upload).run()
    shapes = _different_shapes([one.manifest.schema for one in inputs])
    return MergeResult(**vars(result), shapes=shapes, repeated=again)


def _open_pieces(folders: Sequence[str | os.PathLike[str]]) -> list[PieceFolder]:
    """Open folders of pieces. Return an empty list if none of the folders holds pieces.

    Raises
    ------
    UsageError
        If only some of the folders hold pieces.
    """
    given = [folders] if isinstance(folders, str | os.PathLike) else folders
    pieces, others = [], []
    for path in [os.fspath(path) for path in given]:
        folder = None if is_url(path) else PieceFolder.open(Path(path).absolute())
        if folder is None:
            others.append(path)
        else:
            pieces.append(folder)
    if pieces and others:
        raise UsageError(
            expected="either packed datasets or folders of pieces",
            found=f"pieces in {pieces[0].path}, but none in {others[0]}",
        )
    return pieces


def _different_shapes(schemas: Sequence[Schema]) -> dict[str, tuple[str, ...]]:
    """Return the fields whose shapes differ, with a description of each shape."""
    found = {}
    for name in schemas[0].names:
        axes = 2 if schemas[0][name].is_image else None
        shapes = dict.fromkeys(schema[name].shape[:axes] for schema in schemas)
        if len(shapes) > 1:
            found[name] = tuple("varying" if None in shape else " x ".join(map(str, shape)) for shape in shapes)
    return found


def _check_schemas(inputs: Sequence[PackedInput]) -> None:
    united = inputs[0].manifest.schema
    for one in inputs[1:]:
        try:
            united = unite_schemas([united, one.manifest.schema])
        except SchemaError as error:
            raise UsageError(
                place=one.place,
                expected=f"a schema that can be joined with that of {inputs[0].place}",
                found="another",
                hint=(
                    f"{error}. For types, build both from their sources with the same --text, --float or --int COLUMN; "
                    f"for classes, {program()} build PACKED OUT --classes-from DATASET"
                ),
            ) from error


def _check_sound(inputs: Sequence[PackedInput]) -> None:
    """Check that the sound of all datasets has one rate, which only their recipes tell."""
    rates: dict[str, PackedInput] = {}
    for one in inputs:
        for generation in one.manifest.generations if "audio" in one.manifest.schema else ():
            rates.setdefault(str(generation.recipe.get("audio")), one)
    if len(rates) > 1:
        (rate, first), (other, second) = list(rates.items())[:2]
        raise UsageError(
            place=second.place,
            expected=f"sound of {rate} Hz, as in {first.place}",
            found=f"{other} Hz",
            hint=f"pack one of them again: {program()} build --audio {rate}",
        )


def _check_classes(inputs: Sequence[PackedInput]) -> None:
    first = inputs[0]
    for one in inputs[1:]:
        for known, found in zip(first.manifest.schema, one.manifest.schema, strict=True):
            ours, theirs = (list(map(class_name, field.classes or ())) for field in (known, found))
            if ours != theirs:
                number = next(i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b)
                raise UsageError(
                    place=one.place,
                    expected=f"the classes of {first.place}",
                    found=(
                        f"{known.name} {number} as {_class_at(theirs, number)} (of {len(theirs)}) and there as "
                        f"{_class_at(ours, number)} (of {len(ours)})"
                    ),
                    hint="renumber them by one list of all with --classes unite (classes='unite')",
                )


def _class_at(classes: Sequence[str], number: int) -> str:
    return shorten(classes[number]) if number < len(classes) else "no class"


class _SmallFields:
    """Facts that the small fields of all rows tell, which are read once. Memory is 16 bytes a row.

    Attributes
    ----------
    repeated : list of int
        Number of samples of each dataset that an earlier dataset has, too: all values except the key are equal. Large
        values are read only for samples whose small fields are equal to those of a sample of another dataset.
    """

    def __init__(self, inputs: Sequence[PackedInput]) -> None:
        self._inputs = inputs
        schema = inputs[0].manifest.schema
        self._has_keys = "key" in schema
        self._last = [0] * len(inputs)
        self._unnumbered: list[bytes | None] = [None] * len(inputs)
        self._ends = np.cumsum([one.manifest.samples for one in inputs])
        config = {"inputs": [{"path": str(one.path)} for one in inputs], "check": "size"}
        with closing(PackedRows(config, manifests=[one.manifest for one in inputs])) as rows:
            self._keys = np.zeros(len(rows), np.int64)
            self.repeated = self._count_repeated(rows, [name for name in schema.names if name != "key"])

    def _count_repeated(self, rows: PackedRows, names: Sequence[str]) -> list[int]:
        hashes = self._read(rows, [name for name in names if rows.schema[name].is_small])
        parts = np.split(hashes, self._ends[:-1])
        alike = np.flatnonzero(np.isin(hashes, in_several(parts)))
        step = max(1, BATCH_BYTES // max(1, rows.row_bytes))
        for start in range(0, len(alike) if names else 0, step):
            some = alike[start : start + step]
            hashes[some] = _hash_rows(rows.read(some, names))
        compared = np.zeros(len(hashes), np.bool_)
        compared[alike] = bool(names)
        counts, seen = [], hashes[:0]
        for own, chosen in zip(parts, np.split(compared, self._ends[:-1]), strict=True):
            counts.append(int(np.count_nonzero(chosen & np.isin(own, seen))))
            seen = np.union1d(seen, own[chosen])
        return counts

    def _read(self, rows: PackedRows, small: Sequence[str]) -> IntArray:
        """Read the keys, and return a hash of the other small values of each row."""
        hashes, at = np.zeros(len(rows), np.int64), 0
        needed = [*(["key"] if self._has_keys else []), *small]
        for columns in rows.batches(needed) if needed else ():
            keys = list(map(bytes, columns.pop("key"))) if self._has_keys else []
            stop = at + len(keys or columns[small[0]])
            if keys:
                self._keys[at:stop] = list(map(hash, keys))
                self._note_numbers(int(np.searchsorted(self._ends, at, side="right")), keys)
            if small:
                hashes[at:stop] = _hash_rows(columns)
            at = stop
        return hashes

    def _note_numbers(self, number: int, keys: Sequence[bytes]) -> None:
        for key in keys if self._unnumbered[number] is None else ():
            match = BUILT_KEY.match(key)
            if match is None:
                self._unnumbered[number] = key
                return
            self._last[number] = max(self._last[number], int(match[1]) + 1)

    def number_keys(self, *, one_build: bool) -> list[PackedInput]:
        """Increase the item numbers of later inputs if keys would occur twice, or if all are pieces of one build."""
        inputs = self._inputs
        if not self._has_keys:
            return list(inputs)
        repeated = len(in_several(np.split(self._keys, self._ends[:-1]))) > 0
        if not repeated and not (one_build and all(key is None for key in self._unnumbered)):
            return list(inputs)
        for one, key in zip(inputs, self._unnumbered, strict=True):
            if key is not None:
                raise UsageError(
                    (
                        f"key {key.decode(errors='replace')!r}, or another, is in more than one of the datasets, "
                        "and cannot be renumbered, since it does not have the form 00000012-000000"
                    ),
                    place=one.place,
                    hint="give the samples of one dataset other keys",
                )
        known = (total(one.manifest.generations).items for one in inputs)
        starts = np.cumsum([0, *map(max, known, self._last)]).tolist()
        return [replace(one, items_before=start) for one, (start, _) in zip(inputs, pairwise(starts), strict=True)]


def _hash_rows(columns: Columns) -> IntArray:
    return np.fromiter(map(hash, zip(*map(_as_bytes, columns.values()), strict=True)), np.int64)


def _as_bytes(values: Any) -> Iterator[bytes]:
    return (value.tobytes() for value in values) if isinstance(values, np.ndarray) else map(bytes, values)

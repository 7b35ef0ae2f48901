"""The table of a known dataset: which there are, what may be chosen, and the table that is written."""

import os
import shlex
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import Result
from packer.known.tree import COLUMNS, NO_LISTS, Choice, Found, Tree
from packer.packed.export.tables import TABLES, Table
from packer.workspace.output import check_output, writing_output
from shardspec.errors import UsageError
from shardspec.layout import given_path
from shardspec.registry import Entry, resolve
from shardspec.wording import LISTED, LONG, counted, cut, did_you_mean, list_some, shorten


class Known(NamedTuple):
    """A dataset that can be listed: the options that it has, the names of its splits, and how it is usually packed."""

    find: Entry
    options: tuple[str, ...]
    splits: tuple[str, ...]
    recipe: str


_THREE = ("train", "val", "test")

_FACES = "--preset faces --frames {} --size 256 --margin 0.3 --choose largest --encode png"
_IMAGES = "--preset images --size {}"

KNOWN: Mapping[str, Known] = {
    "celeb-df": Known(Entry("packer.known.celeb_df:find"), ("splits", "lists"), ("train", "test"), _FACES.format(32)),
    "deepfakebench": Known(
        Entry("packer.known.deepfakebench:find"),
        ("compression", "methods", "splits", "lists"),
        _THREE,
        "--preset images --encode png",
    ),
    "dfdc": Known(Entry("packer.known.dfdc:find"), ("splits",), _THREE, _FACES.format(16)),
    "faceforensics": Known(
        Entry("packer.known.faceforensics:find"),
        ("compression", "methods", "splits", "lists"),
        _THREE,
        _FACES.format(32),
    ),
    "imagefolder": Known(
        Entry("packer.known.imagefolder:find"), ("splits",), _THREE, f"{_IMAGES.format(256)} --resize exact"
    ),
    "imagenet": Known(Entry("packer.known.imagenet:find"), ("splits", "lists"), _THREE, _IMAGES.format(256)),
    "lrs": Known(
        Entry("packer.known.lrs:find"), ("splits", "lists"), ("pretrain", "trainval", *_THREE), _IMAGES.format(128)
    ),
    "lrw": Known(Entry("packer.known.lrw:find"), ("splits",), _THREE, _IMAGES.format(128)),
}
"""The datasets by the names of the command line."""

_COUNTED = ("label", "split", "method", "compression")
"""Columns whose values a description counts."""

REAL_OR_FAKE = ("real", "fake")
"""The labels of forgeries and their originals, in the order of the numbers that they have nearly everywhere."""

_VALUES = 8
"""Values of a column that are counted one by one."""


@dataclass(frozen=True, repr=False)
class DatasetList(Result):
    """The pictures or videos of a known dataset, as rows that `build` packs.

    Attributes
    ----------
    name : str
        The dataset's name, as given.
    root : Path
        Its folder, to which the paths are relative.
    rows : tuple of dict
        A row for each picture or video. All have the same columns; a missing value is None.
    missing : tuple of str
        Files that the dataset's own lists name, and that are not there.
    unlisted : tuple of str
        Pictures and videos that are there, and that its lists do not name.
    notes : tuple of str
        What else there is to know, a sentence each.
    table : Path or None
        The table that was written, if any.
    """

    name: str
    root: Path
    rows: tuple[dict[str, Any], ...]
    missing: tuple[str, ...]
    unlisted: tuple[str, ...]
    notes: tuple[str, ...]
    table: Path | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows."""
        return tuple(self.rows[0])

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many rows have each label, split, method and compression, by column and value."""
        counts = {}
        for column in _COUNTED:
            if column in self.columns:
                values = Counter("" if row[column] is None else row[column] for row in self.rows)
                counts[column] = dict(sorted(values.items()))
        return counts

    def to_json(self) -> dict[str, Any]:
        """The list as JSON, without its rows.

        Returns
        -------
        dict
            ``name``, ``root``, ``table``, ``rows`` (their number), ``columns``, ``counts``, ``missing``, ``unlisted``
            and ``notes``.
        """
        return {
            "name": self.name,
            "root": str(self.root),
            "table": None if self.table is None else str(self.table),
            "rows": len(self.rows),
            "columns": list(self.columns),
            "counts": self.counts,
            "missing": list(self.missing),
            "unlisted": list(self.unlisted),
            "notes": list(self.notes),
        }

    def describe(self) -> str:
        """The list for people, with the command that packs it."""
        lines = [f"{self.name} in {self.root}: {counted(len(self.rows), 'row')}"]
        lines += [f"{column}: {_describe_counts(values)}" for column, values in self.counts.items()]
        lines += [
            f"{what}: {len(paths)}: {_name_some(paths)}"
            for what, paths in (("listed, but not there", self.missing), ("there, but not listed", self.unlisted))
            if paths
        ]
        lines += self.notes[:LISTED]
        if len(self.notes) > LISTED:
            lines.append(f"and {len(self.notes) - LISTED} more notes (--json has all)")
        if self.table is None:
            lines.append("no table was written: add -o TABLE.csv")
        else:
            lines.append(f"written to {self.table}; to pack it: {self._describe_build(self.table)}")
        return "\n".join(lines)

    def _describe_build(self, table: Path) -> str:
        """The command that packs the table: the dataset's own in docs/datasets.md, as far as the columns allow it."""
        label = [] if "label" in self.columns else ["--label-from", "none"]
        if "label" in self.columns and {row["label"] for row in self.rows} <= {None, *REAL_OR_FAKE}:
            label += ["--classes", ",".join(REAL_OR_FAKE)]
        how = KNOWN[self.name].recipe.split()
        if "faces" in how:
            how += ["--boxes-from", "original"] if "original" in self.columns else []
            how += self._describe_masks()
        texts = [word for column in self._numeric_texts() for word in ("--text", column)]
        typed = texts if table.suffix == ".csv" else []
        return shlex.join(["packer", "build", str(table), "OUT", "--root", str(self.root), *label, *how, *typed])

    def _describe_masks(self) -> list[str]:
        """The options for the column of masks. A forgery without one must not get a black one, as real videos do."""
        if "mask" not in self.columns:
            return []
        unmasked = any(row["mask"] is None and row["label"] != REAL_OR_FAKE[0] for row in self.rows)
        return ["--also", "mask", *([] if unmasked else ["--also-missing", "zero"])]

    def _numeric_texts(self) -> list[str]:
        """Columns of text that a CSV file would turn into numbers."""
        return [
            column
            for column in self.columns
            if all(
                row[column] is None or (isinstance(row[column], str) and _is_number(row[column])) for row in self.rows
            )
        ]


def _name_some(paths: Sequence[str]) -> str:
    """The first of some paths, whole unless they are very long, and the number of those left out."""
    shown = ", ".join(cut(path, LONG) for path in paths[:LISTED])
    return shown if len(paths) <= LISTED else f"{shown} and {len(paths) - LISTED} more"


def _describe_counts(values: Mapping[str, int]) -> str:
    if len(values) > _VALUES:
        smallest, largest = min(values.values()), max(values.values())
        rows = str(largest) if smallest == largest else f"{smallest} to {largest}"
        return f"{len(values)} values, {rows} rows each"
    return ", ".join(f"{value or '(none)'} {count}" for value, count in values.items())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python's own spelling, which tables do not have


def list_dataset(
    name: str,
    root: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    compression: str | Sequence[str] | None = None,
    methods: str | Sequence[str] | None = None,
    splits: str | Sequence[str] | None = None,
    lists: str | os.PathLike[str] | None = None,
    progress: bool | ProgressListener = True,
) -> DatasetList:
    """List a known dataset, in the folders in which it is published, as rows or as a table that `build` packs.

    Files are listed by their names and by the dataset's own lists; no picture and no video is opened.

    Parameters
    ----------
    name : str
        ``"celeb-df"``, ``"deepfakebench"``, ``"dfdc"``, ``"faceforensics"``, ``"imagefolder"``, ``"imagenet"``,
        ``"lrs"`` or ``"lrw"``.
    root : path
        The dataset's folder. The rows' paths are relative to it.
    out : path, optional
        The table to write: ``.csv``, ``.jsonl`` or ``.parquet``. It is replaced if it exists.
    compression : str or sequence of str, optional
        Compressions to list, such as ``"c23"`` or ``"c23,c40"``; needed where there are several.
    methods : str or sequence of str, optional
        Methods of forgery to list; by default all that have official splits. Real videos are always listed.
    splits : str or sequence of str, optional
        Splits to list; by default all.
    lists : path, optional
        The official lists, where they do not lie in the dataset's folder: a file, or the folder that holds them.
        ``"none"`` lists without them, and so without what they say.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or the listener to receive it.

    Returns
    -------
    DatasetList

    Raises
    ------
    UsageError
        If there is no dataset of that name, if the folder does not hold it, if the dataset does not have an option, or
        if the folder of the table cannot be written.
    MissingDependencyError
        If a library that a list needs is not installed.
    BuildError
        If a folder cannot be listed, or the disk is full.
    """
    find = resolve("dataset", name, {known: entry.find for known, entry in KNOWN.items()})
    table = None if out is None else given_path("out", out)
    if table is not None:
        check_output(table, *(f".{suffix}" for suffix in TABLES))
    folder = given_path("root", root)
    if not folder.is_dir():
        raise UsageError(f"{folder}: expected the dataset's folder, found {'a file' if folder.exists() else 'none'}")
    choice = _choose(name, {"compression": compression, "methods": methods, "splits": splits}, lists)
    tree = Tree(folder, listener_of(progress))
    found: Found = find(tree, choice)
    found.unlisted += sorted({*tree.doubles} - {*found.unlisted} - {row["path"] for row in found.rows})
    if not found.rows:
        others = (("listed, but not there", found.missing), ("there, but not listed", found.unlisted))
        counts = [f"{len(paths)} {what}, such as {cut(paths[0], LONG)}" for what, paths in others if paths]
        why = "; ".join([*found.notes, *counts])
        part = f" ({', '.join(choice.splits)})" if choice.splits else ""
        raise UsageError(f"{folder}: expected files of {name}{part} to list, found none{f': {why}' if why else ''}")
    rows = _complete(found.rows)
    _note_alone(found, rows)
    result = DatasetList(
        name, folder, rows, tuple(found.missing), tuple(found.unlisted), tuple(dict.fromkeys(found.notes)), table
    )
    if table is not None:
        _write(table, result)
    return result


def _choose(
    name: str, options: Mapping[str, str | Sequence[str] | None], lists: str | os.PathLike[str] | None
) -> Choice:
    """The choice that the options make; options that the dataset has not are refused."""
    known = KNOWN[name]
    for option, value in {**options, "lists": lists}.items():
        if value is not None and option not in known.options:
            raise UsageError(f"{option}: {name} has no such option, it has {', '.join(known.options)}")
    chosen = {option: () if value is None else _names(option, value) for option, value in options.items()}
    for split in chosen["splits"]:
        if split not in known.splits:
            like = did_you_mean(split, known.splits)
            raise UsageError(f"splits: expected some of {', '.join(known.splits)}, found {shorten(split)}{like}")
    if lists == NO_LISTS:
        if chosen["splits"] and name != "imagenet":
            raise UsageError("splits: --lists none leaves no splits to choose from")
        return Choice(chosen["compression"], chosen["methods"], chosen["splits"], no_lists=True)
    given = None if lists is None else given_path("lists", lists)
    if given is not None and not given.exists():
        raise UsageError(f"lists: expected a file, a folder or none, found nothing at {given}")
    return Choice(chosen["compression"], chosen["methods"], chosen["splits"], given)


def _names(option: str, value: str | Sequence[str]) -> tuple[str, ...]:
    """The names of an option: a text with commas between them, or a sequence."""
    parts = value.split(",") if isinstance(value, str) else value
    names = tuple(part.strip() for part in parts if isinstance(part, str))
    if len(names) != len(parts) or not all(names):
        raise UsageError(f"{option}: expected names with commas between them, found {shorten(value)}")
    return names


def _complete(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The rows with the same columns in all; a column without any value is left out."""
    columns = [column for column in COLUMNS if any(row.get(column) is not None for row in rows)]
    assert all(key in COLUMNS for row in rows for key in row)
    return tuple({column: row.get(column) for column in columns} for row in rows)


def _note_alone(found: Found, rows: Sequence[Mapping[str, Any]]) -> None:
    if "original" in rows[0]:
        alone = [row["path"] for row in rows if row["label"] == "fake" and row["original"] is None]
        if alone:
            found.notes.append(
                f"forgeries whose original is not known or not there: {len(alone)}: {list_some(alone, 3)} "
                "(--boxes-from original finds faces in these themselves)"
            )


def _write(path: Path, result: DatasetList) -> None:
    """Write the table under another name, and put it into its place when it is whole."""
    kinds = {column: "<f8" if column == "duration" else "text" for column in result.columns}
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    write = resolve("table", path.suffix.lower().removeprefix("."), TABLES)
    with writing_output(path):
        try:
            table: Table = write(temporary, kinds)
            try:
                table.write(result.rows)
            finally:
                table.close()
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

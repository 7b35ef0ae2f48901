"""Known datasets and their options, and the table that lists one."""

import os
import shlex
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packer.jobs.progress import ProgressListener, listener_of
from packer.jobs.result import Result
from packer.known import (
    av_deepfake1m,
    celeb_df,
    deepfakebench,
    df40,
    dfdc,
    faceforensics,
    fakeavceleb,
    imagefolder,
    imagenet,
    lav_df,
    lrs,
    lrw,
    voxceleb2,
)
from packer.known.tree import COLUMNS, INTERVALS, NO_LISTS, DatasetFilter, Tree, TreeContents
from packer.packed.export.tables import TABLES
from packer.workspace.output import check_output, writing_output
from shardspec.errors import UsageError
from shardspec.layout import given_path
from shardspec.registry import resolve
from shardspec.wording import LISTED, LONG, counted, cut, did_you_mean, list_some, shorten


class PublicDataset(NamedTuple):
    """A dataset that can be listed: its finder, options and splits, and the options with which it is usually packed.

    `signs` are patterns of paths, one of which is in its folder and hardly in any other folder.
    """

    find: Callable[[Tree, DatasetFilter], TreeContents]
    options: tuple[str, ...]
    splits: tuple[str, ...]
    recipe: str
    signs: tuple[str, ...] = ()


_THREE = ("train", "val", "test")
_ALL_OPTIONS = ("compression", "methods", "splits", "lists")

_BOXES = "--boxes-from original"
"""Part of a recipe that is left out if the table has no originals."""

_FACES = f"--preset faces --frames {{}} --size 256 --margin 0.3 --choose largest --encode png {_BOXES}"
_FACES_IN_TIME = "--preset faces --size 224 --choose main"
_IMAGES = "--preset images --size {}"

KNOWN: Mapping[str, PublicDataset] = {
    "av-deepfake1m": PublicDataset(
        av_deepfake1m.find,
        ("splits",),
        av_deepfake1m.SPLITS,
        _FACES_IN_TIME,
        ("train_metadata.json", "val_metadata.json"),
    ),
    "celeb-df": PublicDataset(
        celeb_df.find, ("methods", "splits", "lists"), ("train", "test"), _FACES.format(32), ("Celeb-synthesis",)
    ),
    "deepfakebench": PublicDataset(
        deepfakebench.find, _ALL_OPTIONS, _THREE, "--preset images --encode png", ("dataset_json/*.json",)
    ),
    "df40": PublicDataset(
        df40.find,
        ("methods", "splits", "lists"),
        _THREE,
        "--preset images --encode png",
        ("DF40", "DF40_train", "*/DF40", "simswap"),
    ),
    "dfdc": PublicDataset(dfdc.find, ("splits",), _THREE, _FACES.format(16), ("dfdc_train_part_*",)),
    "faceforensics": PublicDataset(
        faceforensics.find, _ALL_OPTIONS, _THREE, _FACES.format(32), ("manipulated_sequences", "original_sequences")
    ),
    "fakeavceleb": PublicDataset(
        fakeavceleb.find, ("methods",), (), _FACES_IN_TIME, ("FakeAVCeleb/*/", "RealVideo-*Audio")
    ),
    "imagefolder": PublicDataset(imagefolder.find, ("splits",), _THREE, f"{_IMAGES.format(256)} --resize exact"),
    "imagenet": PublicDataset(
        imagenet.find, ("splits", "lists"), _THREE, _IMAGES.format(256), ("ILSVRC/Data", "train/n0???????")
    ),
    "lav-df": PublicDataset(lav_df.find, ("splits",), _THREE, _FACES_IN_TIME, ("metadata.min.json",)),
    "lrs": PublicDataset(
        *(lrs.find, ("splits", "lists"), ("pretrain", "trainval", *_THREE), _IMAGES.format(128)),
        signs=("pretrain/*/*.txt", "trainval/*/*.txt", "mvlrs_v1"),
    ),
    "lrw": PublicDataset(lrw.find, ("splits",), _THREE, _IMAGES.format(128), ("ABOUT/train",)),
    "voxceleb2": PublicDataset(voxceleb2.find, ("splits",), ("train", "test"), _FACES_IN_TIME, ("*/mp4/id[0-9]*",)),
}
"""Datasets by their names on the command line."""

_COUNTED = ("label", "split", "method", "modified", "compression")

REAL_OR_FAKE = ("real", "fake")
"""Labels of originals and forgeries, in the order of their usual class numbers."""

_VALUES = 8
"""Largest number of values of a column that are counted one by one."""


@dataclass(frozen=True, repr=False)
class DatasetList(Result):
    """The images or videos of a known dataset, as rows for `build`.

    Attributes
    ----------
    name : str
        Name of the dataset.
    root : Path
        Its folder. Paths in rows are relative to it.
    rows : tuple of dict
        A row for each image or video. All have the same columns; a missing value is None.
    missing : tuple of str
        Files that the dataset's lists name but that do not exist.
    unlisted : tuple of str
        Images and videos that its lists do not name.
    notes : tuple of str
        Further sentences for the user.
    table : Path or None
        Table written, if any.
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
        """Number of rows with each label, split, method, modified stream and compression, by column and value."""
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
        """Describe the list, with the command that packs it."""
        lines = [f"{self.name} in {self.root}: {counted(len(self.rows), 'row')}"]
        lines += [f"{column}: {_describe_counts(values)}" for column, values in self.counts.items()]
        lines += [
            f"{what}: {len(paths)}: {list_some(paths)}"
            for what, paths in (("missing files", self.missing), ("files in no list", self.unlisted))
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
        """Return the command that packs the table, which is that of docs/howto/datasets.md if all columns exist."""
        label = [] if "label" in self.columns else ["--label-from", "none"]
        if "label" in self.columns and {row["label"] for row in self.rows} <= {None, *REAL_OR_FAKE}:
            label += ["--classes", ",".join(REAL_OR_FAKE)]
        recipe = KNOWN[self.name].recipe
        how = (recipe if "original" in self.columns else recipe.removesuffix(_BOXES)).split()
        if "faces" in how:
            how += self._describe_masks()
        how += [word for column in INTERVALS if column in self.columns for word in ("--intervals", column)]
        texts = [word for column in self._numeric_texts() for word in ("--text", column)]
        typed = texts if table.suffix == ".csv" else []
        return shlex.join(["packer", "build", str(table), "OUT", "--root", str(self.root), *label, *how, *typed])

    def _describe_masks(self) -> list[str]:
        """Return the options for masks. Real videos get a black mask, which forgeries without a mask must not get."""
        if "mask" not in self.columns:
            return []
        unmasked = any(row["mask"] is None and row["label"] != REAL_OR_FAKE[0] for row in self.rows)
        return ["--also", "mask", *([] if unmasked else ["--also-missing", "zero"])]

    def _numeric_texts(self) -> list[str]:
        """Return the text columns that would be read as numbers from a CSV file."""
        return [
            column
            for column in self.columns
            if all(
                row[column] is None or (isinstance(row[column], str) and _is_number(row[column])) for row in self.rows
            )
        ]


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
    return "_" not in text  # Python takes 1_000 as a number, tables do not


def recognise(folder: Path) -> str | None:
    """Return the name of the known dataset that a folder probably holds, or None."""
    return next((name for name, known in KNOWN.items() if any(any(folder.glob(sign)) for sign in known.signs)), None)


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
    """List a public dataset, laid out as published, as rows or as a table for `build`.

    Only file names and the dataset's lists are read; no image or video is opened.

    Parameters
    ----------
    name : str
        ``"av-deepfake1m"``, ``"celeb-df"``, ``"deepfakebench"``, ``"df40"``, ``"dfdc"``, ``"faceforensics"``,
        ``"fakeavceleb"``, ``"imagefolder"``, ``"imagenet"``, ``"lav-df"``, ``"lrs"``, ``"lrw"`` or ``"voxceleb2"``.
    root : path
        Folder of the dataset. Paths in rows are relative to it.
    out : path, optional
        Table to write, ``.csv``, ``.jsonl`` or ``.parquet``. It is replaced if it exists.
    compression : str or sequence of str, optional
        Compressions to list, such as ``"c23"`` or ``"c23,c40"``. Required if there are several.
    methods : str or sequence of str, optional
        Forgery methods to list; by default all that have official splits. Real videos are always listed.
    splits : str or sequence of str, optional
        Splits to list; by default all.
    lists : path, optional
        File or folder with the official lists, if they are not in the dataset's folder. ``"none"`` ignores them and
        lists without splits.
    progress : bool or ProgressListener
        Whether to show progress on standard error, or a listener that receives it.

    Returns
    -------
    DatasetList

    Raises
    ------
    UsageError
        If the name or an option is unknown, the folder does not hold the dataset, or the table cannot be written.
    MissingDependencyError
        If a library needed to read a list is not installed.
    BuildError
        If a folder cannot be listed, or the disk is full.
    """
    if name not in KNOWN:
        like = did_you_mean(str(name), KNOWN)
        raise UsageError(f"unknown dataset {shorten(name)}: expected one of {', '.join(KNOWN)}{like}")
    table = None if out is None else given_path("out", out)
    if table is not None:
        check_output(table, *(f".{suffix}" for suffix in TABLES))
    folder = given_path("root", root)
    if not folder.is_dir():
        raise UsageError(place=folder, expected="the dataset's folder", found="a file" if folder.exists() else "none")
    choice = _choose(name, {"compression": compression, "methods": methods, "splits": splits}, lists)
    tree = Tree(folder, listener_of(progress))
    found = KNOWN[name].find(tree, choice)
    found.unlisted += sorted({*tree.doubles} - {*found.unlisted} - {row["path"] for row in found.rows})
    if not found.rows:
        others = (("missing", found.missing), ("in no list", found.unlisted))
        counts = [
            f"{counted(len(paths), 'file')} {what}, such as {cut(paths[0], LONG)}" for what, paths in others if paths
        ]
        why = "; ".join([*found.notes, *counts])
        part = f" ({', '.join(choice.splits)})" if choice.splits else ""
        raise UsageError(
            place=folder, expected=f"files of {name}{part} to list", found=f"none{f': {why}' if why else ''}"
        )
    for what, paths in (
        ("files that a list names again, whose first entry counts", found.repeated),
        ("files whose intervals are malformed, and left out", list(dict.fromkeys(found.malformed))),
    ):
        if paths:
            found.notes.append(f"{what}: {len(paths)}: {list_some(paths, 3)}")
    rows = _complete(found.rows)
    _note_unknown_originals(found, rows)
    result = DatasetList(
        name, folder, rows, tuple(found.missing), tuple(found.unlisted), tuple(dict.fromkeys(found.notes)), table
    )
    if table is not None:
        _write(table, result)
    return result


def _choose(
    name: str, options: Mapping[str, str | Sequence[str] | None], lists: str | os.PathLike[str] | None
) -> DatasetFilter:
    """Check the options against those of the dataset."""
    known = KNOWN[name]
    for option, value in {**options, "lists": lists}.items():
        if value is not None and option not in known.options:
            raise UsageError(f"{name} has no such option; it has {', '.join(known.options)}", option=option)
    chosen: dict[str, Any] = {name: () if value is None else _names(name, value) for name, value in options.items()}
    for split in chosen["splits"]:
        if split not in known.splits:
            like = did_you_mean(split, known.splits)
            raise UsageError(
                option="splits", expected=f"some of {', '.join(known.splits)}", found=f"{shorten(split)}{like}"
            )
    if lists == NO_LISTS:
        if chosen["splits"] and name != "imagenet":
            raise UsageError("--lists none leaves no splits to choose from", option="splits")
        return DatasetFilter(**chosen, no_lists=True)
    given = None if lists is None else given_path("lists", lists)
    if given is not None and not given.exists():
        raise UsageError(option="lists", expected="a file, a folder or none", found=f"nothing at {given}")
    return DatasetFilter(**chosen, lists=given)


def _names(option: str, value: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names in one or several texts with commas."""
    texts = [value] if isinstance(value, str) else value
    names = tuple(part.strip() for text in texts if isinstance(text, str) for part in text.split(","))
    if not all(names) or not all(isinstance(text, str) for text in texts):
        raise UsageError(option=option, expected="names separated by commas", found=shorten(value))
    return names


def _complete(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Give all rows the same columns, without columns that have no values."""
    columns = [column for column in COLUMNS if any(row.get(column) is not None for row in rows)]
    assert all(key in COLUMNS for row in rows for key in row)
    return tuple({column: row.get(column) for column in columns} for row in rows)


def _note_unknown_originals(found: TreeContents, rows: Sequence[Mapping[str, Any]]) -> None:
    unknown = [row["path"] for row in rows if row.get("label") == "fake" and row.get("original", "") is None]
    if unknown:
        found.notes.append(
            f"forgeries whose original is unknown or missing: {len(unknown)}: {list_some(unknown, 3)} "
            "(--boxes-from original detects faces in the forgeries themselves)"
        )


def _write(path: Path, result: DatasetList) -> None:
    """Write the table to a temporary file, and rename it when it is complete."""
    kinds = dict.fromkeys(result.columns, "text") | {"duration": "<f8"}
    kinds = {column: "intervals" if column in INTERVALS else kinds[column] for column in result.columns}
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    write = resolve("table", path.suffix.lower().removeprefix("."), TABLES)
    with writing_output(path):
        try:
            with closing(write(temporary, kinds)) as table:
                table.write(result.rows)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

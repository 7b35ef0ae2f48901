"""List Parquet files that contain images as Hugging Face stores them, in a column of bytes or of ``{bytes, path}``.

The other columns become fields. Class names are read from the ``huggingface`` metadata of the schema, if it has any.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from packer.recipe import Recipe, field_name
from packer.sources.archives.listing import ArchiveListing, ListedArchive
from packer.sources.archives.member import Member
from packer.sources.item import ItemFile
from packer.sources.tables.base import refuse_doubled
from packer.sources.tables.chunks import chunk_of_batch, class_labels, reading_parquet
from shardspec.errors import UsageError, system_reason
from shardspec.registry import import_target
from shardspec.wording import did_you_mean, list_some, shorten

PREFIX = "column"
"""Prefix for columns whose field name is reserved."""

_BATCH_ROWS = 1024
_USUAL = ("image", "img", "image", "photo", "jpg", "png")
_SPLIT = re.compile(r"([A-Za-z0-9_.]+?)-[0-9]{5}-of-[0-9]{5}(-[0-9a-f]+)?\.parquet\Z")
"""Pattern of the file names of Hugging Face's splits."""


def holds_images(path: Path, path_column: str) -> bool:
    """Return whether a Parquet file contains images and is not a table of paths.

    Raises
    ------
    UsageError
        If the file cannot be read, or is not a Parquet file.
    """
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"cannot be read: {system_reason(error)}", place=path) from error
    schema = _open(path).schema_arrow
    found = _image_columns(schema)
    return path_column in found or (path_column not in schema.names and bool(found))


def _open(path: Path) -> Any:
    opened = import_target("pyarrow.parquet:ParquetFile", what=f"{path.name}", extra="parquet")
    with reading_parquet(path):
        return opened(path, pre_buffer=False)


def _image_columns(schema: Any) -> dict[str, bool]:
    """Return the columns that may hold images, and whether each is a struct with a field ``bytes``."""
    found: dict[str, bool] = {}
    for field in schema:
        kind = str(field.type)
        if kind in ("binary", "large_binary"):
            found[field.name] = False
        elif kind.startswith("struct<") and any(
            child.name == "bytes" and str(child.type) in ("binary", "large_binary") for child in field.type
        ):
            found[field.name] = True
    return found


def _choose(path: Path, schema: Any, path_column: str) -> tuple[str, dict[str, bool]]:
    """Return the column with the images of the items, and all columns that may hold images."""
    found = _image_columns(schema)
    if path_column in found:
        return path_column, found
    if path_column != Recipe.path_column or not found:
        name = "" if path_column == Recipe.path_column else f"{shorten(path_column)} "
        raise UsageError(
            f"{path}: expected a column {name}of images (bytes, or a struct with bytes), "
            f"found {list_some(schema.names)}"
            + (f": name it with --path-column{did_you_mean(path_column, found)}" if found else "")
        )
    structs = [name for name, is_struct in found.items() if is_struct]
    for names in (structs, list(found)):
        usual = [name for name in _USUAL if name in names]
        if len(names) == 1 or usual:
            return (usual or names)[0], found
    raise UsageError(
        place=path, expected="one column of images", found=list_some(list(found)), hint="choose it with --path-column"
    )


def list_rows(place: ListedArchive, path_column: str, dropped: Collection[str]) -> ArchiveListing:
    """List the rows of one file.

    Parameters
    ----------
    path_column : str
        The column with the images, needed if several columns have some.
    dropped : collection of str
        Columns to skip.
    """
    path = place.archive.path
    with _open(path) as file:
        schema, meta = file.schema_arrow, file.metadata
        chosen, candidates = _choose(path, schema, path_column)
        unread = [name for name in schema.names if name != chosen and _is_dropped(name, schema.names, dropped)]
        columns = [name for name in schema.names if name not in candidates and name not in unread]
        refuse_doubled(path, schema.names)
        classes = _class_names(schema)
        split = _SPLIT.match(path.name)
        found = ArchiveListing()
        for group in range(meta.num_row_groups):
            rows = meta.row_group(group).num_rows
            size = meta.row_group(group).total_byte_size // max(1, rows)
            member = partial(_member, place, schema.names, candidates, group)
            others = {field_name(name): name for name in candidates if name != chosen and name not in unread}
            for row, values in enumerate(_rows(path, file, group, columns, rows)):
                number = len(found.items)
                values |= dict.fromkeys(unread)
                for name, names in classes.items():
                    known = isinstance(values[name], int) and 0 <= values[name] < len(names)
                    values[name] = values[name] if known else None
                if split is not None and "split" not in schema.names:
                    values["split"] = split[1]
                item = place.item(str(number), size, columns=values, member=member(row, chosen))
                files = {
                    field: ItemFile(f"{item.name}.{field}", str(path), size, place.mtime_ns, member(row, name))
                    for field, name in others.items()
                }
                found.items.append(item._replace(files=files))
        found.classes = classes
    return found


def _member(
    place: ListedArchive, names: list[str], candidates: Mapping[str, bool], group: int, row: int, name: str
) -> Member:
    return Member("parquet", (group, row, names.index(name), 0 if candidates[name] else -1), place.bytes)


def _rows(path: Path, file: Any, group: int, columns: list[str], rows: int) -> Iterator[dict[str, Any]]:
    if not columns:
        yield from ({} for _ in range(rows))
        return
    first = sum(file.metadata.row_group(before).num_rows for before in range(group))
    with reading_parquet(path):
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
            chunk = chunk_of_batch(batch.select(columns), first, path)
            first += chunk.rows
            yield from chunk.to_rows()


def _is_dropped(name: str, names: Collection[str], dropped: Collection[str]) -> bool:
    """Return whether ``--drop`` names a column by its own name or by its prefixed name."""
    renamed = f"{PREFIX}_{name.lower()}"
    return name in dropped or (renamed in dropped and renamed not in names)


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Return the class names of the columns without images."""
    others = set(schema.names) - set(_image_columns(schema))
    return {name: names for name, names in class_labels(schema.metadata).items() if name in others}

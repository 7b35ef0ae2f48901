"""A dataset with missing values in every kind of small field, and SQL's answers about them."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from shardspec.columns import Columns
from shardspec.schema import Schema
from support.datasets import fixed, text, write_dataset

ROWS = 24
WITHOUT = {"person": 3, "fake_score": 4, "name": 5, "flag": 6, "label": 8}
"""Fields, and in which rows their values are missing: in every n-th."""

SCHEMA = Schema(
    (
        text("key"),
        text("source"),
        fixed("image", "|u1", 8, 8, 3),
        fixed("frame", "<i8"),
        fixed("label", "<i8"),
        fixed("person", "<i4"),
        fixed("fake_score", "<f4"),
        text("name"),
        fixed("flag", "|b1"),
        *(fixed(f"{name}_valid", "|b1") for name in WITHOUT),
    )
)

EXPRESSIONS = (
    "person == 0",
    "person != 0",
    "not (person == 0)",
    "0 == person",
    "person > 1",
    "not person <= 1",
    "person in [0, 2]",
    "person not in [0, 2]",
    "not (person not in [0, 2])",
    "fake_score < 0.1",
    "0.2 < fake_score <= 0.75",
    "not (0.2 < fake_score <= 0.75)",
    "name == ''",
    "name != 'b'",
    "name in ['a', 'b']",
    "name not in ['a']",
    "name > 'a'",
    "flag",
    "not flag",
    "flag == False",
    "fake_score < person",
    "not (fake_score < person)",
    "person == 0 or flag",
    "not (person == 0 or flag)",
    "person == 0 and flag",
    "not (person == 0 and flag)",
    "not (person == 0 and not flag) or fake_score > 0.5",
    "person is missing",
    "person is not missing and flag is missing",
    "not (name is missing)",
    "label == 0",
    "label != 1",
    "label is missing or label == 1",
    "frame < 5 or person > 99",
    "person_valid and not name_valid",
)
"""Conditions that are valid in SQL too, with other operators."""


def write_missing(root: Path, format: str = "npy") -> Columns:
    """Write the dataset, with sentinels in place of missing values; returns its columns."""
    number = np.arange(ROWS)
    valid = {f"{name}_valid": number % every != every - 1 for name, every in WITHOUT.items()}
    values = {
        "key": [f"{n // 8:08d}-{n % 8:06d}" for n in range(ROWS)],
        "source": [f"{n // 8}.mp4" for n in range(ROWS)],
        "image": np.zeros((ROWS, 8, 8, 3), np.uint8),
        "frame": number % 8,
        "label": np.where(valid["label_valid"], number % 2, -1),
        "person": np.where(valid["person_valid"], number % 4, 0).astype(np.int32),
        "fake_score": np.where(valid["fake_score_valid"], number / ROWS, 0).astype(np.float32),
        "name": [["", "a", "b", "c"][n % 4] if valid["name_valid"][n] else "" for n in range(ROWS)],
        "flag": valid["flag_valid"] & (number % 3 == 0),
    }
    columns: Columns = values | valid
    write_dataset(root, format, SCHEMA, columns, shard_rows=7)
    return columns


def known(columns: Columns, name: str) -> list[Any]:
    """The values of a field, None where they are missing."""
    mark = columns.get(f"{name}_valid", np.ones(ROWS, np.bool_))
    values = columns[name].tolist() if isinstance(columns[name], np.ndarray) else columns[name]
    return [value if there else None for value, there in zip(values, mark, strict=True)]


def sql_rows(columns: Columns, expression: str) -> list[int]:
    """The rows that SQLite selects by an expression."""
    names = [name for name in columns if name != "image"]
    database = sqlite3.connect(":memory:")
    database.execute(f"CREATE TABLE samples ({', '.join(names)})")
    rows = zip(*(known(columns, name) for name in names), strict=True)
    database.executemany(f"INSERT INTO samples VALUES ({', '.join('?' * len(names))})", rows)
    where = expression.replace("missing", "NULL").replace("[", "(").replace("]", ")")
    if (
        "<" in expression and " <= " in expression and expression.count("fake_score") == 1
    ):  # SQL has no chained comparisons
        where = where.replace("0.2 < fake_score <= 0.75", "(0.2 < fake_score AND fake_score <= 0.75)")
    found = database.execute(f"SELECT rowid - 1 FROM samples WHERE {where} ORDER BY rowid")
    return [row for (row,) in found]

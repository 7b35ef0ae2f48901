"""Datasets of each kind of source and command have the contents that they had before."""

import json
from pathlib import Path

import pytest
from support.frozen import DATASETS, FROZEN, describe


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_is_what_it_was(tmp_path: Path, name: str) -> None:
    assert describe(DATASETS[name](tmp_path)) == json.loads(FROZEN.read_text())[name]

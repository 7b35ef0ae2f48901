"""Metadata that Hugging Face's ``datasets`` writes into a Parquet file."""

import json
from collections.abc import Mapping
from typing import Any

_TYPE = "ClassLabel"


def class_labels(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return the class names of each column of type ``ClassLabel``; malformed entries are ignored.

    Parameters
    ----------
    metadata : dict of bytes to bytes, or None
        That of the schema.
    """
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"].items()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        column: feature["names"]
        for column, feature in features
        if isinstance(feature, dict) and feature.get("_type", _TYPE) == _TYPE and _are_classes(feature.get("names"))
    }


def _are_classes(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)

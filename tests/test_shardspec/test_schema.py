"""Fields and schemas: what they accept, what they refuse, and their JSON."""

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import fields, json_values, schemas

from shardspec.codecs import CODECS, CodecEntry
from shardspec.errors import Problems, SchemaError
from shardspec.schema import Field, NamedConfig, Schema


def through_json(document: Any) -> Any:
    """A document as it comes back from a file."""
    return json.loads(json.dumps(document))


class CountedTable(dict[str, CodecEntry]):
    """A table of codecs that counts its look-ups."""

    found = 0

    def get(self, *arguments: Any) -> Any:
        """Count a look-up."""
        self.found += 1
        return super().get(*arguments)


def test_a_field_looks_its_codec_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = CountedTable(CODECS)
    monkeypatch.setattr("shardspec.schema.CODECS", table)
    image = Field("image", "bytes", "|u1", (None, None, 3), NamedConfig("png"))
    assert [(image.is_encoded_image, image.is_encoded_video, image.is_image) for _ in range(3)] == 3 * [
        (True, False, True)
    ]
    assert table.found == 1


@given(schemas())
def test_a_schema_round_trips(schema: Schema) -> None:
    problems = Problems()
    assert Schema.from_json(through_json(schema.to_json()), problems) == schema
    assert not problems


@given(fields())
def test_a_field_knows_its_bytes(field: Field) -> None:
    if field.is_fixed:
        assert field.row_bytes == np.empty(field.fixed_shape, field.dtype).nbytes
    elif field.kind == "ragged":
        assert field.row_bytes == np.empty(field.shape[1:], field.dtype).nbytes  # type: ignore[arg-type]
    else:
        with pytest.raises(SchemaError, match="no fixed shape"):
            _ = field.fixed_shape


@given(schemas())
def test_a_schema_is_a_collection_of_its_fields(schema: Schema) -> None:
    assert len(schema) == len(list(schema)) == len(schema.names)
    assert all(field.name in schema and schema[field.name] is field for field in schema)
    assert "no such field" not in schema
    with pytest.raises(SchemaError, match="there is no field 'no such field'"):
        schema["no such field"]
    assert schema.select(None) is schema
    backwards = list(reversed(schema.names))
    assert schema.select(backwards).names == tuple(backwards)


@given(st.data())
def test_no_document_makes_it_raise(data: st.DataObject) -> None:
    """Whatever is in a document, every problem is reported and nothing but a schema comes out."""
    document = data.draw(schemas()).to_json()
    entry = document["fields"][0]
    place = data.draw(st.sampled_from([*entry, "unknown"]))
    broken = copy.deepcopy(document)
    broken["fields"][0][place] = data.draw(json_values)
    for candidate in (broken, data.draw(json_values), {"fields": data.draw(json_values)}):
        problems = Problems()
        made = Schema.from_json(through_json(candidate), problems)
        assert (made is None) == bool(problems)


def test_every_problem_of_a_field_is_reported_at_once() -> None:
    with pytest.raises(SchemaError) as caught:
        Field("Not A Name", "fixed", "<c8", (None, -1), NamedConfig("jpeg"), classes=("a",))
    message = str(caught.value)
    for part in (
        "name: expected",
        "'Not A Name'",
        "dtype: expected",
        "'<c8'",
        "codec: expected",
        "'jpeg'",
        "varying axis",
        "0 and more",
        "classes",
    ):
        assert part in message, part


def test_every_problem_of_a_schema_is_reported_with_its_place() -> None:
    good = Field("a", "fixed", "<f4", (2,)).to_json()
    document = {
        "fields": [
            good,
            {**good, "name": 1},
            {**good, "shape": "2"},
            {**good, "kind": "fixed", "dtype": "f4", "extra": 0},
            7,
        ]
    }
    problems = Problems()
    assert Schema.from_json(document, problems) is None
    text = "; ".join(map(str, problems.found))
    for place in (
        "fields[1].name: expected str, found int",
        "fields[2].shape: expected list",
        "fields[3].extra: unknown key",
        "fields[4]: expected an object",
    ):
        assert place in text, text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "key\n"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a" * 64}, "at most 63 characters"),
        ({"name": "../x"}, "name"),
        ({"kind": "pickled"}, "kind: expected one of"),
        ({"dtype": ">f4"}, "dtype"),
        ({"dtype": "|O"}, "dtype"),
        ({"shape": [True]}, "shape"),
        ({"shape": [1.0]}, "shape"),
        ({"shape": [-1]}, "shape"),
        ({"shape": [2**40, 2**40]}, "shape"),
        ({"shape": [10**30]}, "shape"),
        ({"shape": [1] * 100}, "shape"),
        ({"shape": [None]}, "shape"),
        ({"kind": "ragged", "shape": []}, "shape"),
        ({"kind": "ragged", "shape": [2, None]}, "shape"),
        ({"kind": "text"}, "codec"),
        ({"kind": "bytes", "codec": {"name": "jpeg", "configuration": {}}}, "codec"),
        ({"codec": {"name": "pickle", "configuration": {}}}, "codec: expected one of raw"),
        ({"codec": {"name": "raw"}}, "configuration: expected, but missing"),
        ({"codec": []}, "codec: expected dict"),
        ({"classes": [1]}, "classes"),
        ({"classes": ["a"]}, "classes"),
        ({"classes": [], "dtype": "", "shape": []}, "dtype"),
        ({"classes": ["\udc80"], "dtype": "<i8", "shape": []}, "classes"),
        ({"layout": 5}, "layout"),
    ],
)
def test_a_field_that_breaks_a_rule_is_refused(change: dict[str, Any], message: str) -> None:
    document = Field("a", "fixed", "<f4", (2, 3)).to_json() | change
    problems = Problems()
    assert Field.from_json(through_json(document), problems) is None or problems
    assert message in "; ".join(map(str, problems.found))


def test_names_are_unique_and_there_is_at_least_one() -> None:
    field = Field("a", "fixed", "<f4", ())
    with pytest.raises(SchemaError, match="found more than once: a"):
        Schema((field, field))
    problems = Problems()
    assert Schema.from_json({"fields": []}, problems) is None
    assert "at least one" in "; ".join(map(str, problems.found))

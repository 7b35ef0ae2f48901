"""Lines of JSON are those of the standard library."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.workspace.durable import line_encoder

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES, st.fixed_dictionaries({}, optional={"sort_keys": st.just(True), "ensure_ascii": st.just(False)}))
def test_they_are_those_of_the_standard_library(value: Any, options: dict[str, Any]) -> None:
    assert line_encoder(**options)(value) == json.JSONEncoder(**options).encode(value)
    assert line_encoder(separators=(",", ":"))((value, "é")) == json.dumps([value, "é"], separators=(",", ":"))


def test_what_is_no_json_is_refused() -> None:
    encode = line_encoder(allow_nan=False)
    with pytest.raises(ValueError, match="JSON compliant"):
        encode([float("nan")])
    with pytest.raises(TypeError, match="not JSON serializable"):
        encode({"a": object()})
    knot: list[Any] = []
    knot.append(knot)
    with pytest.raises(RecursionError):
        encode(knot)
    assert encode([1]) == "[1]"

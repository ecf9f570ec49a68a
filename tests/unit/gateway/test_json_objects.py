"""The division of a streamed body into JSON objects, with Python's JSON decoder as the oracle."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_gateway.errors import RestError
from odradek_gateway.rest.v3.records import JsonObjects

TEXT = st.text(alphabet='"\\{}[]a é\n', max_size=8)
VALUES = st.recursive(
    TEXT | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(TEXT, VALUES, max_size=3), max_size=4)


def divided(body: bytes, cuts: list[int]) -> list[Any]:
    objects = JsonObjects(bytes_max=1_000_000)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    found = [
        json.loads(item)
        for start, end in itertools.pairwise(edges)
        for item in objects.feed(body[start:end])
    ]
    objects.close()
    return found


@given(
    OBJECTS,
    st.sampled_from(["", " ", "\r\n"]),
    st.booleans(),
    st.lists(st.integers(0, 300), max_size=6),
)
def test_objects_are_found_wherever_the_body_is_cut(
    values: list[Any], between: str, ascii_only: bool, cuts: list[int]
) -> None:
    body = between.join(json.dumps(value, ensure_ascii=ascii_only) for value in values).encode()
    assert divided(body, cuts) == values
    assert divided(body, list(range(len(body)))) == values


@pytest.mark.parametrize("body", [b'{"a": 1', b'{"a": "', b'{"a": "\\', b'{"a": [}', b"{"])
def test_an_object_that_does_not_end_is_refused(body: bytes) -> None:
    with pytest.raises(RestError, match="ends within a record"):
        divided(body, [])

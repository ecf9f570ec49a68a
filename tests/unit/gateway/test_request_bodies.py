"""Bodies of produce requests: which ones are accepted or refused, and that openapi.json's schema agrees."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_gateway.errors import RestError
from odradek_gateway.rest.records import FORMATS

KEYS = ["key", "value", "partition", "headers", "timestamp", "valu"]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
NEARLY = (  # of the right type often enough
    JSON_VALUES
    | st.binary(max_size=6).map(lambda data: base64.b64encode(data).decode())
    | st.integers(-2, 2**31 + 1)
    | st.lists(st.fixed_dictionaries({"name": st.text(max_size=3)}), max_size=2)
)
BODIES = st.fixed_dictionaries(
    {"records": st.lists(st.dictionaries(st.sampled_from(KEYS), NEARLY, max_size=3), max_size=3)}
)


def schema_of(form: str) -> dict[str, Any]:
    content = FORMATS[form].body.openapi["requestBody"]["content"]
    schema: dict[str, Any] = next(iter(content.values()))["schema"]
    return schema


@pytest.mark.parametrize("form", ["binary", "json"])
@given(body=BODIES | JSON_VALUES)
def test_a_body_is_taken_exactly_when_its_schema_allows_it(form: str, body: Any) -> None:
    text = json.dumps(body).encode()
    is_valid = jsonschema.Draft202012Validator(schema_of(form)).is_valid(body)
    refusal = None
    try:
        FORMATS[form].body.decode(text)
    except RestError as error:
        refusal = (error.status, error.error_code)
    assert refusal == (None if is_valid else (422, 422))


@given(st.lists(JSON_VALUES, min_size=1, max_size=5))
def test_json_values_become_their_own_text(values: list[Any]) -> None:
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    body = '{"records": [' + ",".join(f'{{"value": {text}}}' for text in texts) + "]}"
    form = FORMATS["json"]
    sent = [form.outgoing(record) for record in form.body.decode(body.encode()).records]
    expected = [
        None if value is None else text.encode() for value, text in zip(values, texts, strict=True)
    ]
    assert [record.value for record in sent] == expected


@given(st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=5))
def test_binary_values_are_what_base64_says(values: list[bytes | None]) -> None:
    form = FORMATS["binary"]
    records = [{"value": form.from_bytes(value)} for value in values]
    body = form.body.decode(json.dumps({"records": records}).encode())
    sent = [form.outgoing(record) for record in body.records]
    assert [record.value for record in sent] == values


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"records": [{"value": "\xff"}]}',
        b'{"records": [{"value": "\xff"}]} ',
        b'{"records": [{}]} x',
    ],
)
@pytest.mark.parametrize("form", ["binary", "json"])
def test_what_is_no_json_is_400(form: str, body: bytes) -> None:
    with pytest.raises(RestError) as refused:
        FORMATS[form].body.decode(body)
    assert refused.value.status == 400


@pytest.mark.parametrize("body", [b"", b"  "])
@pytest.mark.parametrize("form", ["binary", "json"])
def test_a_body_of_no_bytes_is_422_in_v2(form: str, body: bytes) -> None:
    with pytest.raises(RestError) as refused:
        FORMATS[form].body.decode(body)
    assert (refused.value.status, refused.value.error_code) == (422, 422)


def test_json_that_is_too_deep_is_400() -> None:
    with pytest.raises(RestError) as refused:
        FORMATS["json"].body.decode(b'{"records": [{"value": ' + b"[" * 100_000)
    assert refused.value.status == 400

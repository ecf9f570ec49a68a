"""Long bodies of produce requests are decoded in pieces, with the same result as in one piece."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_gateway.errors import RestError
from odradek_gateway.rest import record_lists
from odradek_gateway.rest.records import FORMATS
from tests.unit.gateway.test_request_bodies import BODIES, JSON_VALUES

RECORD_BYTES_MAX = 8 << 20
PIECES = st.sampled_from([-1, 7, 40])
TEXTS = st.sampled_from(
    [
        '{"records": [{"value": 1}, {"value": "}],{"}]}',
        '{"a": {"records": [{}]}, "records": [ {"value": [{}, {"b": []}]} , {} ], "b": ["records"]}',
        '{"records" : [ 1 ]}',
        '{"records": [{}] , "records": [{}]}',
        '{"records": [{},]}',
        '{"records": [,{}]}',
        '{"records": [{}{}]}',
        '{"records": [{} {}]}',
        '{"records": [{}, 1, {}]}',
        '{"records": [{}, {}',
        '{"records": [{}, {"value": "',
        '{"records": [{}, {}]',
        '{"records": [{}]}]',
        '{"records": [{}]} {}',
        '{"records": []}',
        '{"records": null}',
        '{"records": [[{}], {}]}',
        '["records", [{}]]',
        '{"key_schema_id": "x", "records": [{}]}',
        '{"records": [{"value": "\\\\"}, {"value": "\\\\\\""}], "records": 1}',
        "",
    ]
)


async def decode(form: str, text: bytes) -> Any:
    try:
        return await FORMATS[form].records.decode(
            bytearray(text), record_bytes_max=RECORD_BYTES_MAX
        )
    except RestError as error:
        return error.status, error.error_code


@pytest.mark.parametrize("form", ["binary", "json"])
@given(
    text=st.builds(json.dumps, BODIES | JSON_VALUES) | TEXTS,
    piece_bytes=PIECES,
    damage=st.tuples(st.integers(0, 60), st.sampled_from(["", "{", "}", "]", '"', ",", "\\"]))
    | st.none(),
)
def test_pieces_decode_to_what_the_whole_decodes_to(
    form: str, text: str, piece_bytes: int, damage: tuple[int, str] | None
) -> None:
    if damage is not None:
        at, character = damage
        text = text[:at] + character + text[at + 1 :]
    with pytest.MonkeyPatch.context() as patch:
        whole = asyncio.run(decode(form, text.encode()))
        patch.setattr(record_lists, "PIECE_BYTES", piece_bytes)
        in_pieces = asyncio.run(decode(form, text.encode()))
    if isinstance(whole, list):
        assert in_pieces == whole or in_pieces == (400, 400)  # records twice
        assert in_pieces == whole or text.count('"records"') > 1
    else:
        assert not isinstance(in_pieces, list)


async def test_a_long_body_gives_turns_and_names_the_wrong_record() -> None:
    records = [{"value": "dmFsdWU="}] * 40_000
    text = json.dumps({"records": records}).encode()
    work = asyncio.create_task(decode("binary", text))
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(work.result()) == 40_000
    assert turns > len(text) // record_lists.PIECE_BYTES
    records[30_000] = {"value": "?"}
    text = json.dumps({"records": records}).encode()
    with pytest.raises(RestError, match=r"\$\.records\[30000\]\.value"):
        await FORMATS["binary"].records.decode(bytearray(text), record_bytes_max=RECORD_BYTES_MAX)


@pytest.mark.parametrize("count", [0, 50_001])
async def test_the_number_of_records_is_bounded_in_long_bodies(count: int) -> None:
    text = json.dumps({"records": [{}] * count, "key_schema": " " * 300_000}).encode()
    assert await decode("binary", text) == (422, 422)


async def test_a_record_above_the_limit_is_refused() -> None:
    text = b'{"records": [{}, {"value": "%b"}]}' % (b"AAAA" * 300_000)
    with pytest.raises(RestError, match="a record is larger than 1000000 bytes"):
        await FORMATS["binary"].records.decode(bytearray(text), record_bytes_max=1_000_000)

"""A listener recognizes a client of another protocol by its first bytes, and refuses it in that protocol."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_runtime.listeners import GRPC, HTTP, KAFKA, TLS, farewell, recognize

KAFKA_FRAME_BYTES_MAX = 100 * 1024 * 1024


@pytest.mark.parametrize(
    ("sent", "protocol"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", GRPC),
        (b"GET / HTTP/1.1\r\n", HTTP),
        (b"POST /topics HTTP/1.1\r\n", HTTP),
        (b"\x16\x03\x01\x02\x00", TLS),
        (struct.pack(">ihhi", 20, 18, 0, 1), KAFKA),
        (b"\x80\x00\x00\x00", None),
        (b"", None),
    ],
)
def test_each_protocol_is_known_by_its_first_bytes(sent: bytes, protocol: str | None) -> None:
    assert recognize(sent[:4]) == protocol


@given(st.integers(1, KAFKA_FRAME_BYTES_MAX))
def test_no_frame_that_a_kafka_client_may_send_is_taken_for_another_protocol(size: int) -> None:
    assert recognize(struct.pack(">i", size)) in (None, KAFKA)


def test_the_farewell_to_grpc_is_settings_and_a_goaway_with_the_advice() -> None:
    sent = farewell(GRPC, "elsewhere")
    assert sent[:9] == b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    length = int.from_bytes(sent[9:12], "big")
    assert sent[12:14] == b"\x07\x00"
    assert sent[18:] == struct.pack(">II", 0, 0xD) + b"elsewhere"
    assert length == len(sent) - 18


def test_advice_of_any_length_fits_into_one_frame() -> None:
    assert len(farewell(GRPC, "x" * 100_000)) < 2_000


def test_the_farewell_to_http_is_a_whole_response() -> None:
    head, _, body = farewell(HTTP, "elsewhere").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert f"Content-Length: {len(body)}".encode() in head
    assert body == b"elsewhere\n"

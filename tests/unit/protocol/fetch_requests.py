"""Draws Fetch requests, most of them well-formed, for tests of the decoders and for the fuzzer."""

from __future__ import annotations

import random
import struct

from odradek_protocol.kafka import fetch
from odradek_protocol.primitives import write_compact_string, write_string, write_uvarint
from tests.unit.protocol.produce_requests import NAMES

NUMBERS = [0, 7, -1, (1 << 31) - 1]
OFFSETS = [0, 12, -1, 1 << 40, (1 << 63) - 1]


def fetch_body(draw: random.Random, version: int) -> bytes:
    """Draw a Fetch request, mostly a well-formed one."""
    out = bytearray()
    is_flexible = version >= fetch.FLEXIBLE

    def count(number: int) -> None:
        if is_flexible:
            write_uvarint(out, number + 1)
        else:
            out.extend(struct.pack(">i", number))

    def text(value: str | None) -> None:
        (write_compact_string if is_flexible else write_string)(out, value)

    def number() -> None:
        out.extend(struct.pack(">i", draw.choice(NUMBERS)))

    def offset() -> None:
        out.extend(struct.pack(">q", draw.choice(OFFSETS)))

    def topic() -> None:
        if version >= fetch.WITH_TOPIC_IDS:
            out.extend(draw.randbytes(16))
        else:
            text(draw.choice(NAMES))

    def no_tags() -> None:
        if is_flexible:
            out.extend(draw.choice([b"\0"] * 9 + [b"\1\5\2xy"]))

    for _ in range(3 + (version < fetch.WITH_REPLICA_STATE)):
        number()
    out.append(draw.choice([0, 1, 0xFF]))
    if version >= fetch.WITH_SESSIONS:
        number()
        number()
    topics = draw.choice([0, 1, 1, 1, 3])
    count(topics)
    for _ in range(topics):
        topic()
        partitions = draw.choice([0, 1, 1, 5, 70])
        count(partitions)
        for _ in range(partitions):
            number()
            if version >= fetch.WITH_EPOCHS:
                number()
            offset()
            if version >= fetch.FLEXIBLE:
                number()
            if version >= 5:
                offset()
            number()
            no_tags()
        no_tags()
    if version >= fetch.WITH_SESSIONS:
        forgotten = draw.choice([0, 0, 0, 2])
        count(forgotten)
        for _ in range(forgotten):
            topic()
            indexes = draw.choice([0, 1, 3])
            count(indexes)
            for _ in range(indexes):
                number()
            no_tags()
    if version >= fetch.WITH_RACKS:
        text(draw.choice(["", "", "a rack", None, "r" * 300, "r" * 32_768][: 4 + is_flexible * 2]))
    no_tags()
    return bytes(out)

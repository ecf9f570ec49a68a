"""Draws Produce requests, most of them well-formed, for tests of the decoders and for the
fuzzer.
"""

from __future__ import annotations

import random
import struct

from odradek_protocol.identity import TOPIC_NAME_BYTES_MAX
from odradek_protocol.kafka import produce
from odradek_protocol.primitives import write_compact_string, write_string, write_uvarint

NAMES = ["a", "orders", "ключ", "n" * TOPIC_NAME_BYTES_MAX, "n" * (TOPIC_NAME_BYTES_MAX + 1), ""]


def produce_body(draw: random.Random, version: int) -> bytes:
    """Draw a Produce request, mostly a well-formed one."""
    out = bytearray()
    is_flexible = version >= produce.FLEXIBLE

    def count(number: int) -> None:
        if is_flexible:
            write_uvarint(out, number + 1)
        else:
            out.extend(struct.pack(">i", number))

    def text(value: str | None) -> None:
        (write_compact_string if is_flexible else write_string)(out, value)

    text(draw.choice([None, None, "tx", "ид", "t" * 32_766, "t" * 32_767]))
    out += struct.pack(">hi", draw.choice([-1, 0, 1, 9]), draw.choice([0, 30_000, -1]))
    topics = draw.choice([0, 1, 1, 1, 3])
    count(topics)
    for _ in range(topics):
        if version >= produce.WITH_TOPIC_IDS:
            out += draw.randbytes(16)
        else:
            text(draw.choice(NAMES))
        partitions = draw.choice([0, 1, 1, 5, 200])
        count(partitions)
        for _ in range(partitions):
            out += struct.pack(">i", draw.choice([0, 7, -1, (1 << 31) - 1]))
            size = draw.choice([-1, 0, 1, 100, 300])
            count(size)
            out += draw.randbytes(max(size, 0))
            if is_flexible:
                out += draw.choice([b"\0", b"\0", b"\0", b"\0", b"\1\5\2xy"])
        if is_flexible:
            out.append(0)
    if is_flexible:
        out.append(0)
    return bytes(out)


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Return the bytes, unchanged or with one change."""
    kind = draw.randrange(6)
    at = draw.randrange(len(data)) if data else 0
    nasty = draw.choice([b"\xff" * 5, b"\x80\0", b"\x80" * 6, b"\x7f\xff\xff\xff", b"\xff", b"\0"])
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + nasty + data[at:]
    if kind == 2:
        return data[:at] + nasty + data[at + len(nasty) :]
    if kind == 3:
        return data + draw.choice([b"\0", b"x"])
    return data

"""Reading the values of `__consumer_offsets`, field by field."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from odradek_protocol.identity import TopicId
from odradek_protocol.primitives import (
    Malformed,
    read_array_count,
    read_bytes,
    read_compact_array_count,
    read_compact_bytes,
    read_string,
    read_tagged_fields,
)

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
_UUID_BYTES: Final = 16


class RecordReader:
    """A position in a value; every read is checked against its end."""

    __slots__ = ("buffer", "position")

    def __init__(self, buffer: bytes) -> None:
        self.buffer, self.position = buffer, 0

    def number(self, form: struct.Struct) -> int:
        try:
            (value,) = form.unpack_from(self.buffer, self.position)
        except struct.error as error:
            raise Malformed(f"a record of groups ends at {len(self.buffer)}: {error}") from None
        self.position += form.size
        return int(value)

    def text(self, read: Callable[[bytes, int], tuple[str | None, int]] = read_string) -> str:
        return self.maybe_text(read) or ""

    def maybe_text(
        self, read: Callable[[bytes, int], tuple[str | None, int]] = read_string
    ) -> str | None:
        value, self.position = read(self.buffer, self.position)
        return value

    def blob(self) -> bytes:
        value, self.position = read_bytes(self.buffer, self.position)
        return value or b""

    def compact_blob(self) -> bytes:
        value, self.position = read_compact_bytes(self.buffer, self.position)
        return value or b""

    def count(self) -> int:
        value, self.position = read_array_count(self.buffer, self.position)
        return max(0, value)

    def compact_count(self) -> int:
        value, self.position = read_compact_array_count(self.buffer, self.position)
        return max(0, value)

    def uuid(self) -> TopicId:
        value = self.buffer[self.position : self.position + _UUID_BYTES]
        if len(value) != _UUID_BYTES:
            raise Malformed(f"a record of groups ends at {len(self.buffer)} within a topic id")
        self.position += _UUID_BYTES
        return TopicId(value)

    def tags(self) -> dict[int, bytes]:
        tags, self.position = read_tagged_fields(self.buffer, self.position)
        return tags

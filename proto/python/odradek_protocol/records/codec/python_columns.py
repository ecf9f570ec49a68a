"""Decodes records into Arrow's buffers, in Python: the reference of the C codec's `RecordColumns`."""

from __future__ import annotations

from array import array
from typing import Final, TypeAlias

from odradek_protocol.primitives import ByteBuffer, Malformed
from odradek_protocol.records.codec.python_codec import (
    check_batch,
    check_end,
    check_offset_delta,
    read_record,
)
from odradek_protocol.records.errors import CorruptBatch

BinaryBuffers: TypeAlias = tuple[int, bytearray | None, bytearray, bytearray]
HeaderBuffers: TypeAlias = tuple[bytearray, BinaryBuffers, BinaryBuffers]
ColumnBuffers: TypeAlias = tuple[
    int,
    BinaryBuffers | None,
    BinaryBuffers | None,
    HeaderBuffers | None,
    bytearray | None,
    bytearray | None,
]

_KEY: Final = 1
_VALUE: Final = 2
_HEADERS: Final = 4
_OFFSET: Final = 8
_TIMESTAMP: Final = 16
_COLUMN_BYTES_MAX: Final = (1 << 31) - 1
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


class RecordColumns:
    """Columns as they grow. `columns` is a sum of `columns.Column`; timestamps are multiplied."""

    def __init__(self, columns: int, timestamp_factor: int = 1, /) -> None:
        if columns & ~31 or timestamp_factor not in (1, 1000):
            raise ValueError(f"columns {columns}, timestamp factor {timestamp_factor}")
        self._wanted = columns
        self._factor = timestamp_factor
        self._reset()

    def _reset(self) -> None:
        self.row_count = 0
        self._key, self._value = _Binary(), _Binary()
        self._header_offsets = array("i", [0])
        self._header_key, self._header_value = _Binary(), _Binary()
        self._offsets, self._timestamps = array("q"), array("q")

    @property
    def size_bytes(self) -> int:
        """The size of keys, values and headers so far."""
        columns = (self._key, self._value, self._header_key, self._header_value)
        return sum(len(column.data) for column in columns)

    def append(
        self,
        data: ByteBuffer,
        record_count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp_ms: int,
        append_time_ms: int | None,
        start_offset: int,
        /,
    ) -> int:
        """Add the records of one batch; arguments are those of `RecordReader`. Returns the rows.

        All or nothing: after CorruptBatch or OverflowError the columns are as before.
        """
        check_batch(len(data), record_count, base_offset, last_offset_delta)
        if self.size_bytes + len(data) * 3 > _COLUMN_BYTES_MAX:
            raise OverflowError("columns of more than 2 GiB")
        rows: list[tuple[bytes | None, bytes | None, int, int]] = []
        headers: list[tuple[tuple[str, bytes | None], ...]] = []
        position, delta = 0, -1
        try:
            for _ in range(record_count):
                parsed, position = read_record(data, position)
                delta = check_offset_delta(parsed.offset_delta, delta, last_offset_delta)
                if base_offset + delta < start_offset:
                    continue
                timestamp = append_time_ms
                if timestamp is None:
                    timestamp = base_timestamp_ms + parsed.timestamp_delta_ms
                    _check_timestamp(timestamp)
                rows.append((parsed.key, parsed.value, base_offset + delta, timestamp))
                headers.append(parsed.headers)
            check_end(data, position)
        except Malformed as error:
            raise CorruptBatch(str(error)) from None
        if self._wanted & _TIMESTAMP and self._factor != 1:
            for *_, timestamp in rows:
                _check_timestamp(timestamp * self._factor)
        for key, value, offset, timestamp in rows:
            if self._wanted & _KEY:
                self._key.append(key)
            if self._wanted & _VALUE:
                self._value.append(value)
            if self._wanted & _OFFSET:
                self._offsets.append(offset)
            if self._wanted & _TIMESTAMP:
                self._timestamps.append(timestamp * self._factor)
        if self._wanted & _HEADERS:
            self._append_headers(headers)
        self.row_count += len(rows)
        return len(rows)

    def finish(self) -> ColumnBuffers:
        """Return (rows, key, value, headers, offset, timestamp). The columns are empty afterwards."""
        wanted = self._wanted
        result = (
            self.row_count,
            self._key.finish() if wanted & _KEY else None,
            self._value.finish() if wanted & _VALUE else None,
            (
                bytearray(self._header_offsets.tobytes()),
                self._header_key.finish(),
                self._header_value.finish(),
            )
            if wanted & _HEADERS
            else None,
            bytearray(self._offsets.tobytes()) if wanted & _OFFSET else None,
            bytearray(self._timestamps.tobytes()) if wanted & _TIMESTAMP else None,
        )
        self._reset()
        return result

    def _append_headers(self, rows: list[tuple[tuple[str, bytes | None], ...]]) -> None:
        for headers in rows:
            for name, value in headers:
                raw = name.encode("utf-8", "surrogateescape")
                self._header_key.append(raw.decode("utf-8", "replace").encode())
                self._header_value.append(value)
            self._header_offsets.append(self._header_offsets[-1] + len(headers))


class _Binary:
    """One growing Arrow `binary` column."""

    __slots__ = ("_nulls", "_offsets", "data")

    def __init__(self) -> None:
        self._nulls: list[int] = []
        self._offsets = array("i", [0])
        self.data = bytearray()

    def append(self, item: bytes | None) -> None:
        if item is None:
            self._nulls.append(len(self._offsets) - 1)
        else:
            self.data += item
        self._offsets.append(len(self.data))

    def finish(self) -> BinaryBuffers:
        validity = None
        rows = len(self._offsets) - 1
        if self._nulls:
            bits = (1 << rows) - 1
            for row in self._nulls:
                bits &= ~(1 << row)
            validity = bytearray(bits.to_bytes((rows + 7) // 8, "little"))
        return len(self._nulls), validity, bytearray(self._offsets.tobytes()), self.data


def _check_timestamp(timestamp: int) -> None:
    if not _INT64_MIN <= timestamp <= _INT64_MAX:
        raise CorruptBatch(f"timestamp {timestamp} has more than 64 bits")

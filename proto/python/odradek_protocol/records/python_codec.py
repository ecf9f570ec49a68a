"""The record codec in Python. It is the reference for the C codec (`_codec.c`).

Both codecs have the same functions and classes with the same results and kinds of errors, and tests compare them. In a
batch, after decompression, a record is encoded as follows:

    length      varint   of the fields that follow, in bytes
    attributes  int8     unused
    timestamp   varlong  delta to the batch's base timestamp, ms
    offset      varint   delta to the batch's base offset
    key         varint   length, or -1 for null; bytes
    value       varint   length, or -1 for null; bytes
    headers     varint   count; each a key (varint length, UTF-8) and a value (like the record's)

Like Kafka's own readers, the decoder accepts varints that are longer than necessary, and any attributes. It refuses
lengths below -1, a record that does not end where its length says, offsets that do not rise, and bytes after the last
record, because they are signs of damage. Source: Kafka's DefaultRecord.java.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import google_crc32c

from odradek_protocol.primitives import (
    ByteBuffer,
    Malformed,
    read_varint,
    read_varlong,
    varint_size_bytes,
    write_varint,
)
from odradek_protocol.records.errors import CorruptBatch

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

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

UsualProduceTopic: TypeAlias = tuple[str | None, bytes, list[tuple[int, memoryview | None]]]
"""A topic of a Produce request: its name (up to version 12), its id, and the index and records of each partition."""
UsualProduce: TypeAlias = tuple[str | None, int, int, list[UsualProduceTopic]]
UsualProducedTopic: TypeAlias = tuple[str | None, bytes, list[tuple[int, int, int, int, int]]]
"""A topic of a Produce response: its name, its id, and for each partition the index, error code, base offset, append
time in ms, and log start offset.
"""

RECORD_BYTES_MIN: Final = 7
_HEADER_BYTES: Final = 61
_BYTES_MAX: Final = (1 << 31) - 1
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_CRC_PIECE_BYTES: Final = 128 * 1024
_KEY: Final = 1
_VALUE: Final = 2
_HEADERS: Final = 4
_OFFSET: Final = 8
_TIMESTAMP: Final = 16
_COLUMN_BYTES_MAX: Final = (1 << 31) - 1


@dataclass(slots=True)
class Record:
    """A decoded record. Treat it as immutable, because the C codec's class of the same name is immutable.

    `timestamp_ms` and `offset` are -1 if they are unknown, as in a record that is not written yet. `topic`, `partition`
    and `leader_epoch` are the values that the reader was given. Invalid UTF-8 in header keys is decoded with Python's
    `surrogateescape`.
    """

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = -1
    offset: int = -1
    topic: str | None = None
    partition: int = -1
    leader_epoch: int = -1
    timestamp_type: int = 0


class RecordBuffer:
    """The encoded records of a batch that is being built.

    `base_timestamp_ms` is the constructor's argument or, if that is None, the timestamp of the first record.
    `max_timestamp_ms` is the largest timestamp. Both are -1 while they are unknown.
    """

    __slots__ = (
        "_base_is_given",
        "_data",
        "base_timestamp_ms",
        "last_offset_delta",
        "max_timestamp_ms",
        "record_count",
        "size_bytes_max",
    )

    def __init__(
        self, size_bytes_max: int = _BYTES_MAX, base_timestamp_ms: int | None = None
    ) -> None:
        if not 0 <= size_bytes_max <= _BYTES_MAX:
            raise ValueError(f"size_bytes_max is {size_bytes_max}, not between 0 and {_BYTES_MAX}")
        self._data = bytearray()
        self.size_bytes_max = size_bytes_max
        self._base_is_given = base_timestamp_ms is not None
        self.base_timestamp_ms = -1 if base_timestamp_ms is None else base_timestamp_ms
        _check_int64(self.base_timestamp_ms, "base timestamp")
        self.max_timestamp_ms = -1
        self.last_offset_delta = -1
        self.record_count = 0

    @property
    def size_bytes(self) -> int:
        """The uncompressed size of the batch with these records, including its header."""
        return _HEADER_BYTES + len(self._data)

    def append(
        self,
        key: ByteBuffer | None,
        value: ByteBuffer | None,
        headers: Headers | None = None,
        timestamp_ms: int = -1,
        offset_delta: int = -1,
        /,
    ) -> int:
        """Add a record, and return the new uncompressed size of the batch in bytes, including its header.

        If the batch would exceed `size_bytes_max`, return 0 and add nothing, except that a first record of up to 2 GiB
        is always added. An `offset_delta` of -1 means the next offset; other deltas must rise. Raises TypeError for a
        key, value or header of a wrong type, and ValueError for numbers that are out of range.
        """
        # The headers are copied first, because iterating over the caller's sequence may run code that appends to this
        # buffer.
        pairs = tuple(headers or ())
        delta = self.last_offset_delta + 1 if offset_delta == -1 else offset_delta
        if not self.last_offset_delta < delta <= _BYTES_MAX:
            raise ValueError(
                f"offset delta {delta} is not above {self.last_offset_delta}, the delta of the previous record"
            )
        _check_int64(timestamp_ms, "timestamp")
        base_timestamp_ms = timestamp_ms
        if self.record_count or self._base_is_given:
            base_timestamp_ms = self.base_timestamp_ms
        _check_int64(timestamp_ms - base_timestamp_ms, "timestamp delta")
        body = bytearray(1)
        write_varint(body, timestamp_ms - base_timestamp_ms)
        write_varint(body, delta)
        _write_bytes(body, key, "a key")
        _write_bytes(body, value, "a value")
        write_varint(body, len(pairs))
        for name, header_value in pairs:
            if not isinstance(name, str):
                raise TypeError(f"a header's key is {type(name).__name__}, not str")
            _write_bytes(body, name.encode("utf-8", "surrogateescape"), "a header's key")
            _write_bytes(body, header_value, "a header's value")
        size_bytes = self.size_bytes + varint_size_bytes(len(body)) + len(body)
        if size_bytes > (self.size_bytes_max if self.record_count else _BYTES_MAX):
            if not self.record_count:
                raise ValueError(f"a record of {len(body)} bytes is too large for any batch")
            return 0
        write_varint(self._data, len(body))
        self._data += body
        self.max_timestamp_ms = (
            max(self.max_timestamp_ms, timestamp_ms) if self.record_count else timestamp_ms
        )
        self.base_timestamp_ms = base_timestamp_ms
        self.last_offset_delta = delta
        self.record_count += 1
        return size_bytes

    def records(self) -> bytes:
        """Return a copy of the encoded records, without the batch header."""
        return bytes(self._data)


class RecordReader:
    """Decodes the records of one batch in pieces. `data` has the decompressed records.

    `append_time_ms` is the timestamp of all records, or None if each record has its own. Records below `start_offset`
    are skipped. The constructor and `read` raise CorruptBatch. An error does not change the position of the reader.
    """

    def __init__(
        self,
        data: ByteBuffer,
        record_count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp_ms: int,
        append_time_ms: int | None = None,
        start_offset: int = 0,
        topic: str | None = None,
        partition: int = -1,
        leader_epoch: int = -1,
        /,
    ) -> None:
        check_batch(len(data), record_count, base_offset, last_offset_delta)
        self._data = data
        self._base_offset = base_offset
        self._last_offset_delta = last_offset_delta
        self._base_timestamp_ms = base_timestamp_ms
        self._append_time_ms = append_time_ms
        self._start_offset = start_offset
        self._place = (topic, partition, leader_epoch, 0 if append_time_ms is None else 1)
        self._position = 0
        self._offset_delta = -1
        self.remaining = record_count
        """The number of records that are not decoded yet, including records below the start offset."""

    def read(self, records_max: int = _BYTES_MAX, /) -> list[Record]:
        """Decode the next records, at most `records_max`. Return an empty list at the end. Raises CorruptBatch."""
        records: list[Record] = []
        position, delta, remaining = self._position, self._offset_delta, self.remaining
        try:
            while remaining and len(records) < records_max:
                parsed, position = read_record(self._data, position)
                delta = check_offset_delta(parsed.offset_delta, delta, self._last_offset_delta)
                remaining -= 1
                if self._base_offset + delta < self._start_offset:
                    continue
                timestamp_ms = self._append_time_ms
                if timestamp_ms is None:
                    timestamp_ms = self._base_timestamp_ms + parsed.timestamp_delta_ms
                    _check_timestamp(timestamp_ms)
                records.append(
                    Record(
                        parsed.key,
                        parsed.value,
                        parsed.headers,
                        timestamp_ms,
                        self._base_offset + delta,
                        *self._place,
                    )
                )
            if not remaining:
                check_end(self._data, position)
        except Malformed as error:
            raise CorruptBatch(str(error)) from None
        self._position, self._offset_delta, self.remaining = position, delta, remaining
        return records


@dataclass(slots=True)
class ParsedRecord:
    """A decoded record with its timestamp and offset as deltas to the base timestamp and base offset of the batch."""

    timestamp_delta_ms: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_record(data: ByteBuffer, start: int) -> tuple[ParsedRecord, int]:
    """Decode the record at `start`. Return the record and the position after it. Raises CorruptBatch or Malformed."""
    length, position = read_varint(data, start)
    end = position + length
    if length < RECORD_BYTES_MIN - 1 or end > len(data):
        raise CorruptBatch(
            f"the record at {start} has an invalid length of {length} bytes;"
            f" {len(data) - position} bytes are left"
        )
    timestamp_delta_ms, position = read_varlong(data, position + 1)
    offset_delta, position = read_varint(data, position)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    header_count, position = read_varint(data, position)
    if not 0 <= header_count <= (end - position) // 2:
        raise CorruptBatch(
            f"a record has {header_count} headers, but only {end - position} bytes follow {position}"
        )
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(header_count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise CorruptBatch(f"the header before {position} has no key")
        header_value, position = _read_bytes(data, position, end)
        headers.append((name.decode("utf-8", "surrogateescape"), header_value))
    if position != end:
        raise CorruptBatch(
            f"the record at {start} ends at {position}, but by its length it ends at {end}"
        )
    return ParsedRecord(timestamp_delta_ms, offset_delta, key, value, tuple(headers)), end


def check_batch(
    size_bytes: int, record_count: int, base_offset: int, last_offset_delta: int
) -> None:
    """Raise CorruptBatch if `size_bytes` is too small for the records, or an offset is negative or exceeds 64 bits."""
    if not 0 <= record_count <= size_bytes // RECORD_BYTES_MIN:
        raise CorruptBatch(
            f"the batch claims {record_count} records, which do not fit its {size_bytes} bytes"
        )
    if base_offset < 0 or last_offset_delta < 0 or base_offset + last_offset_delta > _INT64_MAX:
        raise CorruptBatch(
            f"base offset {base_offset} and last offset delta {last_offset_delta} are out of range"
        )


def check_offset_delta(delta: int, previous: int, last: int) -> int:
    """Return `delta`. Raises CorruptBatch unless `delta` is above `previous` and at most `last`."""
    if not previous < delta <= last:
        raise CorruptBatch(
            f"offset delta {delta} is not above {previous} and at most {last}, the batch's last one"
        )
    return delta


def check_end(data: ByteBuffer, position: int) -> None:
    """Raise CorruptBatch unless `position`, the end of the last record, is the end of the data."""
    if position != len(data):
        raise CorruptBatch(f"there are {len(data) - position} bytes after the last record")


class RecordColumns:
    """The columns of the records of several batches, as buffers in Arrow's format.

    `columns` combines flags of `columns.Column`. The timestamps, which batches have in ms, are multiplied by
    `timestamp_factor`.
    """

    def __init__(self, columns: int, timestamp_factor: int = 1, /) -> None:
        if columns & ~31 or timestamp_factor not in (1, 1000):
            raise ValueError(
                f"columns {columns} or timestamp factor {timestamp_factor} is not valid"
            )
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
        """The size of all keys, values and headers, in bytes."""
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
        """Add the records of one batch, and return the number of rows added.

        The arguments are those of `RecordReader`. CorruptBatch and OverflowError leave the columns unchanged.
        """
        check_batch(len(data), record_count, base_offset, last_offset_delta)
        if self.size_bytes + len(data) * 3 > _COLUMN_BYTES_MAX:
            raise OverflowError("the columns have more than 2 GiB")
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
        """Remove and return all rows: (row count, key, value, headers, offset, timestamp). Unselected ones are None."""
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


def crc32c(data: ByteBuffer, value: int = 0, /) -> int:
    """Return the CRC32C of `data`. If `value` is the CRC32C of earlier data, return the CRC32C of both together.

    google-crc32c accepts only `bytes`, so other buffers are copied in chunks that are small enough for the CPU's cache.
    """
    if isinstance(data, bytes):
        return google_crc32c.extend(value, data)  # type: ignore[no-any-return]
    view = memoryview(data).cast("B")
    for start in range(0, len(view), _CRC_PIECE_BYTES):
        value = google_crc32c.extend(value, bytes(view[start : start + _CRC_PIECE_BYTES]))
    return value


def lines(data: ByteBuffer, offsets: ByteBuffer, rows: int, /) -> bytes:
    """Return the first `rows` rows of an Arrow binary column, each followed by a newline.

    `data` and `offsets` are the buffers of the column; `offsets` has int32 numbers.

    Raises:
        ValueError: There are fewer than `rows` + 1 offsets, or the offsets do not rise from 0 within `data`.
    """
    edges = memoryview(offsets).cast("B").cast("i").tolist()
    if not 0 <= rows < len(edges):
        raise ValueError("rows must be fewer than there are offsets, and not negative")
    pairs, whole = list(pairwise(edges[: rows + 1])), bytes(data)
    if edges[0] or edges[rows] > len(whole) or any(start > end for start, end in pairs):
        raise ValueError("offsets must begin at 0, increase, and end in the data")
    return b"".join([whole[start:end] + b"\n" for start, end in pairs])


def murmur2(data: ByteBuffer, /) -> int:
    """Return the 32-bit murmur2 hash of `data` as Kafka computes it (Utils.murmur2), signed like Java's int."""
    size = len(data)
    whole = size & ~3
    hashed = 0x9747B28C ^ size
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * 0x5BD1E995 & 0xFFFFFFFF
        word = (word ^ word >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        hashed = hashed * 0x5BD1E995 & 0xFFFFFFFF ^ word
    if size > whole:
        hashed ^= int.from_bytes(data[whole:], "little")
        hashed = hashed * 0x5BD1E995 & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    hashed ^= hashed >> 15
    return hashed - (1 << 32) if hashed >> 31 else hashed


def _read_bytes(data: ByteBuffer, position: int, end: int) -> tuple[bytes | None, int]:
    length, start = read_varint(data, position)
    if length == -1:
        return None, start
    if length < -1 or length > end - start:
        raise CorruptBatch(
            f"the length {length} at {position} is not valid: {end - start} bytes are left"
        )
    return bytes(data[start : start + length]), start + length


def _write_bytes(out: bytearray, data: ByteBuffer | None, what: str) -> None:
    if data is None:
        write_varint(out, -1)
        return
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"{what} is {type(data).__name__}, not bytes")
    write_varint(out, memoryview(data).nbytes)
    out += data


def _check_int64(value: int, what: str) -> None:
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError(f"{what} {value} has more than 64 bits")


def _check_timestamp(timestamp_ms: int) -> None:
    if not _INT64_MIN <= timestamp_ms <= _INT64_MAX:
        raise CorruptBatch(f"timestamp {timestamp_ms} has more than 64 bits")


class _Binary:
    """A column of Arrow's type `binary`, to which rows are appended."""

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


def usual_header(
    frame: ByteBuffer, versions: bytes
) -> tuple[int, int, int, str | None, int] | None:
    """Return the fields of a RequestHeader, or None if the caller must decode the header in Python.

    The functions whose names begin with `usual_` exist to be fast in C. They handle only well-formed input in its usual
    form. For any other input they return None, and the caller handles the input in Python. Without the C codec they
    always return None. `versions` has two bytes for each API key: the lowest flexible version and the highest version.
    """
    return None


def usual_produce(version: int, body: memoryview) -> UsualProduce | None:
    """Decode a Produce request of the usual form: return its transactional id, acks, timeout in ms and topics. Return
    None if the request has another form, so that the caller must use the generic decoder.
    """
    return None


def usual_produced(
    version: int, topics: list[UsualProducedTopic], throttle_ms: int
) -> bytes | None:
    """Encode a Produce response in which no partition has an error message or a current leader. Return None if the
    caller must encode the response in Python.
    """
    return None


def usual_batch(batches: ByteBuffer) -> tuple[int, int, int, int, int] | None:
    """Return the record count, max timestamp in ms, producer id, producer epoch and base sequence of a batch.

    Return None unless `batches` is exactly one valid batch that is not compressed, not transactional, and not a control
    batch.
    """
    return None


def usual_message(shape: bytes, body: ByteBuffer) -> tuple[Any, ...] | None:
    """Return the fields of a message, or None if the caller must decode the message in Python.

    `shape` describes the fields of a message in one version, with one byte for each field: `b h i q` are numbers of 1,
    2, 4 and 8 bytes; `u` is a UUID of 16 bytes; `s S n` are a string, a nullable string, and a topic name; `c C m` are
    the same in compact form; `( )` enclose the fields of the structs in an array, `[ ]` those in a compact array. Each
    of these has a value in the result; a struct is a tuple, and an array a list. Three other bytes have no value: `-`
    is a null array, `!` a null struct, and `0` an empty list of tagged fields. A message with other nulls, or with
    tagged fields, must be decoded in Python.
    """
    return None


def usual_encoding(shape: bytes, fields: tuple[Any, ...]) -> bytes | None:
    """Encode a message with this shape and these fields, which have the form of the result of `usual_message`. Return
    None if the caller must encode the message in Python.
    """
    return None

"""The header of a record batch of format v2: the first 61 bytes of the batch. Brokers usually read only the header.

    position  bytes  field
    0         8      base offset             written by the leader, not covered by the CRC
    8         4      batch length            bytes after this field
    12        4      partition leader epoch  written by the leader, not covered by the CRC
    16        1      magic                   2
    17        4      CRC32C                  of all bytes from the attributes to the end of the batch
    21        2      attributes              see below
    23        4      last offset delta       last offset - base offset; compaction does not change it
    27        8      base timestamp          ms since the epoch; a record has its delta to this timestamp
    35        8      max timestamp           ms since the epoch; for LogAppendTime the timestamp of all records
    43        8      producer id             -1 without idempotence
    51        2      producer epoch          -1 without idempotence
    53        4      base sequence           -1 without idempotence
    57        4      record count
    61               records, compressed as one block

All numbers are big-endian and signed, except the CRC. The attributes are

    bits 0-2   compression (`Compression`)
    bit  3     timestamp type (`TimestampType`)
    bit  4     the batch belongs to a transaction
    bit  5     control batch: its only record is a transaction marker, not data
    bit  6     the base timestamp is a delete horizon (KIP-534: set by compaction only)

Source: Kafka's DefaultRecordBatch.java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from odradek_protocol.identity import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from odradek_protocol.records.errors import (
    ChecksumMismatch,
    CorruptBatch,
    TruncatedBatch,
    UnsupportedCompression,
    UnsupportedMagic,
)
from odradek_protocol.records.hashes import crc32c

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40


class Compression(IntEnum):
    """The compression of a batch's records, as a number in the attributes. The header is never compressed."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """The source of the timestamps of a batch: the producer, or the leader's clock when it appended the batch."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


ByteBuffer: TypeAlias = bytes | bytearray | memoryview

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
LENGTH_PREFIX_BYTES: Final = 12
BATCH_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_PREFIX_BYTES
MAGIC: Final = 2

BASE_OFFSET_AT: Final = 0
BATCH_LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
RECORD_COUNT_AT: Final = 57
RECORDS_AT: Final = 61

_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_SEQUENCE_MODULUS: Final = 1 << 31


class BatchHeader(NamedTuple):
    """The header of a batch, with Kafka's field names, in the order of the bytes.

    The class is a tuple because a broker creates a header for every batch that it handles: a tuple takes 0.2 us, a
    frozen dataclass 1.5 us.
    """

    base_offset: Offset
    batch_length: int
    partition_leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, including its header."""
        return LENGTH_PREFIX_BYTES + self.batch_length

    @property
    def last_offset(self) -> Offset:
        """The last offset of the batch, inclusive. Compaction may have removed the record with this offset."""
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        """The offset after the last offset of the batch. The next batch has this or a higher base offset."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def compression(self) -> Compression:
        """The compression of the records. Raises UnsupportedCompression for the unknown codes 5 to 7."""
        code = self.attributes & COMPRESSION_MASK
        try:
            return Compression(code)
        except ValueError:
            raise UnsupportedCompression(f"compression codec {code} is unknown") from None

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType((self.attributes & TIMESTAMP_TYPE_MASK) >> 3)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_MASK)

    @property
    def has_producer_id(self) -> bool:
        """Whether the batch has a producer id, so that the broker detects duplicates (idempotence)."""
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; -1 without idempotence. Sequence numbers wrap from 2^31 - 1 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCE_MODULUS


def read_header(buffer: ByteBuffer, offset: int = 0) -> BatchHeader:
    """Decode the header at position `offset`. The buffer need not contain the records.

    Raises TruncatedBatch if fewer than 61 bytes remain, UnsupportedMagic for older formats, and CorruptBatch for a
    length, count or offset that no batch can have.
    """
    bytes_left = len(buffer) - offset
    if bytes_left < HEADER_BYTES:
        # A message set of an older format may have fewer bytes than a header of format v2.
        if bytes_left > MAGIC_AT and buffer[offset + MAGIC_AT] != MAGIC:
            raise UnsupportedMagic(
                f"record format {buffer[offset + MAGIC_AT]} at position {offset},"
                f" only {MAGIC} is supported"
            )
        raise TruncatedBatch(
            f"a batch header has {HEADER_BYTES} bytes, but only {max(bytes_left, 0)} bytes remain at position {offset}"
        )
    fields = HEADER.unpack_from(buffer, offset)
    base_offset, batch_length, _, magic, _, _, last_offset_delta = fields[:7]
    if magic != MAGIC:
        raise UnsupportedMagic(
            f"record format {magic} at position {offset} is not supported, only {MAGIC} is"
        )
    if batch_length < BATCH_LENGTH_MIN:
        raise CorruptBatch(
            f"batch length {batch_length} at position {offset} is below {BATCH_LENGTH_MIN}"
        )
    if base_offset < 0 or last_offset_delta < 0 or base_offset > (1 << 63) - 2 - last_offset_delta:
        raise CorruptBatch(
            f"base offset {base_offset} and last offset delta {last_offset_delta} of the batch"
            f" at position {offset} are out of range"
        )
    if not 0 <= fields[12] <= last_offset_delta + 1:
        raise CorruptBatch(
            f"record count {fields[12]} of the batch at position {offset} does not fit"
            f" its last offset delta {last_offset_delta}"
        )
    return BatchHeader._make(fields)


def iter_headers(buffer: ByteBuffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each complete batch in the buffer, in order.

    A fetch may return an incomplete batch at the end, which is not yielded. CRCs are not checked. Raises the errors of
    `read_header`.
    """
    position = 0
    end = len(buffer)
    while end - position >= LENGTH_PREFIX_BYTES:
        _, batch_length = _OFFSET_AND_LENGTH.unpack_from(buffer, position)
        size_bytes = LENGTH_PREFIX_BYTES + batch_length
        if batch_length >= BATCH_LENGTH_MIN and size_bytes > end - position:
            return
        header = read_header(buffer, position)
        yield position, header
        position += size_bytes


def check_crc(buffer: ByteBuffer, position: int, header: BatchHeader) -> None:
    """Raise ChecksumMismatch unless the bytes of the batch at `position` match the CRC in its header.

    Raises TruncatedBatch if `buffer` ends within the batch. With the C codec no bytes are copied; the Python codec
    copies the batch once.
    """
    require_whole(buffer, position, header)
    end = position + header.size_bytes
    computed = crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : end])
    if computed != header.crc:
        raise ChecksumMismatch(
            f"CRC32C of the batch at position {position} (base offset {header.base_offset}) is"
            f" {computed:08x}, its header says {header.crc:08x}"
        )


def require_whole(buffer: ByteBuffer, position: int, header: BatchHeader) -> None:
    """Raise TruncatedBatch unless `buffer` contains the whole batch at `position`."""
    bytes_left = len(buffer) - position
    if header.size_bytes > bytes_left:
        raise TruncatedBatch(
            f"the batch at position {position} has {header.size_bytes} bytes, but only {bytes_left} bytes remain"
        )


def stamp(buffer: bytearray | memoryview, offset: int, base_offset: int, leader_epoch: int) -> None:
    """Write the base offset and the leader epoch into the header of the batch at position `offset`.

    The leader of the partition assigns both. The CRC covers neither, so the batch stays valid.
    """
    _BASE_OFFSET.pack_into(buffer, offset + BASE_OFFSET_AT, base_offset)
    _LEADER_EPOCH.pack_into(buffer, offset + LEADER_EPOCH_AT, leader_epoch)

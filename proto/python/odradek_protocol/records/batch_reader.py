"""Decodes the bytes of a batch to record objects."""

from __future__ import annotations

from odradek_protocol.records.batch_header import (
    RECORDS_AT,
    BatchHeader,
    ByteBuffer,
    TimestampType,
    iter_headers,
    read_header,
    require_whole,
)
from odradek_protocol.records.batch_header import check_crc as _check_crc
from odradek_protocol.records.codec import Record, RecordReader
from odradek_protocol.records.compression import BYTES_EXPANDED_MAX, expand


def expanded_records(
    buffer: ByteBuffer,
    position: int,
    header: BatchHeader,
    *,
    bytes_expanded_max: int = BYTES_EXPANDED_MAX,
) -> ByteBuffer:
    """Return the records of the batch at `position`, decompressed but still encoded.

    Without compression this is a view.
    """
    require_whole(buffer, position, header)
    records = memoryview(buffer)[position + RECORDS_AT : position + header.size_bytes]
    if not records:
        # Compaction leaves batches without records, which still name their codec.
        return records
    return expand(records, header.compression, bytes_expanded_max)


def open_batch(
    buffer: ByteBuffer,
    position: int = 0,
    header: BatchHeader | None = None,
    *,
    check_crc: bool = True,
    bytes_expanded_max: int = BYTES_EXPANDED_MAX,
    start_offset: int = 0,
    topic: str | None = None,
    partition: int = -1,
) -> RecordReader:
    """Open a reader of the batch at `position`, whose `read(records_max)` returns the next records.

    Use it for batches whose records should not all become objects at once. The reader keeps the decompressed bytes in
    memory, or `buffer` if the batch is not compressed. Records below `start_offset` are skipped; each record gets
    `topic` and `partition`. A control batch is read like any other, so check `header.is_control` first. Raises
    CorruptBatch, as the reader does.
    """
    if header is None:
        header = read_header(buffer, position)
    if check_crc:
        _check_crc(buffer, position, header)
    records = expanded_records(buffer, position, header, bytes_expanded_max=bytes_expanded_max)
    return RecordReader(
        records,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp_ms,
        append_time_ms(header),
        start_offset,
        topic,
        partition,
        header.partition_leader_epoch,
    )


def open_records(records: ByteBuffer, header: BatchHeader) -> RecordReader:
    """Open a reader of the records that `expanded_records` returned. Its `read` raises CorruptBatch."""
    return RecordReader(
        records,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp_ms,
        append_time_ms(header),
        0,
        None,
        -1,
        header.partition_leader_epoch,
    )


def decode_batch(
    buffer: ByteBuffer,
    position: int = 0,
    header: BatchHeader | None = None,
    *,
    check_crc: bool = True,
    bytes_expanded_max: int = BYTES_EXPANDED_MAX,
    start_offset: int = 0,
    topic: str | None = None,
    partition: int = -1,
) -> list[Record]:
    """Return all records of the batch at `position`. Arguments and errors are those of `open_batch`.

    The objects of the smallest records (7 bytes each) take 20 times as much memory. So where memory is bounded, read
    batches of untrusted clients in pieces.
    """
    return open_batch(
        buffer,
        position,
        header,
        check_crc=check_crc,
        bytes_expanded_max=bytes_expanded_max,
        start_offset=start_offset,
        topic=topic,
        partition=partition,
    ).read()


def decode_batches(
    buffer: ByteBuffer,
    *,
    include_control: bool = False,
    check_crc: bool = True,
    bytes_expanded_max: int = BYTES_EXPANDED_MAX,
    start_offset: int = 0,
    topic: str | None = None,
    partition: int = -1,
) -> list[Record]:
    """Return all records of all whole batches in `buffer`, which has the form that a fetch returns.

    Control batches are left out unless they are asked for; the caller leaves out aborted transactions.
    `bytes_expanded_max` applies to each batch. Otherwise it works like `decode_batch`.
    """
    records: list[Record] = []
    for position, header in iter_headers(buffer):
        if header.next_offset <= start_offset or (header.is_control and not include_control):
            continue
        records += decode_batch(
            buffer,
            position,
            header,
            check_crc=check_crc,
            bytes_expanded_max=bytes_expanded_max,
            start_offset=start_offset,
            topic=topic,
            partition=partition,
        )
    return records


def append_time_ms(header: BatchHeader) -> int | None:
    """Return the timestamp of all records of the batch, or None if each has its own."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp_ms
    return None


def check_records(
    buffer: ByteBuffer,
    position: int,
    header: BatchHeader,
    *,
    bytes_expanded_max: int = BYTES_EXPANDED_MAX,
) -> None:
    """Raise CorruptBatch unless every record can be decoded, which a CRC alone does not guarantee."""
    reader = open_batch(buffer, position, header, bytes_expanded_max=bytes_expanded_max)
    while reader.remaining:
        reader.read(1000)

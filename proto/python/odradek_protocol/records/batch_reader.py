"""Decoders of batches to `Record` objects."""

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
    """Return the encoded records of the batch at `position`, decompressed. For a batch without compression the result
    is a view of `buffer`. Raises CorruptBatch, or ExpandedTooLarge above `bytes_expanded_max`.
    """
    require_whole(buffer, position, header)
    records = memoryview(buffer)[position + RECORDS_AT : position + header.size_bytes]
    if not records:
        # Compaction may remove all records of a batch. The attributes of the batch still have the compression.
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
    """Return a reader of the batch at `position`, whose `read(records_max)` returns the next records.

    The reader does not create all record objects at once. It keeps the decompressed records in memory; if the batch is
    not compressed, it keeps `buffer`. Records below `start_offset` are skipped. Each record gets `topic` and
    `partition` as fields. The records of a control batch are returned, too, so callers check `header.is_control` first.
    This function and the reader raise CorruptBatch.
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
    """Return a reader of records that `expanded_records` returned. This function and the reader raise CorruptBatch."""
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

    `Record` objects of the smallest records (7 bytes each) take 20 times the memory of the encoded records. So code
    that reads batches of untrusted clients should use `open_batch` and read the records in pieces.
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
    """Return the records of all complete batches in `buffer`, which has the form of the records in a fetch response.

    Records of control batches are returned only with `include_control`. Records of aborted transactions are returned,
    so the caller must drop them. `bytes_expanded_max` applies to each batch. The other arguments and the errors are
    those of `open_batch`.
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
    """Return the timestamp of all records of the batch (LogAppendTime), or None if each record has its own."""
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
    """Raise CorruptBatch unless every record of the batch can be decoded. A valid CRC does not guarantee that."""
    reader = open_batch(buffer, position, header, bytes_expanded_max=bytes_expanded_max)
    while reader.remaining:
        reader.read(1000)

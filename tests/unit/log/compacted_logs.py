"""Helpers of tests that fill logs, compact them and read them back."""

from __future__ import annotations

from odradek_broker.log.compaction import CompactJob
from odradek_broker.log.log_config import LogConfig
from odradek_protocol.records.batch_header import Compression, iter_headers
from odradek_protocol.records.batch_reader import decode_batch
from odradek_protocol.records.builder import encode_batch
from odradek_protocol.records.codec import Record
from odradek_protocol.records.control import ControlType, encode_marker
from tests.unit.log.material import Broker

DAY_MS = 24 * 60 * 60 * 1000
CONFIG = LogConfig(
    segment_bytes=600,
    index_interval_bytes=0,
    cleanup_compact=True,
    cleanup_delete=False,
    min_cleanable_dirty_ratio=0.0,
    file_delete_delay_ms=0,
)


def put(
    broker: Broker,
    *pairs: tuple[bytes | None, bytes | None],
    timestamp_ms: int = 1000,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    leader_epoch: int = 0,
) -> int:
    base = broker.log.log_end_offset
    records = [Record(key, value, timestamp_ms=timestamp_ms) for key, value in pairs]
    data = encode_batch(
        records,
        base_offset=base,
        leader_epoch=leader_epoch,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    broker.log.append(data, now_ms=timestamp_ms)
    return base


def mark(broker: Broker, producer_id: int, kind: ControlType) -> int:
    base = broker.log.log_end_offset
    data = encode_marker(
        kind,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=1000,
        base_offset=base,
        leader_epoch=0,
    )
    broker.log.append(data, now_ms=1000)
    return base


def fill(broker: Broker) -> None:
    """Append records with unique keys until all earlier records are in closed segments."""
    wanted = broker.log.segment_count + 2
    number = 0
    while broker.log.segment_count < wanted:
        put(broker, (b"filler-%d-%d" % (wanted, number), b"f" * 200))
        number += 1


def compact(broker: Broker, *, now_ms: int = DAY_MS) -> CompactJob | None:
    log = broker.log
    log.set_high_watermark(log.log_end_offset)
    broker.sync(full=True)
    job = log.begin_compaction(now_ms=now_ms)
    if job is None:
        return None
    slices = 0
    while not job.is_done:
        job.run_slice(0)
        log.install_compacted(job)
        slices += 1
    assert slices > 1
    broker.remove_files(now_ms=now_ms)
    return job


def records(broker: Broker) -> dict[int, Record]:
    data = broker.read_all()
    return {
        record.offset: record
        for position, header in iter_headers(data)
        if header.record_count and not header.is_control
        for record in decode_batch(data, position)
    }


def shown(broker: Broker) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return (offset, key, value) of the records that `fill` did not write."""
    return [
        (offset, record.key, record.value)
        for offset, record in records(broker).items()
        if record.key is None or not record.key.startswith(b"filler")
    ]


def headers(broker: Broker) -> list[tuple[int, int, int]]:
    """Return (base offset, last offset, count) of every batch."""
    return [
        (h.base_offset, h.last_offset, h.record_count) for _, h in iter_headers(broker.read_all())
    ]

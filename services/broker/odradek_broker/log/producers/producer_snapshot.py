"""Producer state on disk: `<offset>.snapshot`, what the producers were when that was the log end.

    int16   version, 1
    uint32  CRC32C of everything that follows
    int32   number of producers, and for each:
            int64 id, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta,
            int64 timestamp, int32 coordinator epoch, int64 first offset of its transaction or -1

Kafka's format keeps one batch of each producer. A client whose request is repeated after a restart
may send an older one of its five again, and Kafka can only answer that with an error. So the other
batches follow behind, where Kafka's reader does not look (its CRC covers them all the same):

    4 bytes "ODRK", int32 number of batches, and for each:
            int64 id, int32 base sequence, int32 last sequence, int64 base offset,
            int64 last offset, int64 timestamp

Source: Kafka's ProducerSnapshot.json and ProducerStateManager.java.
"""

from __future__ import annotations

import struct
from typing import Final

from odradek_broker.log.producers.producer_state import (
    BATCHES_MAX,
    SEQUENCE_MODULUS,
    ProducerEntry,
    StoredBatch,
)
from odradek_protocol.identity import Offset, ProducerEpoch, ProducerId
from odradek_protocol.records.hashes import crc32c

_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_PRODUCER: Final = struct.Struct(">qhiqiqiq")
_OLDER_HEAD: Final = struct.Struct(">4si")
_OLDER: Final = struct.Struct(">qiiqqq")
_OLDER_MAGIC: Final = b"ODRK"
_VERSION: Final = 1


class CorruptSnapshot(ValueError):
    """These bytes are no snapshot; take an older one, or replay from the log's start."""


def encode_snapshot(entries: dict[ProducerId, ProducerEntry]) -> bytes:
    """The file's bytes. The dictionary must not change meanwhile."""
    parts = [_COUNT.pack(len(entries))]
    older: list[bytes] = []
    for producer_id, entry in entries.items():
        last_sequence, last_offset, delta = -1, -1, 0
        if entry.batches:
            last = entry.batches[-1]
            last_sequence, last_offset = last.last_sequence, last.last_offset
            delta = last.last_offset - last.base_offset
        parts.append(
            _PRODUCER.pack(
                producer_id,
                entry.epoch,
                last_sequence,
                last_offset,
                delta,
                entry.last_timestamp_ms,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
        older += [_OLDER.pack(producer_id, *batch) for batch in entry.batches[:-1]]
    if older:
        parts.append(_OLDER_HEAD.pack(_OLDER_MAGIC, len(older)))
        parts += older
    body = b"".join(parts)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> dict[ProducerId, ProducerEntry]:
    """Read a file; raises CorruptSnapshot for anything but a whole one."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshot(f"{len(data)} bytes are too few")
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshot(f"version {version} is unknown")
    if crc32c(data[_HEAD.size :]) != crc:
        raise CorruptSnapshot("the CRC is not that of the bytes")
    (count,) = _COUNT.unpack_from(data, _HEAD.size)
    position = _HEAD.size + _COUNT.size
    end = position + count * _PRODUCER.size
    if count < 0 or end > len(data):
        raise CorruptSnapshot(f"{count} producers do not fit into {len(data)} bytes")
    older = _decode_older(data, end)
    entries: dict[ProducerId, ProducerEntry] = {}
    for fields in _PRODUCER.iter_unpack(data[position:end]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator, first = (
            fields
        )
        batches: tuple[StoredBatch, ...] = ()
        if last_offset >= 0:
            base_sequence = (last_sequence - delta) % SEQUENCE_MODULUS
            base_offset = Offset(last_offset - delta)
            last = StoredBatch(
                base_sequence, last_sequence, base_offset, Offset(last_offset), timestamp_ms
            )
            batches = (*older.get(producer_id, ())[1 - BATCHES_MAX :], last)
        entries[ProducerId(producer_id)] = ProducerEntry(
            ProducerEpoch(epoch), batches, coordinator, first, timestamp_ms
        )
    return entries


def _decode_older(data: bytes, position: int) -> dict[int, tuple[StoredBatch, ...]]:
    if position == len(data):
        return {}
    if len(data) - position < _OLDER_HEAD.size:
        raise CorruptSnapshot(f"{len(data) - position} bytes follow the producers")
    magic, count = _OLDER_HEAD.unpack_from(data, position)
    start = position + _OLDER_HEAD.size
    if magic != _OLDER_MAGIC or len(data) - start != count * _OLDER.size:
        raise CorruptSnapshot("what follows the producers is not ours")
    older: dict[int, tuple[StoredBatch, ...]] = {}
    for producer_id, *batch in _OLDER.iter_unpack(data[start:]):
        older[producer_id] = (*older.get(producer_id, ()), StoredBatch(*batch))
    return older

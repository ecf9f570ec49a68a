"""Control records: the markers that end a transaction in a partition.

A control batch has one record, which consumers do not return to applications. The key of the record is (version int16,
type int16). The value of a commit or abort marker is (version int16, coordinator epoch int32). Sources: KIP-98; Kafka's
ControlRecordType.java and EndTransactionMarker.java.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from odradek_protocol.records.batch_header import ByteBuffer
from odradek_protocol.records.batch_reader import decode_batch
from odradek_protocol.records.builder import encode_batch
from odradek_protocol.records.codec import Record
from odradek_protocol.records.errors import CorruptBatch

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0


class ControlType(IntEnum):
    """The type of a control record. A type that is not listed here is decoded as UNKNOWN, and consumers skip it."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A decoded control record. `coordinator_epoch` is -1 unless the type is COMMIT or ABORT."""

    type: ControlType
    coordinator_epoch: int = -1


def encode_marker(
    marker: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Encode the control batch that commits or aborts a producer's transaction in one partition."""
    if marker not in (ControlType.COMMIT, ControlType.ABORT):
        raise ValueError(f"{marker!r} is not a marker that ends a transaction")
    record = Record(
        _KEY.pack(_VERSION, marker),
        _VALUE.pack(_VERSION, coordinator_epoch),
        timestamp_ms=timestamp_ms,
    )
    return encode_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def parse_control_record(record: Record) -> ControlRecord:
    """Decode the record of a control batch. Raises CorruptBatch if its key or value is too short."""
    if record.key is None or len(record.key) < _KEY.size:
        raise CorruptBatch(f"control record has an invalid key {record.key!r}")
    version, code = _KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptBatch(f"control record has the invalid version {version}")
    marker = ControlType(code) if code in set(ControlType) else ControlType.UNKNOWN
    if marker not in (ControlType.COMMIT, ControlType.ABORT):
        return ControlRecord(marker)
    if record.value is None or len(record.value) < _VALUE.size:
        raise CorruptBatch(f"{marker.name} marker has an invalid value {record.value!r}")
    return ControlRecord(marker, _VALUE.unpack_from(record.value)[1])


def read_control(buffer: ByteBuffer, position: int = 0, *, check_crc: bool = True) -> ControlRecord:
    """Decode the only record of the control batch at `position`. Raises CorruptBatch."""
    records = decode_batch(buffer, position, check_crc=check_crc)
    if len(records) != 1:
        raise CorruptBatch(f"control batch has {len(records)} records instead of one")
    return parse_control_record(records[0])

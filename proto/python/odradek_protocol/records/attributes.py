"""The 16 bits of attributes in a batch header.

    bits 0-2   compression (`Compression`)
    bit  3     timestamp type (`TimestampType`)
    bit  4     the batch belongs to a transaction
    bit  5     control batch: its one record is a marker, not data
    bit  6     the base timestamp is a delete horizon (KIP-534: set by compaction only)

Source: Kafka's DefaultRecordBatch.java.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40


class Compression(IntEnum):
    """How the records of a batch are compressed; the header never is."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Whose clock a record's timestamp shows: its producer's, or its leader's at the append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

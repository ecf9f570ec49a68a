"""Which partition a key belongs to: Kafka's default partitioner.

`murmur2(data)` is Kafka's 32-bit hash, signed as Java's int. Every client of a topic must agree on
it, whatever language it is written in, or the records of a key land in two partitions.
"""

from __future__ import annotations

from odradek_protocol.identity import PartitionIndex
from odradek_protocol.records.codec import murmur2

__all__ = ["murmur2", "partition_for_key"]


def partition_for_key(key: bytes | bytearray | memoryview, partitions: int) -> PartitionIndex:
    """The partition, out of so many, that all records with this key go to."""
    return PartitionIndex((murmur2(key) & 0x7FFFFFFF) % partitions)

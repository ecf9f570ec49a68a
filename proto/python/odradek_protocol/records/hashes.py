"""CRC32C, the checksum of batches and of our other files on disk, and murmur2, which assigns keys to partitions.

`crc32c(data, value=0)` takes any contiguous buffer and returns 32 unsigned bits: the checksum of `data` or, if
`value` is the checksum of earlier data, that of the earlier data followed by `data`. The C codec copies nothing and
uses the processor's instruction where there is one.

`murmur2(data)` is Kafka's 32-bit hash, signed as Java's int. All clients of a topic must agree on it, in whatever
language they are written; otherwise records with the same key go to different partitions.
"""

from __future__ import annotations

from odradek_protocol.identity import PartitionIndex
from odradek_protocol.records.codec import crc32c, murmur2

__all__ = ["crc32c", "murmur2", "partition_for_key"]


def partition_for_key(key: bytes | bytearray | memoryview, partitions: int) -> PartitionIndex:
    """Return the partition that Kafka's default partitioner assigns to a key."""
    return PartitionIndex((murmur2(key) & 0x7FFFFFFF) % partitions)

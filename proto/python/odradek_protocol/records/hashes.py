"""CRC32C, the checksum of record batches and other files, and murmur2, the hash that assigns keys to partitions.

`crc32c(data, value=0)` takes any contiguous buffer and returns an unsigned 32-bit number: the CRC32C of `data`. If
`value` is the CRC32C of earlier data, the result is the CRC32C of the earlier data followed by `data`. The C codec does
not copy the data, and uses the processor's CRC32C instruction if there is one.

`murmur2(data)` is Kafka's 32-bit hash, signed like Java's int. All clients that write to a topic must use the same
hash. Otherwise records with the same key would be written to different partitions.
"""

from __future__ import annotations

from odradek_protocol.identity import PartitionIndex
from odradek_protocol.records.codec import crc32c, murmur2

__all__ = ["crc32c", "murmur2", "partition_for_key"]


def partition_for_key(key: bytes | bytearray | memoryview, partitions: int) -> PartitionIndex:
    """Return the partition that Kafka's default partitioner assigns to a key."""
    return PartitionIndex((murmur2(key) & 0x7FFFFFFF) % partitions)

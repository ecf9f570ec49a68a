"""CRC32C (Castagnoli), the checksum of batches and of whatever else of ours is on disk.

`crc32c(data, value=0)` takes any contiguous buffer and returns 32 unsigned bits: the checksum of
`data`, or of what gave `value` followed by `data`. The C codec copies nothing and uses the
processor's instruction for it where there is one.
"""

from odradek_protocol.records.codec import crc32c

__all__ = ["crc32c"]

"""CRC32C (Castagnoli), the checksum of batches and of whatever else of ours is on disk.

The C codec reads any buffer without a copy. google-crc32c, the fallback, takes `bytes` only, so
other buffers are copied to it in pieces that stay in the cache.
"""

from __future__ import annotations

from typing import Final

import google_crc32c

_PIECE_BYTES: Final = 128 * 1024


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """The checksum of `data`, or of what gave `value` followed by `data`. 32 bits, unsigned."""
    if isinstance(data, bytes):
        return google_crc32c.extend(value, data)  # type: ignore[no-any-return]
    view = memoryview(data).cast("B")
    for start in range(0, len(view), _PIECE_BYTES):
        value = google_crc32c.extend(value, bytes(view[start : start + _PIECE_BYTES]))
    return value

"""The most that an LZ4 or a zstd frame can expand to, told by its block headers alone.

Both formats are chains of blocks with a length in front and a fixed most that each may hold, so
hopping over them costs one step a block and bounds the output before any of it exists. For what
real producers write the bound is within one block of the truth.
Sources: the LZ4 frame format; RFC 8878 section 3.1.1.
"""

from __future__ import annotations

from typing import Final

from odradek_protocol.primitives.varint import ByteBuffer
from odradek_protocol.records.errors import CorruptBatch

ZSTD_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
"""What RFC 8878 tells every decoder to accept, and level 19 uses; a reader takes no more."""

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_RATIO_MAX: Final = 255
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024
_ZSTD_RLE_BLOCK: Final = 1
_ZSTD_RESERVED_BLOCK: Final = 3
_BLOCKS_MAX: Final = 1 << 16


def lz4_bytes_max(data: ByteBuffer, cap: int) -> int:
    """Upper bound of one LZ4 frame's content in bytes; above `cap` it only means "more".

    Raises CorruptBatch when the frame's headers are wrong, or when bytes are missing or too many.
    """
    _need(data, 0, 7, "LZ4")
    if _u32(data, 0) != _LZ4_MAGIC:
        raise CorruptBatch("no LZ4 frame: wrong magic number")
    flags, descriptor = data[4], data[5]
    if flags >> 6 != 1 or not 4 <= descriptor >> 4 <= 7:
        raise CorruptBatch(f"LZ4 frame with flags {flags:#x}, {descriptor:#x}")
    if flags & 1:
        raise CorruptBatch("LZ4 frame that needs a dictionary")
    block_bytes_max = 1 << (8 + 2 * (descriptor >> 4))
    position = 7 + (8 if flags & 8 else 0)
    checksum_bytes = 4 if flags & 16 else 0
    total = 0
    for _ in range(_BLOCKS_MAX):
        _need(data, position, 4, "LZ4")
        word = _u32(data, position)
        position += 4
        if word == 0:
            position += 4 if flags & 4 else 0
            _at_end(data, position, "LZ4")
            return total
        size = word & 0x7FFFFFFF
        position += size + checksum_bytes
        _need(data, position, 0, "LZ4")
        total += min(block_bytes_max, size if word >> 31 else size * _LZ4_RATIO_MAX)
        if total > cap:
            return total
    return cap + 1


def zstd_bytes_max(data: ByteBuffer, cap: int) -> int:
    """Upper bound of one zstd frame's content in bytes; above `cap` it only means "more".

    Raises CorruptBatch as `lz4_bytes_max` does, and for a window of more than 8 MiB.
    """
    _need(data, 0, 6, "zstd")
    if _u32(data, 0) != _ZSTD_MAGIC:
        raise CorruptBatch("no zstd frame: wrong magic number")
    descriptor = data[4]
    single_segment = bool(descriptor & 0x20)
    position = 5
    if not single_segment:
        exponent, mantissa = data[position] >> 3, data[position] & 7
        window_bytes = (1 << (10 + exponent)) // 8 * (8 + mantissa)
        if window_bytes > ZSTD_WINDOW_BYTES_MAX:
            raise CorruptBatch(f"zstd window of {window_bytes} bytes > {ZSTD_WINDOW_BYTES_MAX}")
        position += 1
    position += (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    _need(data, position, size_bytes, "zstd")
    stated = int.from_bytes(data[position : position + size_bytes], "little")
    stated += 256 if size_bytes == 2 else 0
    if size_bytes and stated > cap:
        return stated
    position += size_bytes
    total = 0
    for _ in range(_BLOCKS_MAX):
        _need(data, position, 3, "zstd")
        word = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        kind, size = word >> 1 & 3, word >> 3
        if kind == _ZSTD_RESERVED_BLOCK or size > _ZSTD_BLOCK_BYTES_MAX:
            raise CorruptBatch(f"zstd block of kind {kind} and {size} bytes")
        position += 3 + (1 if kind == _ZSTD_RLE_BLOCK else size)
        _need(data, position, 0, "zstd")
        total += size if kind <= _ZSTD_RLE_BLOCK else _ZSTD_BLOCK_BYTES_MAX
        if word & 1:
            _at_end(data, position + (4 if descriptor & 4 else 0), "zstd")
            return min(total, stated) if size_bytes else total
        if total > cap and not size_bytes:
            return total
    return stated if size_bytes else cap + 1


def _u32(data: ByteBuffer, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "little")


def _need(data: ByteBuffer, position: int, size: int, what: str) -> None:
    if len(data) - position < size:
        raise CorruptBatch(f"the {what} frame ends too early")


def _at_end(data: ByteBuffer, position: int, what: str) -> None:
    if position != len(data):
        raise CorruptBatch(f"the {what} frame ends at {position}, the records at {len(data)}")

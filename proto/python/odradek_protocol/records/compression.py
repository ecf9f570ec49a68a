"""Compresses and expands the records of a batch. What expands is capped before memory is taken.

Formats, as Kafka's clients write and read them: one gzip member; snappy in xerial's framing
(written) or raw (read too); one LZ4 frame of independent blocks; one zstd frame. A frame says how
much it can expand to (`frame_bounds`), so the output is allocated once, never above the cap, and
expanding into it fails where it would overflow.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import cramjam

from odradek_protocol.primitives.varint import ByteBuffer
from odradek_protocol.records.attributes import Compression
from odradek_protocol.records.errors import CorruptBatch, ExpandedTooLarge
from odradek_protocol.records.frame_bounds import lz4_bytes_max, zstd_bytes_max

BYTES_EXPANDED_MAX: Final = 64 * 1024 * 1024
"""The cap where the caller names none."""

LEVELS: Final[dict[Compression, tuple[int, int, int]]] = {
    Compression.GZIP: (1, 6, 9),
    Compression.LZ4: (0, 0, 12),
    Compression.ZSTD: (-100, 3, 19),
}
"""Least, default and greatest level of the codecs that have levels. LZ4 from 3 on is its slow
variant; zstd beyond 19 would need more than the 8 MiB window that readers allow."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_XERIAL_BLOCKS_MAX: Final = 1 << 18
_BLOCK_LENGTH: Final = struct.Struct(">i")
_SNAPPY_RATIO_MAX: Final = 32


def compress(records: bytes, compression: Compression, level: int | None = None) -> bytes:
    """Compress the encoded records of one batch. ValueError for a level the codec does not have."""
    if compression is Compression.SNAPPY:
        return _compress_xerial(records)
    if compression is Compression.NONE:
        return records
    least, default, greatest = LEVELS[compression]
    level = default if level is None else level
    if not least <= level <= greatest:
        raise ValueError(f"{compression.name} level {level} is not within {least} to {greatest}")
    if compression is Compression.GZIP:
        compressor = zlib.compressobj(level, zlib.DEFLATED, 31)
        return compressor.compress(records) + compressor.flush()
    if compression is Compression.LZ4:  # Kafka reads independent blocks only
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        frame.compress(records)
        return bytes(frame.finish())
    return bytes(cramjam.zstd.compress(records, level=level))


def expand(
    data: ByteBuffer, compression: Compression, bytes_expanded_max: int = BYTES_EXPANDED_MAX
) -> ByteBuffer:
    """Undo `compress`. Without compression that is `data` itself, not a copy.

    Raises ExpandedTooLarge instead of giving more than `bytes_expanded_max`, which is also the
    most memory it takes; CorruptBatch when the bytes are damaged.
    """
    if compression is Compression.NONE:
        if len(data) > bytes_expanded_max:
            raise _too_large("uncompressed", bytes_expanded_max)
        return data
    if compression is Compression.GZIP:
        return _expand_gzip(data, bytes_expanded_max)
    if compression is Compression.SNAPPY:
        return _expand_snappy(data, bytes_expanded_max)
    if compression is Compression.LZ4:
        bound = lz4_bytes_max(data, bytes_expanded_max)
        return _expand_frame(data, cramjam.lz4, bound, bytes_expanded_max)
    bound = zstd_bytes_max(data, bytes_expanded_max)
    return _expand_frame(data, cramjam.zstd, bound, bytes_expanded_max)


def _expand_frame(data: ByteBuffer, codec: object, bound: int, cap: int) -> memoryview:
    name = getattr(codec, "__name__", "").rpartition(".")[2]
    out = bytearray(min(bound, cap))
    try:
        written = codec.decompress_into(data, out)  # type: ignore[attr-defined]
    except cramjam.DecompressionError as error:
        if bound > cap and "whole buffer" in str(error):
            raise _too_large(name, cap) from None
        raise CorruptBatch(f"the {name} frame is damaged: {error}") from None
    return memoryview(out)[:written]


def _expand_gzip(data: ByteBuffer, cap: int) -> bytes:
    decompressor = zlib.decompressobj(31)
    try:
        out = decompressor.decompress(data, cap + 1)
    except zlib.error as error:
        raise CorruptBatch(f"the gzip stream is damaged: {error}") from None
    if len(out) > cap:
        raise _too_large("gzip", cap)
    if not decompressor.eof:
        raise CorruptBatch("the gzip stream ends too early")
    if decompressor.unused_data:
        raise CorruptBatch("bytes after the gzip stream")
    return out


def _compress_xerial(records: bytes) -> bytes:
    parts: list[bytes] = [_XERIAL_HEADER]
    view = memoryview(records)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _expand_snappy(data: ByteBuffer, cap: int) -> ByteBuffer:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _expand_snappy_block(view, cap)
    parts: list[ByteBuffer] = []
    total = 0
    position = len(_XERIAL_HEADER)
    if position > len(view):
        raise CorruptBatch("the snappy stream ends within its header")
    while position < len(view):
        if len(view) - position < _BLOCK_LENGTH.size or len(parts) >= _XERIAL_BLOCKS_MAX:
            raise CorruptBatch("the snappy stream ends within a block's length, or has too many")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(view) - position:
            raise CorruptBatch(f"snappy block of {length} bytes, {len(view) - position} are left")
        parts.append(_expand_snappy_block(view[position : position + length], cap - total))
        total += len(parts[-1])
        position += length
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _expand_snappy_block(block: memoryview, cap: int) -> memoryview:
    try:
        length = cramjam.snappy.decompress_raw_len(block)
        if length > cap:
            raise _too_large("snappy", cap)
        if length > _SNAPPY_RATIO_MAX * len(block):
            raise CorruptBatch(f"snappy block of {len(block)} bytes claims to hold {length}")
        out = bytearray(length)
        written = cramjam.snappy.decompress_raw_into(block, out)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"the snappy block is damaged: {error}") from None
    return memoryview(out)[:written]


def _too_large(what: str, cap: int) -> ExpandedTooLarge:
    return ExpandedTooLarge(f"the {what} records expand to more than {cap} bytes")

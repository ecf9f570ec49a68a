"""Compression and decompression of the records of a batch, with a limit on the decompressed size.

The formats are those of Kafka's clients: one gzip member; snappy in xerial's framing, or raw snappy, which is only
read; one LZ4 frame of independent blocks; one zstd frame. LZ4 and zstd frames are sequences of blocks. Each block has a
length and a fixed maximum size, so an upper bound of the decompressed size is known in advance. The output buffer is
allocated once and never exceeds the limit. Decompression fails if the output buffer is too small.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import cramjam

from odradek_protocol.primitives import ByteBuffer
from odradek_protocol.records.batch_header import Compression
from odradek_protocol.records.errors import CorruptBatch, ExpandedTooLarge

BYTES_EXPANDED_MAX: Final = 64 * 1024 * 1024
"""The default limit of the decompressed size of a batch's records, in bytes."""

LEVELS: Final[dict[Compression, tuple[int, int, int]]] = {
    Compression.GZIP: (1, 6, 9),
    Compression.LZ4: (0, 0, 12),
    Compression.ZSTD: (-100, 3, 19),
}
"""The lowest, default and highest level of each compression that has levels. LZ4 levels from 3 on use the slow variant
LZ4 HC. zstd levels above 19 would need a window of more than 8 MiB, which readers refuse.
"""

LZ4_PIECE_BYTES: Final = 256 * 1024

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_XERIAL_BLOCKS_MAX: Final = 1 << 18
_BLOCK_LENGTH: Final = struct.Struct(">i")
_SNAPPY_RATIO_MAX: Final = 32


def compress(records: bytes, compression: Compression, level: int | None = None) -> bytes:
    """Compress the encoded records of one batch. `level` None means the default. Raises ValueError for an unknown
    level.
    """
    if compression is Compression.SNAPPY:
        return _compress_xerial(records)
    if compression is Compression.NONE:
        return records
    least, default, greatest = LEVELS[compression]
    level = default if level is None else level
    if not least <= level <= greatest:
        raise ValueError(f"{compression.name} level {level} is not between {least} and {greatest}")
    if compression is Compression.GZIP:
        compressor = zlib.compressobj(level, zlib.DEFLATED, 31)
        return compressor.compress(records) + compressor.flush()
    # Kafka reads only frames of independent blocks.
    if compression is Compression.LZ4:
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        # Unlike its other codecs, cramjam's LZ4 holds the interpreter's lock (GIL) while it compresses, which took
        # 60 ms for 20 MiB. The records are compressed in pieces, so that other threads can run in between.
        for start in range(0, len(records), LZ4_PIECE_BYTES):
            frame.compress(records[start : start + LZ4_PIECE_BYTES])
        return bytes(frame.finish())
    return bytes(cramjam.zstd.compress(records, level=level))


def expand(
    data: ByteBuffer, compression: Compression, bytes_expanded_max: int = BYTES_EXPANDED_MAX
) -> ByteBuffer:
    """Decompress the records of a batch. If they are not compressed, return `data` itself.

    Raises ExpandedTooLarge if the result would exceed `bytes_expanded_max`, which also limits the memory that is
    allocated. Raises CorruptBatch if the bytes are damaged.
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
        raise CorruptBatch("there are bytes after the gzip stream")
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
            raise CorruptBatch(
                "the snappy stream ends within a block's length or has too many blocks"
            )
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(view) - position:
            raise CorruptBatch(
                f"a snappy block has {length} bytes, but only {len(view) - position} are left"
            )
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
            raise CorruptBatch(f"a snappy block of {len(block)} bytes claims to expand to {length}")
        out = bytearray(length)
        written = cramjam.snappy.decompress_raw_into(block, out)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"the snappy block is damaged: {error}") from None
    return memoryview(out)[:written]


def _too_large(what: str, cap: int) -> ExpandedTooLarge:
    return ExpandedTooLarge(f"the {what} records expand to more than {cap} bytes")


ZSTD_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest zstd window that readers accept. RFC 8878 recommends that decoders support this size, which level 19
uses.
"""

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_RATIO_MAX: Final = 255
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024
_ZSTD_RLE_BLOCK: Final = 1
_ZSTD_RESERVED_BLOCK: Final = 3
_BLOCKS_MAX: Final = 1 << 16


def lz4_bytes_max(data: ByteBuffer, cap: int) -> int:
    """Return an upper bound of the decompressed size of one LZ4 frame, in bytes.

    A result above `cap` only means that the bound exceeds `cap`. Raises CorruptBatch if a header of the frame is not
    valid, if bytes are missing, or if bytes follow the frame.
    """
    _need(data, 0, 7, "LZ4")
    if _u32(data, 0) != _LZ4_MAGIC:
        raise CorruptBatch("the bytes are not an LZ4 frame: the magic number is wrong")
    flags, descriptor = data[4], data[5]
    if flags >> 6 != 1 or not 4 <= descriptor >> 4 <= 7:
        raise CorruptBatch(f"the LZ4 frame has unsupported flags {flags:#x}, {descriptor:#x}")
    if flags & 1:
        raise CorruptBatch("the LZ4 frame needs a dictionary, which is not supported")
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
    """Return an upper bound of the decompressed size of one zstd frame, in bytes.

    A result above `cap` only means that the bound exceeds `cap`. Raises CorruptBatch if a header of the frame is not
    valid, if bytes are missing, if bytes follow the frame, or if the frame's window is larger than 8 MiB.
    """
    _need(data, 0, 6, "zstd")
    if _u32(data, 0) != _ZSTD_MAGIC:
        raise CorruptBatch("the bytes are not a zstd frame: the magic number is wrong")
    descriptor = data[4]
    single_segment = bool(descriptor & 0x20)
    position = 5
    if not single_segment:
        exponent, mantissa = data[position] >> 3, data[position] & 7
        window_bytes = (1 << (10 + exponent)) // 8 * (8 + mantissa)
        if window_bytes > ZSTD_WINDOW_BYTES_MAX:
            raise CorruptBatch(
                f"the zstd window of {window_bytes} bytes is larger than {ZSTD_WINDOW_BYTES_MAX}"
            )
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
            raise CorruptBatch(
                f"a zstd block has an invalid type or size: type {kind}, {size} bytes"
            )
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
        raise CorruptBatch(
            f"there are bytes after the {what} frame: it ends at {position}, the records at {len(data)}"
        )

"""Variable-length integers: seven bits a byte, least significant first, the top bit says "more".

`varint` (32 bits) and `varlong` (64 bits) are zigzag-coded, so that small negative numbers are
short too; `uvarint` is unsigned (compact lengths, tag numbers). Encodings longer than needed are
read as Kafka reads them; more than 5 or 10 bytes, or bits beyond 32 or 64, raise `Malformed`.
Source: Kafka's ByteUtils.java.
"""

from __future__ import annotations

from typing import TypeAlias

ByteBuffer: TypeAlias = bytes | bytearray | memoryview


class Malformed(ValueError):
    """The bytes cannot be what they should be: too few, too long, or out of range."""


def read_uvarint(buffer: ByteBuffer, offset: int) -> tuple[int, int]:
    """An unsigned 32-bit number and the offset behind it."""
    return _read(buffer, offset, 32)


def read_varint(buffer: ByteBuffer, offset: int) -> tuple[int, int]:
    """A signed 32-bit number and the offset behind it."""
    raw, offset = _read(buffer, offset, 32)
    return (raw >> 1) ^ -(raw & 1), offset


def read_varlong(buffer: ByteBuffer, offset: int) -> tuple[int, int]:
    """A signed 64-bit number and the offset behind it."""
    raw, offset = _read(buffer, offset, 64)
    return (raw >> 1) ^ -(raw & 1), offset


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned number; ValueError when negative (its width is the caller's)."""
    if value < 0:
        raise ValueError(f"{value} is negative")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_varint(out: bytearray, value: int) -> None:
    """Append a signed number, up to 64 bits: varint and varlong differ in their range only."""
    write_uvarint(out, value << 1 if value >= 0 else (~value << 1) | 1)


def uvarint_size_bytes(value: int) -> int:
    """How many bytes `write_uvarint` appends."""
    return max(1, (value.bit_length() + 6) // 7)


def varint_size_bytes(value: int) -> int:
    """How many bytes `write_varint` appends."""
    return uvarint_size_bytes(value << 1 if value >= 0 else (~value << 1) | 1)


def _read(buffer: ByteBuffer, offset: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    position = offset
    while position < len(buffer):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                raise Malformed(f"number at {offset} has more than {bits} bits")
            return value, position
        shift += 7
        if shift >= bits:
            raise Malformed(f"number at {offset} has more than {position - offset} bytes")
    raise Malformed(f"the bytes end within the number at {offset}")

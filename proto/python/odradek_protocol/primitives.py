"""Varints, strings, byte fields, array counts and tagged fields of Kafka's protocol and of coordinator records.

Each reader takes a buffer and an offset and returns the value and the next offset. Each writer appends to a bytearray.
In the plain form, a length is an int16 or int32, and -1 means null. In the compact form ("flexible versions", KIP-482),
an unsigned varint has the length + 1, and 0 means null. A varint has 7 bits in each byte, the lowest bits first; signed
varints are zigzag-encoded. Readers compare lengths and counts with the number of remaining bytes before they allocate
memory, and raise `Malformed` if the bytes cannot be read.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

ByteBuffer: TypeAlias = bytes | bytearray | memoryview


class Malformed(ValueError):
    """The bytes are not a valid encoding: bytes are missing, or a value is too long or out of range."""


def read_uvarint(buffer: ByteBuffer, offset: int) -> tuple[int, int]:
    """Read an unsigned varint of up to 32 bits."""
    # Nearly all lengths, counts and tags take one byte, and most others take two.
    size = len(buffer) - offset
    if size > 0:
        first = buffer[offset]
        if first < 0x80:
            return first, offset + 1
        if size > 1 and (second := buffer[offset + 1]) < 0x80:
            return first & 0x7F | second << 7, offset + 2
    return _read(buffer, offset, 32)


def read_varint(buffer: ByteBuffer, offset: int) -> tuple[int, int]:
    """Read a signed varint of up to 32 bits."""
    raw, offset = _read(buffer, offset, 32)
    return (raw >> 1) ^ -(raw & 1), offset


def read_varlong(buffer: ByteBuffer, offset: int) -> tuple[int, int]:
    """Read a signed varint of up to 64 bits."""
    raw, offset = _read(buffer, offset, 64)
    return (raw >> 1) ^ -(raw & 1), offset


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint of any size. Raises ValueError for a negative number."""
    if value < 0:
        raise ValueError(f"{value} is negative")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_varint(out: bytearray, value: int) -> None:
    """Append a signed varint of up to 64 bits. Kafka's varint and varlong differ only in their range."""
    write_uvarint(out, value << 1 if value >= 0 else (~value << 1) | 1)


def uvarint_size_bytes(value: int) -> int:
    """Return the number of bytes that `write_uvarint` appends for this value."""
    return max(1, (value.bit_length() + 6) // 7)


def varint_size_bytes(value: int) -> int:
    """Return the number of bytes that `write_varint` appends for this value."""
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
                raise Malformed(f"the number at byte {offset} has more than {bits} bits")
            return value, position
        shift += 7
        if shift >= bits:
            raise Malformed(f"the number at byte {offset} has more than {position - offset} bytes")
    raise Malformed(f"the bytes end within the number at byte {offset}")


_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT16_MAX: Final = (1 << 15) - 1


def read_bytes(buffer: ByteBuffer, offset: int) -> tuple[bytes | None, int]:
    """Read a byte field in the plain form: an int32 length, or -1 for null, and the bytes."""
    length, offset = _read_int(_INT32, buffer, offset)
    return _take(buffer, offset, length)


def read_string(buffer: ByteBuffer, offset: int) -> tuple[str | None, int]:
    """Read a string in the plain form: an int16 length in bytes, or -1 for null, and the text as UTF-8."""
    length, offset = _read_int(_INT16, buffer, offset)
    return _text(_take(buffer, offset, length))


def read_compact_bytes(buffer: ByteBuffer, offset: int) -> tuple[bytes | None, int]:
    """Read a byte field in the compact form: the length + 1 as a varint, or 0 for null, and the bytes."""
    length, offset = read_uvarint(buffer, offset)
    return _take(buffer, offset, length - 1)


def read_compact_string(buffer: ByteBuffer, offset: int) -> tuple[str | None, int]:
    """Read a string in the compact form: the length in bytes + 1 as a varint, or 0 for null, and the text as UTF-8."""
    return _text(read_compact_bytes(buffer, offset))


def read_array_count(buffer: ByteBuffer, offset: int, item_bytes_min: int = 1) -> tuple[int, int]:
    """Read an array's count in the plain form: an int32, -1 for a null array.

    Raises Malformed if the remaining bytes are too few for so many items of at least `item_bytes_min` bytes.
    """
    count, offset = _read_int(_INT32, buffer, offset)
    return _checked_count(buffer, offset, count, item_bytes_min)


def read_compact_array_count(
    buffer: ByteBuffer, offset: int, item_bytes_min: int = 1
) -> tuple[int, int]:
    """Read an array's count in the compact form: the count + 1 as a varint. Return -1 for a null array.

    Raises Malformed if the remaining bytes are too few for so many items of at least `item_bytes_min` bytes.
    """
    count, offset = read_uvarint(buffer, offset)
    return _checked_count(buffer, offset, count - 1, item_bytes_min)


def read_tagged_fields(buffer: ByteBuffer, offset: int) -> tuple[dict[int, bytes], int]:
    """Read tagged fields and return their raw bytes by tag. Raises Malformed if the tags are not in ascending order."""
    count, offset = read_uvarint(buffer, offset)
    _checked_count(buffer, offset, count, 2)
    fields: dict[int, bytes] = {}
    previous = -1
    for _ in range(count):
        tag, offset = read_uvarint(buffer, offset)
        if tag <= previous:
            raise Malformed(
                f"tagged fields are not in order: tag {tag} follows tag {previous} before byte {offset}"
            )
        length, offset = read_uvarint(buffer, offset)
        end = offset + length
        if end > len(buffer):
            remaining = len(buffer) - offset
            raise Malformed(
                f"a tagged field at byte {offset} has {length} bytes, but only {remaining} bytes remain"
            )
        fields[tag] = bytes(buffer[offset:end])
        previous, offset = tag, end
    return fields, offset


def write_bytes(out: bytearray, data: ByteBuffer | None) -> None:
    out += _INT32.pack(-1 if data is None else len(data))
    out += data or b""


def write_string(out: bytearray, text: str | None) -> None:
    """Append a string in the plain form: an int16 length and the text as UTF-8. None is written as null.

    Raises ValueError for more than 32,767 bytes.
    """
    data = None if text is None else text.encode()
    if data is not None and len(data) > _INT16_MAX:
        raise ValueError(f"the string has {len(data)} bytes, but at most {_INT16_MAX} are allowed")
    out += _INT16.pack(-1 if data is None else len(data))
    out += data or b""


def write_compact_bytes(out: bytearray, data: ByteBuffer | None) -> None:
    write_uvarint(out, 0 if data is None else len(data) + 1)
    out += data or b""


def write_compact_string(out: bytearray, text: str | None) -> None:
    write_compact_bytes(out, None if text is None else text.encode())


def write_array_count(out: bytearray, count: int) -> None:
    """Append an array's count in the plain form; -1 means a null array."""
    out += _INT32.pack(count)


def write_compact_array_count(out: bytearray, count: int) -> None:
    """Append an array's count in the compact form; -1 means a null array."""
    write_uvarint(out, count + 1)


def write_tagged_fields(out: bytearray, fields: dict[int, bytes] | None = None) -> None:
    write_uvarint(out, len(fields or {}))
    for tag, data in sorted((fields or {}).items()):
        write_uvarint(out, tag)
        write_uvarint(out, len(data))
        out += data


def _read_int(form: struct.Struct, buffer: ByteBuffer, offset: int) -> tuple[int, int]:
    if len(buffer) - offset < form.size:
        raise Malformed(f"the bytes end within the length at byte {offset}")
    return form.unpack_from(buffer, offset)[0], offset + form.size


def _take(buffer: ByteBuffer, offset: int, length: int) -> tuple[bytes | None, int]:
    if length == -1:
        return None, offset
    if not 0 <= length <= len(buffer) - offset:
        bytes_left = len(buffer) - offset
        raise Malformed(
            f"the length {length} before byte {offset} exceeds the {bytes_left} bytes left"
        )
    return bytes(buffer[offset : offset + length]), offset + length


def _text(taken: tuple[bytes | None, int]) -> tuple[str | None, int]:
    data, offset = taken
    try:
        return None if data is None else data.decode(), offset
    except UnicodeDecodeError as error:
        raise Malformed(f"the string before byte {offset} is not UTF-8: {error.reason}") from None


def _checked_count(
    buffer: ByteBuffer, offset: int, count: int, item_bytes_min: int
) -> tuple[int, int]:
    if not -1 <= count <= (len(buffer) - offset) // item_bytes_min:
        bytes_left = len(buffer) - offset
        raise Malformed(
            f"an array has {count} items, but only {bytes_left} bytes follow byte {offset}"
        )
    return count, offset

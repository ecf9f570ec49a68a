"""How much a protobuf message names, counted in its bytes before they are decoded.

Decoding is one call into C that nothing interrupts, and two bytes of a message can become an object
of a hundred. So long messages are walked first, in steps between which others have their turns; one
that names too much is refused before any object of it exists.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from odradek_protocol.kafka.request_decoding import STRING_BYTES_MAX

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIELDS_PER_ITEM_MAX: Final = 12
_FIELDS_PER_STEP: Final = 200
_LAST_BYTES: Final = bytes(range(0x80, 0x100))  # all that are not the last byte of a varint
_shapes: dict[str, dict[int, _Field]] = {}


class _Field:
    """What a field of a message is: its items count, its content is walked, its length is bounded."""

    __slots__ = ("inner", "is_packed", "is_repeated", "is_string", "name")

    def __init__(self, field: Any) -> None:  # Any: descriptors of both protobuf implementations
        self.name: str = field.name
        self.is_repeated: bool = field.is_repeated
        self.is_string = field.type == FieldDescriptor.TYPE_STRING
        self.inner: Descriptor | None = field.message_type
        self.is_packed = (
            self.is_repeated
            and self.inner is None
            and field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
        )


def refusal_steps(
    message: Descriptor, data: bytes, items_max: int
) -> Generator[None, None, str | None]:
    """Walk the message; returns why it is refused, None if it may be decoded."""
    items = fields = position = 0
    fields_max = items_max * _FIELDS_PER_ITEM_MAX
    levels = [(len(data), _shape(message))]
    while levels:
        end, shape = levels[-1]
        if position >= end:
            if position > end:
                return _MALFORMED
            levels.pop()
            continue
        fields += 1
        if fields > fields_max:
            return f"the request has more than {fields_max} fields"
        if fields % _FIELDS_PER_STEP == 0:
            yield
        try:
            key, position = _varint(data, position)
            field, wire_type = shape.get(key >> 3), key & 7
            if wire_type == _VARINT:
                _, position = _varint(data, position)
            elif wire_type == _FIXED64:
                position += 8
            elif wire_type == _FIXED32:
                position += 4
            elif wire_type == _BYTES:
                size, position = _varint(data, position)
            else:
                return _MALFORMED
        except IndexError:
            return _MALFORMED
        if field is not None and field.is_repeated:
            items += not (field.is_packed and wire_type == _BYTES)
        if wire_type == _BYTES:
            if position + size > end:
                return _MALFORMED
            if field is not None:
                if field.is_string and size > STRING_BYTES_MAX:
                    return f"{field.name} has {size} bytes, at most {STRING_BYTES_MAX}"
                if field.is_packed:
                    packed = data[position : position + size]
                    items += len(packed.translate(None, _LAST_BYTES))
                if field.inner is not None:
                    levels.append((position + size, _shape(field.inner)))
                    size = 0
            position += size
        if items > items_max:
            return f"the request names more than {items_max} things: ask for them in parts"
    return None


_MALFORMED: Final = "the request is no protobuf message of its kind"


def _shape(message: Descriptor) -> dict[int, _Field]:
    shape = _shapes.get(message.full_name)
    if shape is None:
        shape = {field.number: _Field(field) for field in message.fields}
        _shapes[message.full_name] = shape
    return shape


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = data[position]
    position += 1
    if number < 0x80:
        return number, position
    number &= 0x7F
    for shift in range(7, 70, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise IndexError("a number of more than ten bytes")

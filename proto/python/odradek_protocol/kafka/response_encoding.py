"""Encoders of responses: in one step, or in many steps for a long response. Both produce the same bytes.

kafka-python's encoder works in one step, which takes about 100 ms for a response with 10,000 topics. With
`encode_steps` the caller can do other work between any two items. An item of an array that does not itself contain long
arrays is encoded by kafka-python's compiled encoder, so encoding in steps hardly takes more CPU time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, Final

from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.kafka_python import codecs
from odradek_protocol.kafka.messages import MESSAGES, Message
from odradek_protocol.kafka.request_decoding import decode_request, decode_request_in_steps
from odradek_protocol.primitives import Malformed

ITEMS_AT_ONCE: Final = 64
"""An array item that contains at most this many other items is encoded in one step."""
_BUFFER_BYTES: Final = 1 << 16

_array_fields: Final[dict[tuple[Any, int], tuple[Any, ...]]] = {}


def encode_message(message: Message, version: int) -> bytearray:
    """Encode a message in one step. The result has neither the frame size nor the response header."""
    flexible = message.flexible_version_q(version)
    encode = message._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)
    with codecs.EncodeBufferPool.acquire() as out:
        encode(message, out)
        encoded: bytearray = out.result()
    return encoded


def item_count(message: Message, version: int, *, counted_max: int) -> int:
    """Return the number of structs and strings in all arrays of a message. Counting stops at `counted_max`.

    Numbers in arrays are not counted, because encoding 10,000 numbers takes only a millisecond.
    """
    return _count(message._struct, message, version, counted_max)


def encode_steps(
    message: Message, version: int, parts: list[bytearray]
) -> Generator[None, None, None]:
    """Encode a message, appending its bytes to `parts`. The generator yields after each array item.

    When the generator ends, `parts` has the whole message.
    """
    flexible = message.flexible_version_q(version)
    writer = _Writer(version, flexible, parts)
    yield from writer.struct(message._struct, message)
    writer.flush()


def warm_up() -> Iterator[None]:
    """Generate the code of all encoders and decoders in advance, so that no request has to wait for it.

    This takes 1.2 s in total, and a few ms between two yields. The code for long messages is generated last.
    """
    for key, (_, response) in MESSAGES.items():
        versions = SUPPORTED[key]
        for version in range(versions.lowest, versions.highest + 1):
            flexible = version >= versions.flexible
            response._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)
            yield
            if key not in (ApiKey.PRODUCE, ApiKey.FETCH):
                with suppress(Malformed):
                    decode_request(key, version, b"")
                yield
    for key, (_, response) in MESSAGES.items():
        if key in (ApiKey.PRODUCE, ApiKey.FETCH):
            continue
        for version in range(SUPPORTED[key].lowest, SUPPORTED[key].highest + 1):
            decode_request_in_steps(key, version, b"")
            yield
            yield from prepare_steps(response, version)


def prepare_steps(message: type[Message], version: int) -> Iterator[None]:
    """Generate the code that `encode_steps` needs for a class of messages. The iterator yields after each part."""
    flexible = message.flexible_version_q(version)
    fields = [message._struct]
    while fields:
        for field in fields.pop().untagged_fields(version):
            if field.is_struct_array():
                field.array_of.compiled_encode_into(version, compact=flexible, tagged=flexible)
                fields.append(field.array_of)
                yield
            elif field.is_struct():
                fields.append(field)


class _Writer:
    """Encodes one message in steps."""

    __slots__ = ("_flexible", "_out", "_parts", "_version")

    def __init__(self, version: int, flexible: bool, parts: list[bytearray]) -> None:
        self._version = version
        self._flexible = flexible
        self._parts = parts
        self._out = codecs.EncodeBuffer(_BUFFER_BYTES)

    def flush(self) -> None:
        if self._out.pos:
            self._parts.append(self._out.result())
            self._out.reset()

    def struct(self, field: Any, item: Any) -> Iterator[None]:
        version, flexible, out = self._version, self._flexible, self._out
        for member in field.untagged_fields(version):
            value = getattr(item, member.name)
            if value is not None and member.is_struct_array():
                yield from self._array(member.array_of, value)
            elif value is not None and member.is_struct():
                if member.nullable_for_version_q(version):
                    out.ensure(1)
                    out.buf[out.pos] = 1
                    out.pos += 1
                yield from self.struct(member, value)
            else:
                member.encode_into(value, out, version=version, compact=flexible, tagged=flexible)
        if flexible:
            field.tagged_fields(version).encode_into(item, out, version=version)

    def _array(self, inner: Any, items: Any) -> Iterator[None]:
        version, flexible, out = self._version, self._flexible, self._out
        if flexible:
            codecs.UnsignedVarInt32.encode_into(out, len(items) + 1)
        else:
            codecs.Int32.encode_into(out, len(items))
        encode = inner.compiled_encode_into(version, compact=flexible, tagged=flexible)
        for item in items:
            if _count(inner, item, version, ITEMS_AT_ONCE + 1) <= ITEMS_AT_ONCE:
                encode(item, out)
            else:
                yield from self.struct(inner, item)
            if out.pos >= _BUFFER_BYTES:
                self.flush()
            yield


def _count(field: Any, item: Any, version: int, counted_max: int) -> int:
    count = 0
    for member in _arrays(field, version):
        value = getattr(item, member.name)
        if value is None:
            continue
        if member.is_struct():
            count += _count(member, value, version, counted_max - count)
        else:
            count += len(value)
            if member.is_struct_array() and _arrays(member.array_of, version):
                for inner in value:
                    if count >= counted_max:
                        break
                    count += _count(member.array_of, inner, version, counted_max - count)
        if count >= counted_max:
            break
    return count


def _arrays(field: Any, version: int) -> tuple[Any, ...]:
    """Return a struct's array fields whose items `item_count` counts, and its struct fields with such arrays."""
    # kafka-python's field objects are not hashable. Their `id()` stays valid, because they are never deleted.
    key = (id(field), version)
    fields = _array_fields.get(key)
    if fields is None:
        fields = _array_fields[key] = tuple(
            member
            for member in field.untagged_fields(version)
            if member.is_struct_array()
            or (member.is_array() and not member.array_of.is_batchable())
            or (member.is_struct() and _arrays(member, version))
        )
    return fields

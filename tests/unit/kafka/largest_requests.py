"""The largest legal requests of every API, generated from its schema.

Each begins as the valid request of `requests_to_everything`; then one of its arrays is filled until
the request has `api_keys.ITEMS_MAX` items. There is one request for each array. Names and
indexes differ, so that no items are merged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ITEMS_MAX, ApiKey
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_protocol.records.builder import BatchBuilder
from tests.unit.kafka.requests_to_everything import HIGHEST, RIGHTS, message_of

_SPARE: Final = 64  # items of the rest of the request
_NUMBERS: Final = {"int8": 1, "int16": 1, "int32": 0, "int64": 0, "float64": 1.0, "bool": False}


class LargeRequest(NamedTuple):
    """A large request; `path` names the array that is full."""

    key: ApiKey
    version: int
    path: str
    body: bytes

    @property
    def name(self) -> str:
        return f"{self.key.name} {self.version} {self.path}"


def largest_requests(*, count: int = ITEMS_MAX) -> Iterator[LargeRequest]:
    """Yield the largest request of every API in its newest version; requests without an array stay as they are."""
    for key in RIGHTS:
        if key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS):
            continue
        version = HIGHEST[key]
        if key in (ApiKey.PRODUCE, ApiKey.FETCH):
            version = 12  # the newest that name topics by name
        paths = list(_array_paths(messages.MESSAGES[key][0]._struct, version, ()))
        for path in paths or [()]:
            message = _template(key, version)
            if path:
                _fill(message, messages.MESSAGES[key][0]._struct, path, count)
            body = bytes(encode_message(message, version))
            yield LargeRequest(key, version, ".".join(path), body)


def _template(key: ApiKey, version: int) -> Any:
    if key is ApiKey.PRODUCE:
        return _made(messages.ProduceRequest, version, acks=1, timeout_ms=1000)
    if key is ApiKey.FETCH:
        return _made(messages.FetchRequest, version, replica_id=-1, max_bytes=1 << 20)
    message = message_of(key, version)
    if key is ApiKey.OFFSET_FETCH:
        message.groups[0].member_id = None
        message.groups[0].member_epoch = -1
    if key in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS):
        message.validate_only = True
    return message


def _made(cls: Any, version: int, **fields: Any) -> Any:
    message = cls(version=version, **fields)
    for one in cls._struct.untagged_fields(version):
        if one.is_struct_array():
            setattr(message, one.name, [])
    return message


def _array_paths(field: Any, version: int, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for one in field.untagged_fields(version):
        if one.is_struct_array():
            yield (*path, one.name)
            yield from _array_paths(one.array_of, version, (*path, one.name))
        elif one.is_array():
            yield (*path, one.name)
        elif one.is_struct():
            yield from _array_paths(one, version, (*path, one.name))


def _fill(item: Any, field: Any, path: tuple[str, ...], count: int) -> None:
    """Fill the array at `path` with as many items as are allowed; arrays on the way to it have one
    item.
    """
    one = next(f for f in field.fields.values() if f.name == path[0])
    held: Any = getattr(item, one.name, None)
    if one.is_struct():
        if held is None:
            held = item_of(one, "0")
            setattr(item, one.name, held)
        _fill(held, one, path[1:], count)
        return
    if not one.is_struct_array():
        made = [_value(one.array_of, f"{one.name}-{number}", number) for number in range(count - 9)]
        setattr(item, one.name, made)
        return
    first = held[0] if held else item_of(one.array_of, "0")
    if len(path) > 1:
        setattr(item, one.name, [first])
        _fill(first, one.array_of, path[1:], count)
        return
    room = (count - _SPARE) // (1 + items_in(first, one.array_of))
    items = []
    for number in range(room):
        each = copy.copy(first)
        _renumber(each, one.array_of, number)
        items.append(each)
    setattr(item, one.name, items)


def items_in(item: Any, field: Any) -> int:
    total = 0
    for one in field.fields.values():
        value = getattr(item, one.name, None)
        if isinstance(value, list | tuple):
            total += len(value)
            if one.is_struct_array():
                total += sum(items_in(each, one.array_of) for each in value)
    return total


def item_of(field: Any, mark: str) -> Any:
    """Return a struct with a valid value in every field, and one item in each array of structs."""
    values: dict[str, Any] = {}
    for one in field.fields.values():
        if one.is_struct_array():
            values[one.name] = [item_of(one.array_of, mark)]
        elif one.is_struct():
            values[one.name] = None if one._nullable_versions else item_of(one, mark)
        elif one.is_array():
            values[one.name] = [_value(one.array_of, mark, 0)]
        else:
            values[one.name] = _value(one, f"{one.name}-{mark}", 0)
    return field.data_class(**values)


def _value(field: Any, text: str, number: int) -> Any:
    kind = field._type_str
    if kind == "string":
        return "orders" if field._json.get("entityType") == "topicName" and not number else text
    if kind in ("bytes", "records"):
        return _BATCH if kind == "records" else b"x"
    if kind == "bitfield":
        return None
    if kind == "uuid":
        return messages.uuid_of(number.to_bytes(16, "big"))
    if "index" in field.name or "partition" in field.name:
        return number
    return _NUMBERS.get(kind, 0) if not number else number % 100


def _renumber(item: Any, field: Any, number: int) -> None:
    """Make an item differ from the others by its names and indexes."""
    for one in field.fields.values():
        value = getattr(item, one.name, None)
        if one._type_str == "string" and isinstance(value, str) and not one.is_array():
            setattr(item, one.name, f"{value}-{number}")
        elif one._type_str == "int32" and ("index" in one.name or one.name == "partition"):
            setattr(item, one.name, number)
        elif one._type_str == "uuid":
            setattr(item, one.name, messages.uuid_of((number + 1).to_bytes(16, "big")))


def _one_record() -> bytes:
    builder = BatchBuilder()
    builder.append(b"key", b"value", None, 1_700_000_000_000)
    return bytes(builder.build())


_BATCH: Final = _one_record()

"""Messages of kio, an independent codec that is generated from Kafka's schemas, filled with
values.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import random
import types
import typing
import uuid
from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.static.constants import EntityType

from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey

NOT_IN_KIO = {
    (ApiKey.DELETE_GROUPS, 3),
    (ApiKey.API_VERSIONS, 5),
    (ApiKey.TXN_OFFSET_COMMIT, 6),
}
_INTS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def every_version() -> list[tuple[ApiKey, int]]:
    return [
        (key, version)
        for key, versions in SUPPORTED.items()
        for version in range(versions.lowest, versions.highest + 1)
        if (key, version) not in NOT_IN_KIO
    ]


def foreign_class(key: ApiKey, version: int, kind: str) -> type[Any]:
    place = schema_name_map[api_key_map[int(key)]][version][EntityType[kind]]
    module, name = place.split(":")
    found: type[Any] = getattr(importlib.import_module(module), name)
    return found


def filled(cls: type[Any], draw: random.Random, *, nulls: bool, items: int = 2) -> Any:
    hints = typing.get_type_hints(cls)
    values = {
        field.name: _value(
            hints[field.name], field.metadata.get("kafka_type"), draw, nulls=nulls, items=items
        )
        for field in dataclasses.fields(cls)
    }
    if cls.__name__ == "ApiVersionsResponse":
        values["error_code"] = KioErrorCode.none
    return cls(**values)


def foreign_bytes(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def some(key: ApiKey, version: int, kind: str, seed: int = 1) -> Iterator[Any]:
    """Yield a message with values, one with nulls, and one with empty arrays."""
    cls = foreign_class(key, version, kind)
    draw = random.Random(f"{key} {version} {kind} {seed}")
    yield filled(cls, draw, nulls=False)
    yield filled(cls, draw, nulls=True)
    yield filled(cls, draw, nulls=False, items=0)


def _value(hint: Any, kind: str | None, draw: random.Random, *, nulls: bool, items: int) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [one for one in typing.get_args(hint) if one is not type(None)]
        if nulls:
            return None
        return _value(inner[0], kind, draw, nulls=nulls, items=items)
    if origin is tuple:
        element = typing.get_args(hint)[0]
        return tuple(_value(element, kind, draw, nulls=nulls, items=2) for _ in range(items))
    if dataclasses.is_dataclass(hint):
        return filled(typing.cast("type[Any]", hint), draw, nulls=nulls, items=items)
    if kind in _INTS:
        return _int(draw, _INTS[kind])
    match kind:
        case "string":
            return "".join(draw.choices("abcäö漢.-", k=draw.choice((0, 3, 130))))
        case "bytes" | "records":
            return draw.randbytes(draw.choice((0, 5, 200)))
        case "bool":
            return draw.random() < 0.5
        case "uuid":
            return uuid.UUID(int=draw.getrandbits(128) | 1)
        case "uint16":
            return draw.getrandbits(16)
        case "float64":
            return draw.uniform(-1e9, 1e9)
        case "error_code":
            return draw.choice(list(KioErrorCode))
        case "timedelta_i32":
            return datetime.timedelta(milliseconds=_int(draw, 31) // 2)
        case "timedelta_i64":
            return datetime.timedelta(milliseconds=_int(draw, 40))
        case "datetime_i64":
            return datetime.datetime.fromtimestamp(draw.getrandbits(30), datetime.UTC)
    raise AssertionError((hint, kind))


def _int(draw: random.Random, bits: int) -> int:
    return draw.choice((0, 1, -1, draw.getrandbits(bits) - (1 << (bits - 1))))

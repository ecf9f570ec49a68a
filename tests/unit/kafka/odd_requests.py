"""Well-formed requests with odd values, drawn from a seed and the schema of each version.

A field gets a valid value, one that an earlier response had in a field of that name, or an odd one:
a null where the schema allows it, an extreme of its integer type, an empty array, the same item
twice, or a string that parsers, file systems, logs and metrics may fail at. The share of odd fields
differs by request, so that some requests pass every check but one.
"""

from __future__ import annotations

import random
import struct
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, Final

from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_protocol.records.builder import BatchBuilder
from tests.unit.kafka.requests_to_everything import RIGHTS

STRINGS: Final = (
    "",
    " ",
    ".",
    "..",
    "a/b",
    "*",
    "\0",
    "a\nb",
    "\x1b[31m",
    "%s{}{0}[/x]",
    "\u202e\u0000\ufeff",
    "\U0001f9a6",
    "é",
    "e\u0301",
    "\u0663",  # int() takes it for 3
    "1_000",
    " 1 ",
    "1e400",
    "nan",
    "-9223372036854775809",
    "9" * 400,
    "9" * 5_000,  # int() refuses more than 4,300 digits by an error of its own
    "=,;",
    "\\",
    "n" * 249,
    "n" * 250,
    "n" * 32_767,
    "__consumer_offsets",
    "__transaction_state",
    "__cluster_metadata",
    "User:",
    "User:*",
)
SENSIBLE: Final[dict[str, tuple[Any, ...]]] = {
    "name": ("orders", "payments", "retention.ms", "max.message.bytes", "fresh"),
    "value": ("1000", "delete", "compact", "true", "producer"),
    "key": ("producer_byte_rate", "group", "request_percentage"),
    "group_id": ("group", "other"),
    "group_instance_id": (None, "static"),
    "member_id": ("", "m"),
    "protocol_type": ("consumer", "connect"),
    "protocol_name": ("range",),
    "server_assignor": (None, "uniform", "range"),
    "principal": ("User:bob",),
    "host": ("*",),
    "entity_type": ("user", "client-id", "ip"),
    "entity_name": ("bob", None, "127.0.0.1"),
    "resource_name": ("orders", "1", "", "group"),
    "resource_type": (2, 4, 32, 16, 8),
    "client_software_name": ("test",),
    "feature": ("group.version", "metadata.version"),
    "num_partitions": (1, 2, -1),
    "replication_factor": (1, -1),
    "count": (1, 2, 3),
    "acks": (1, -1, 0),
    "max_bytes": (1 << 20,),
    "partition_max_bytes": (1 << 20,),
    "session_timeout_ms": (6_000, 10_000),
    "iterations": (4096,),
    "mechanism": (1, 2),
    "operation": (2, 3, 4),
    "permission_type": (2, 3),
    "resource_pattern_type": (3, 4),
    "config_operation": (0, 1, 2, 3),
    "replicas": (1,),
    "broker_ids": (1,),
}
TOPICS: Final = ("orders", "payments")
WAITS_MS: Final = ("max_wait_ms", "timeout_ms", "rebalance_timeout_ms", "retention_time_ms")
_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "bitfield": 31}
_KEPT: Final = frozenset(
    {
        "member_id",
        "member_epoch",
        "generation_id",
        "topic_id",
        "session_id",
        "producer_id",
        "producer_epoch",
        "leader_epoch",
        "group_id",
    }
)
ABLE: Final = tuple(key for key in RIGHTS if not key.name.startswith("SASL"))


class OddRequests:
    """Draws requests, and takes ids for later ones from the responses."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._seen: defaultdict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=8))
        self._oddness = 0.0

    def request(self, key: ApiKey, version: int) -> bytes:
        """Return the body of one request."""
        self._oddness = self._draw.choice((0.02, 0.1, 0.3, 0.7))
        message = messages.MESSAGES[key][0](version=version)
        self._fill(message, messages.MESSAGES[key][0]._struct, version)
        return bytes(encode_message(message, version))

    def learn(self, key: ApiKey, version: int, response: Any) -> None:
        """Store the ids and epochs of a response."""
        for name, value in values_of(response, messages.MESSAGES[key][1]._struct, version):
            if name in _KEPT and value is not None:
                self._seen[name].append(value)

    def _fill(self, item: Any, schema: Any, version: int) -> None:
        for field in schema.fields.values():
            if not field.for_version_q(version):
                continue
            if field.tagged_field_q(version) and self._draw.random() < 0.5:
                continue
            setattr(item, field.name, self._value(field, version))

    def _value(self, field: Any, version: int) -> Any:
        draw = self._draw
        is_odd = draw.random() < self._oddness
        if field.nullable_for_version_q(version) and draw.random() < max(self._oddness, 0.1):
            return None
        if field.is_struct_array() or field.is_array():
            return self._items(field, version, is_odd=is_odd)
        if field.is_struct():
            return self._struct(field, version)
        return self._leaf(field, is_odd=is_odd)

    def _struct(self, field: Any, version: int) -> Any:
        item = field.data_class(version=version)
        self._fill(item, field, version)
        return item

    def _items(self, field: Any, version: int, *, is_odd: bool) -> list[Any]:
        draw, inner = self._draw, field.array_of
        count = draw.choice((0, 2, 3, 9)) if is_odd else draw.choice((1, 1, 2))
        items = [
            self._struct(inner, version)
            if field.is_struct_array()
            else self._leaf(inner, name=field.name, is_odd=draw.random() < self._oddness)
            for _ in range(count)
        ]
        if items and is_odd:
            items.append(items[0])
        return items

    def _leaf(self, field: Any, *, is_odd: bool, name: str | None = None) -> Any:
        draw, kind = self._draw, field._type_str
        name = name or field.name
        seen = self._seen.get(name)
        if kind == "uuid":
            return messages.uuid_of(self._uuid(seen, is_odd=is_odd))
        if kind == "bool":
            return draw.random() < 0.5
        if kind == "float64":
            return draw.choice((float("nan"), float("inf"), -0.0, 5e-324, -1.0, 1e308, 1e6))
        if kind in ("bytes", "records"):
            return self._bytes(kind, is_odd=is_odd)
        if kind in _BITS and name in WAITS_MS:
            return draw.choice((-1, 0, 1, 20, -(1 << 31)))
        if seen and not is_odd and draw.random() < 0.8:
            return draw.choice(seen)
        if kind == "string":
            if is_odd:
                return draw.choice(STRINGS)
            if field._json.get("entityType") == "topicName" or "topic" in name:
                return draw.choice(TOPICS)
            if "group" in name and name not in SENSIBLE:
                return draw.choice(("group", "other"))
            return draw.choice(SENSIBLE.get(name, ("orders", "group", "x")))
        return self._number(name, _BITS[kind], is_odd=is_odd)

    def _number(self, name: str, bits: int, *, is_odd: bool) -> int:
        highest = (1 << (bits - 1)) - 1
        if is_odd:
            extremes = (highest, -highest - 1, highest - 1, -2, -1, 0, 1, 100)
            return self._draw.choice((*extremes, self._draw.randrange(-highest - 1, highest + 1)))
        choice = self._draw.choice(SENSIBLE.get(name, (0, 0, 1, -1)))
        return int(choice) if isinstance(choice, int) else 0

    def _uuid(self, seen: deque[Any] | None, *, is_odd: bool) -> bytes:
        if is_odd or not seen:
            return self._draw.choice((bytes(16), bytes(15) + b"\1", b"\xff" * 16))
        value = self._draw.choice(seen)
        return bytes(getattr(value, "bytes", value))

    def _bytes(self, kind: str, *, is_odd: bool) -> bytes | None:
        draw = self._draw
        good = _BATCH if kind == "records" else draw.choice((_SUBSCRIPTION, _ASSIGNMENT, b"s" * 16))
        if not is_odd:
            return good
        cut = good[: draw.randrange(len(good))]
        return draw.choice(
            (b"", b"\xff" * 40, cut, good + b"\0", b"\0\x7f\xff\xff\xff\xff", good * 2)
        )


def values_of(item: Any, schema: Any, version: int) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field of a message that is not a struct."""
    for field in schema.fields.values():
        value = getattr(item, field.name, None) if field.for_version_q(version) else None
        if value is None:
            continue
        if field.is_struct_array():
            for each in value:
                yield from values_of(each, field.array_of, version)
        elif field.is_struct():
            yield from values_of(value, field, version)
        elif field.is_array():
            yield from ((field.name, each) for each in value)
        else:
            yield field.name, value


def framed(key: ApiKey, version: int, body: bytes) -> bytes:
    """Return a request as bytes, with its size and header."""
    content = struct.pack(">hhih", key, version, 1, 4) + b"odd!"
    content += (b"\0" if version >= SUPPORTED[key].flexible else b"") + body
    return struct.pack(">i", len(content)) + content


def opened(key: ApiKey, version: int, frame: bytes) -> Any:
    """Decode the response in a frame whose size was removed."""
    header_bytes = 4
    if version >= SUPPORTED[key].flexible and key is not ApiKey.API_VERSIONS:
        header_bytes = 5
    return messages.MESSAGES[key][1].decode(frame[header_bytes:], version=version)


def _one_batch() -> bytes:
    builder = BatchBuilder()
    builder.append(b"key", b"value", None, 1_700_000_000_000)
    return bytes(builder.build())


_BATCH: Final = _one_batch()
_TOPICS: Final = struct.pack(">ih", 1, 6) + b"orders"
_SUBSCRIPTION: Final = struct.pack(">h", 1) + _TOPICS + struct.pack(">ii", -1, 0)
_ASSIGNMENT: Final = struct.pack(">h", 1) + _TOPICS + struct.pack(">iii", 1, 0, -1)

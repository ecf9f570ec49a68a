"""Write `odradek_protocol/kafka/messages.pyi`, the type stub of Kafka's messages.

The message classes are created at run time from Kafka's schemas, most of which come with kafka-python, so a type
checker cannot see their fields. Each API has one request class and one response class for all its versions. In a
version that does not have a field, the field has the schema's default; if that default is null, the field's type
includes None.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGE_ROOT = Path(__file__).parent / "python"
TARGET = PACKAGE_ROOT / "odradek_protocol" / "kafka" / "messages.pyi"
SCALARS = {
    "bool": "bool",
    "bitfield": "set[int]",
    "float64": "float",
    "string": "str",
    **dict.fromkeys(("int8", "int16", "uint16", "int32", "int64"), "int"),
    **dict.fromkeys(("bytes", "records"), "bytes"),
}
HEAD = '''\
"""Generated from Kafka's schemas by `make proto`; do not edit."""

import uuid
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple, Self

from odradek_protocol.kafka.api_keys import ApiKey

class Struct:
    """A message, or a struct within one."""

    _struct: ClassVar[Any]

class Message(Struct):
    """A request or a response."""

    API_KEY: ClassVar[int]
    # Responses of ApiVersions 0 and SaslHandshake have no throttle time, because no quota delays them.
    throttle_time_ms: int
    @classmethod
    def flexible_version_q(cls, version: int) -> bool: ...
    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, version: int) -> Self: ...

class Messages(NamedTuple):
    request: type[Message]
    response: type[Message]

MESSAGES: Final[dict[ApiKey, Messages]]

def uuid_of(topic_id: bytes) -> uuid.UUID: ...
'''


def message_types() -> str:
    """Return the text of `messages.pyi`."""
    sys.path.insert(0, str(PACKAGE_ROOT))
    from odradek_protocol.kafka.api_keys import SUPPORTED
    from odradek_protocol.kafka.messages import MESSAGES

    lines = [HEAD]
    for key, pair in MESSAGES.items():
        versions = range(SUPPORTED[key].lowest, SUPPORTED[key].highest + 1)
        for message in pair:
            uuids = "bytes" if message is pair.request else "uuid.UUID"
            lines += _class(message.__name__, "Message", message._struct, versions, uuids)
            lines.append("")
    return "\n".join(lines)


def _class(name: str, base: str, struct: Any, versions: Iterable[int], uuids: str) -> Iterator[str]:
    fields = [field for field in struct._fields if any(map(field.for_version_q, versions))]
    yield f"class {name}({base}):"
    nested: dict[str, Any] = {}
    for field in fields:
        if field.is_struct_array() or field.is_struct():
            nested.setdefault(field.type_str, field.array_of if field.is_struct_array() else field)
    for inner, inner_struct in nested.items():
        for line in _class(inner, "Struct", inner_struct, versions, uuids):
            yield f"    {line}"
    for field in fields:
        yield f"    {field.name}: {_type(field, versions, uuids, 'list')}"
    arguments = [
        f"{field.name}: {_type(field, versions, uuids, 'Sequence')} = ..." for field in fields
    ]
    yield f"    def __init__({', '.join(['self', *(['*'] if arguments else []), *arguments])}) -> None: ..."


def _type(field: Any, versions: Iterable[int], uuids: str, sequence: str) -> str:
    if field.is_struct_array():
        plain = f"{sequence}[{field.type_str}]"
    elif field.is_array():
        plain = f"{sequence}[{SCALARS[field.array_of._type_str]}]"
    elif field.is_struct():
        plain = field.type_str
    else:
        plain = uuids if field._type_str == "uuid" else SCALARS[field._type_str]
    may_lack = any(
        not field.for_version_q(version) or field._tag is not None for version in versions
    )
    is_nullable = any(
        field.for_version_q(version) and field.nullable_for_version_q(version)
        for version in versions
    )
    return f"{plain} | None" if is_nullable or (may_lack and field.default is None) else plain

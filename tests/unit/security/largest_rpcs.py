"""The largest requests of every RPC for clients: one for each repeated field, at any depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from odradek_protocol.rpc.v1 import (
    admin_service_pb2,
    broker_service_pb2,
    group_service_pb2,
    staged_write_service_pb2,
    transaction_service_pb2,
)

SERVICES = [
    broker_service_pb2.DESCRIPTOR.services_by_name["BrokerService"],
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
    group_service_pb2.DESCRIPTOR.services_by_name["GroupService"],
    transaction_service_pb2.DESCRIPTOR.services_by_name["TransactionService"],
    staged_write_service_pb2.DESCRIPTOR.services_by_name["StagedWriteService"],
]


class LargeRpc(NamedTuple):
    """A large request; `name` is the method and the field that repeats."""

    name: str
    path: str
    request: Message
    response: Any


def largest_rpcs(count: int) -> Iterator[LargeRpc]:
    """Return all large requests, each with this many items."""
    for service in SERVICES:
        for method in service.methods:
            for path in _repeated(method.input_type, ()):
                request = _filled(method.input_type, 0)
                # A repeated field on the way has one item of its own.
                _repeat(request, path, count - len(path) + 1)
                yield LargeRpc(
                    f"{method.name} {'.'.join(path)}",
                    f"/{service.full_name}/{method.name}",
                    request,
                    GetMessageClass(method.output_type).FromString,
                )


def _repeated(message: Descriptor, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for field in message.fields:
        path = (*above, field.name)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.is_repeated:
            yield path
        if field.message_type is not None and not is_map:
            yield from _repeated(field.message_type, path)


def _repeat(message: Any, path: tuple[str, ...], count: int) -> None:
    field = message.DESCRIPTOR.fields_by_name[path[0]]
    if len(path) > 1:
        inner = getattr(message, path[0])
        _repeat(inner.add() if field.is_repeated else inner, path[1:], count)
        return
    items = getattr(message, path[0])
    if field.message_type is None:
        items.extend(_value(field, number) for number in range(count))
    elif field.message_type.GetOptions().map_entry:
        items.update({f"k{number}": "v" for number in range(count)})
    else:
        items.extend(_filled(field.message_type, number) for number in range(count))


def _filled(kind: Descriptor, number: int) -> Any:
    """Fill a message so that its names and numbers differ for each number.

    Topics are only validated by these requests, not created.
    """
    message: Any = GetMessageClass(kind)()
    for field in kind.fields:
        if field.is_repeated or field.containing_oneof is not None:
            continue
        if field.message_type is not None:
            getattr(message, field.name).CopyFrom(_filled(field.message_type, number))
        elif field.name == "acks":
            message.acks = -1
        elif field.name == "validate_only":
            message.validate_only = True
        elif field.name in ("partition", "name", "topic", "resource_name"):
            setattr(message, field.name, _value(field, number))
    return message


def _value(field: Any, number: int) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return "orders" if field.name == "topic" else f"name-{number}"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return number.to_bytes(16)
    return number

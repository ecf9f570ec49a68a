"""Kafka's messages: one class for each request and response of `api_keys.SUPPORTED`, for all its versions.

kafka-python makes the classes from Kafka's schemas when it is imported. It has no schemas of the APIs 64, 68 and
69, of ApiVersions 5, DeleteGroups 3 and TxnOffsetCommit 6; those are in `schemas/`, in the form of Kafka's own files.
The types of the classes, for type checkers, are in `messages.pyi`, which `make proto` generates from the same schemas.
An API that is added to `SUPPORTED` needs no change here.

A nested struct is made by the class's attribute of that name, without a version:
`MetadataResponse.MetadataResponseBroker(node_id=1, ...)`. Fields that a version does not have are left out, and
those that are not given take the schema's default. UUIDs are `uuid.UUID` in responses (`uuid_of`) and 16 raw bytes in
requests.
"""

from __future__ import annotations

import uuid
from importlib import resources
from types import new_class
from typing import Final, NamedTuple

from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.kafka_python import Message, Struct, message_class, response_classes

__all__ = ["MESSAGES", "Message", "Messages", "Struct", "uuid_of"]

_SCHEMAS: Final = "odradek_protocol.kafka.schemas"


class Messages(NamedTuple):
    """The request and response classes of one API."""

    request: type[Message]
    response: type[Message]


def _message(name: str) -> type[Message]:
    """Return the class of a message, made from its schema in `schemas/` if there is one, otherwise the library's
    class.
    """
    if resources.files(_SCHEMAS).joinpath(f"{name}.json").is_file():
        return _own_message(name)
    return message_class(name)


def _own_message(name: str) -> type[Message]:
    """Make a class from a schema in `schemas/`.

    The library keeps the response class of each API in a registry that its own clients use to decode. A class
    made here must not replace one of those: a client in the same process would fail to decode responses.
    """
    library_classes = dict(response_classes)
    message = new_class(name, (Message,), {"load_json": _SCHEMAS})
    response_classes.update(library_classes)
    return message


def _messages(key: ApiKey) -> Messages:
    name = "".join(word.capitalize() for word in key.name.split("_"))
    return Messages(_message(f"{name}Request"), _message(f"{name}Response"))


MESSAGES: Final = {key: _messages(key) for key in SUPPORTED}
globals().update({message.__name__: message for pair in MESSAGES.values() for message in pair})


def uuid_of(topic_id: bytes) -> uuid.UUID:
    """Convert 16 raw bytes to the type that UUID fields of responses have."""
    return uuid.UUID(bytes=bytes(topic_id))

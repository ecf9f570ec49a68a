"""Kafka's messages: for each API of `api_keys.SUPPORTED` one request class and one response class for all versions.

kafka-python creates the classes from Kafka's schemas when it is imported. It has no schemas of the APIs 64, 68 and 69,
of ApiVersions 5, DeleteGroups 3 and TxnOffsetCommit 6. These schemas are in `schemas/`, in the form of Kafka's own
files. `make proto` generates `messages.pyi` from all schemas, so that type checkers know the fields. If an API is added
to `SUPPORTED`, this module need not change.

The class of a nested struct is an attribute of the message class:
`MetadataResponse.MetadataResponseBroker(node_id=1, ...)`. Encoding a message in some version leaves out fields that the
version does not have. A field that the constructor is not given has the schema's default. UUID fields are `uuid.UUID`
in responses (`uuid_of`) and 16 raw bytes in requests.
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
    """Return the class of a message, such as `MetadataRequest`. A schema in `schemas/` takes precedence over
    kafka-python's class.
    """
    if resources.files(_SCHEMAS).joinpath(f"{name}.json").is_file():
        return _own_message(name)
    return message_class(name)


def _own_message(name: str) -> type[Message]:
    """Create a message class from a schema in `schemas/`.

    When a class is created, kafka-python registers it as the response class of its API. Clients of kafka-python in this
    process would then decode responses with the new class, which fails. So this function restores the previous
    registry.
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
    """Convert a topic id of 16 raw bytes to `uuid.UUID`, the type of UUID fields in responses."""
    return uuid.UUID(bytes=bytes(topic_id))

"""Messages of generated protobuf classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")


def protobuf(message: Message | None) -> bytes | None:
    """The message's bytes, the same for equal messages. Raises EncodeError for missing required fields."""
    return None if message is None else message.SerializeToString(deterministic=True)


def from_protobuf(kind: type[M]) -> Callable[[bytes | None], M | None]:
    """A deserializer to this class. It raises DecodeError for damaged bytes."""

    def deserialize(data: bytes | None) -> M | None:
        return None if data is None else kind.FromString(data)

    return deserialize

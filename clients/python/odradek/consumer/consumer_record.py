"""What a consumer hands out."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class ConsumerRecord(Protocol):
    """One record. Key and value are bytes or None, or what the deserializers made of them."""

    @property
    def topic(self) -> str | None: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def timestamp_type(self) -> int:
        """0: its producer's clock; 1: its leader's, at the append."""


class DeserializedRecord(NamedTuple):
    """A record whose key and value went through deserializers."""

    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    offset: int
    topic: str | None
    partition: int
    leader_epoch: int
    timestamp_type: int

"""The records that a consumer returns."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class ConsumerRecord(Protocol):
    """One record. Its key and value are bytes or None, or the results of the consumer's deserializers."""

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
        """0: the timestamp was set by the producer. 1: it is the leader's time of the append."""


class DeserializedRecord(NamedTuple):
    """A record whose key and value were deserialized. The fields are those of `ConsumerRecord`."""

    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    offset: int
    topic: str | None
    partition: int
    leader_epoch: int
    timestamp_type: int

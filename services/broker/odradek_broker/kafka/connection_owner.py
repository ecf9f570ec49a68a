"""The listener, as its connections see it, and a connection, as its listener does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from odradek_broker.kafka.counters import KafkaCounters
from odradek_broker.kafka.frames import ArrivingBytes
from odradek_broker.kafka.registry import Registry
from odradek_broker.kafka.request import ClientSession


class Connection(Protocol):
    """One client's."""

    def mute_for(self, wait_ms: int) -> None:
        """Begin nothing for so long (connection quotas)."""

    def read_on(self) -> None:
        """There is room again for large frames."""

    def check(self, now_ms: int) -> None:
        """Close it if it is too slow or rests too long; the listener calls this every second."""

    def abort(self) -> None:
        """Close it now (the listener stops)."""


class ConnectionOwner(Protocol):
    """The listener."""

    registry: Registry
    counters: KafkaCounters
    arriving: ArrivingBytes
    scratch: bytearray
    frame_bytes_max: int
    idle_ms_max: int

    def opened(self, connection: Connection, transport: asyncio.Transport) -> ClientSession:
        """Count it and say who is there; raises CloseConnection when there are too many."""

    def advice_for(self, protocol: str) -> str:
        """What to tell a client of another protocol: what this listener is, and where its own would be."""

    def logged_in(self, connection: Connection) -> None:
        """It is no stranger any more."""

    def closed(self, connection: Connection) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it in the listener's task group."""

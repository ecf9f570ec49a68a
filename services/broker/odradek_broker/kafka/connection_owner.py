"""The interfaces (`Protocol` classes) by which a listener and its connections call each other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Protocol

from odradek_broker.kafka.counters import KafkaCounters
from odradek_broker.kafka.frames import ArrivingBytes
from odradek_broker.kafka.registry import Registry
from odradek_broker.kafka.request import ClientSession


class Connection(Protocol):
    """The methods of a connection that its listener uses."""

    def mute_for(self, wait_ms: int) -> None:
        """Begin no request for `wait_ms`, because of a connection quota."""

    def read_on(self) -> None:
        """Resume reading, because memory for large frames has been freed."""

    def check(self, now_ms: int) -> None:
        """Close the connection if the client is too slow or idle for too long. The listener calls this every second."""

    def give_up(self, reason: str) -> None:
        """Close the connection now, and log the reason. A `reason` of "" is not logged (the listener stops)."""


class ConnectionOwner(Protocol):
    """The methods of a listener that its connections use."""

    registry: Registry
    counters: KafkaCounters
    arriving: ArrivingBytes
    scratch: bytearray
    frame_folder: Path
    frame_bytes_max: int
    idle_ms_max: int

    def opened(self, connection: Connection, transport: asyncio.Transport) -> ClientSession:
        """Count a connection and return its session. Raises CloseConnection if there are too many."""

    def advice_for(self, protocol: str) -> str:
        """Return a text for a client that speaks `protocol`, which is not the listener's: what this listener is, and
        where the client should connect.
        """

    def hold_early(self, connection: Connection, size_bytes: int) -> str | None:
        """Record how many bytes of frames are buffered for a client that has not logged in. Return an error text if
        there are too many such bytes, or None.
        """

    def logged_in(self, connection: Connection) -> None:
        """Remove the connection from the count of connections that have not logged in."""

    def closed(self, connection: Connection) -> None: ...

    def spawn(self, work: Coroutine[object, None, None]) -> asyncio.Task[None]:
        """Run a coroutine in the listener's task group."""

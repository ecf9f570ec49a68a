"""The interface between the SDK and the network protocol.

A transport sends typed requests to an endpoint (`host:port`) and returns responses, one at a time (`call`) or as a
stream (`open`). The transport knows nothing of brokers, topics or retries. Both the gRPC transport and the in-memory
transport encode and decode every message, so in-memory tests cover the encoding.

`call`, and a stream's `send` and `receive`, raise `BrokerUnreachable` (or `NameUnresolvable`) if there is no
connection, or if it broke. They also raise `RequestTimedOut`, `AuthenticationFailed`, `AuthorizationFailed`,
`UnsupportedOperation`, `ThrottlingQuotaExceeded` and `ServerFault`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")
Q_contra = TypeVar("Q_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class MethodKind(Enum):
    """Which sides of an RPC send a stream of messages."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDI = "bidi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Generic[Q, R]):
    """One RPC: its path, and the functions that encode requests and decode responses."""

    service: str
    name: str
    kind: MethodKind
    encode: Callable[[Q], bytes]
    decode: Callable[[bytes], R]

    @property
    def path(self) -> str:
        """The path of the RPC in HTTP/2 (the :path header)."""
        return f"/{self.service}/{self.name}"


class Stream(Protocol[Q_contra, R_co]):
    """One open stream. A server stream allows exactly one `send`, before the first `receive`."""

    async def send(self, request: Q_contra) -> None:
        """Send one message. Waits while the broker's flow-control window is full."""

    async def receive(self) -> R_co | None:
        """Return the next message, or None if the broker ended the stream without an error."""

    def cancel(self) -> None:
        """End the stream. A pending `receive` raises BrokerUnreachable. May be called twice."""


class Transport(Protocol):
    """Sends messages to endpoints. It opens connections when they are needed."""

    async def call(self, endpoint: str, method: Method[Q, R], request: Q, *, timeout_s: float) -> R:
        """Send one request and return its response. Raises RequestTimedOut after `timeout_s`."""

    def open(self, endpoint: str, method: Method[Q, R]) -> Stream[Q, R]:
        """Open a stream without waiting. If the endpoint does not respond, `send` and `receive` raise an error."""

    async def close(self) -> None:
        """Close all connections, which ends open streams."""

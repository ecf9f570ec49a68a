"""The seam between the SDK and the wire.

A transport carries typed requests to an endpoint (`host:port`) and answers back, one at a time
(`call`) or as a stream (`open`). It knows no brokers, topics or retries. Both the gRPC one and the
one in memory encode and decode every message, so a test in memory runs the code of the wire.

Errors, from `call` and from a stream's `send` and `receive`: `BrokerUnreachable` (and
`NameUnresolvable`) when there is no connection or it broke, `RequestTimedOut`,
`AuthenticationFailed`, `AuthorizationFailed`, `UnsupportedOperation`, `ServerFault`.
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
    """Which side streams."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDI = "bidi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Generic[Q, R]):
    """One RPC: its path, and how its messages become bytes and back."""

    service: str
    name: str
    kind: MethodKind
    encode: Callable[[Q], bytes]
    decode: Callable[[bytes], R]

    @property
    def path(self) -> str:
        """As HTTP/2 carries it."""
        return f"/{self.service}/{self.name}"


class Stream(Protocol[Q_contra, R_co]):
    """One open stream. A server stream takes exactly one `send`, first."""

    async def send(self, request: Q_contra) -> None:
        """Hand over one message; waits while the other side's window is full."""

    async def receive(self) -> R_co | None:
        """The next message; None when the broker ended the stream in good order."""

    def cancel(self) -> None:
        """End it at once; a waiting `receive` raises BrokerUnreachable. May be called twice."""


class Transport(Protocol):
    """Carries messages to endpoints. Connections are its own affair."""

    async def call(self, endpoint: str, method: Method[Q, R], request: Q, *, timeout_s: float) -> R:
        """One request, one answer, within `timeout_s`."""

    def open(self, endpoint: str, method: Method[Q, R]) -> Stream[Q, R]:
        """Open a stream; does not wait: that nobody answers shows at `send` or `receive`."""

    async def close(self) -> None:
        """Close all connections; streams that are open end."""

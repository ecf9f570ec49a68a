"""The caller of a request, and access to the cluster as that caller.

Every call to a broker names the caller on whose behalf it is made. All callers share the connections of the gateway's
own access, but their calls and streams have different `odradek-on-behalf-of` headers, so each caller has its own client
and producer (a `CallerAccess`). An access stays open while requests or consumer instances use it. If more than
`callers.max` accesses are open, the unused accesses that were idle for the longest time are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from odradek.client import Client
from odradek.cluster.grpc_transport import GrpcTransport
from odradek.cluster.transport import Method, Stream
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.settings import GatewaySettings
from odradek_gateway.transactional_producers import TransactionalProducers

HEALTH_PATHS: Final = frozenset({"/livez", "/readyz", "/_health"})
"""Paths that are served to everybody and under any load. If a health check were refused, Kubernetes would restart a
healthy gateway.
"""
ACCESS: Final = "odradek.cluster"
"""The key under which a request's scope holds the caller's access to the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request. `principal` is like User:alice, or empty without authentication; `host` is the sender's
    address.
    """

    principal: str = ""
    host: str = ""


NOBODY = Caller()
_current: ContextVar[Caller] = ContextVar("odradek_http_caller", default=NOBODY)


def current_caller() -> Caller:
    """Return the caller whose request this task handles; NOBODY if callers are not authenticated."""
    return _current.get()


@contextmanager
def serving(caller: Caller) -> Iterator[None]:
    """Make `caller` the current caller within a `with` block."""
    before = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(before)


_CLOSE_S: Final = 5.0
_SAFE: Final = (
    " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # all characters that a header may have, except %
)


def on_behalf_of(caller: Caller) -> dict[str, str]:
    """Return the headers by which a gateway names its caller to a broker or to another gateway."""
    return {
        "odradek-on-behalf-of": quote(caller.principal, safe=_SAFE),
        "odradek-on-behalf-of-host": caller.host,
    }


class OnBehalfOf:
    """A transport whose calls act on behalf of a caller. It uses the connections of the transport `shared`."""

    def __init__(self, shared: GrpcTransport, caller: Caller) -> None:
        self._shared = shared
        self._metadata = tuple(on_behalf_of(caller).items())

    async def call(
        self, endpoint: str, method: Method[Any, Any], request: Any, *, timeout_s: float
    ) -> Any:
        """Call a broker on the caller's behalf (Transport.call)."""
        return await self._shared.call(
            endpoint, method, request, timeout_s=timeout_s, metadata=self._metadata
        )

    def open(self, endpoint: str, method: Method[Any, Any]) -> Stream[Any, Any]:
        """Open a stream on the caller's behalf (Transport.open)."""
        return self._shared.open(endpoint, method, metadata=self._metadata)

    async def close(self) -> None:
        """Do nothing: the connections belong to `shared`, and each stream is closed by the code that opened it."""


class CallerAccess(ClusterAccess):
    """One caller's access to the cluster: a client and a producer."""

    def __init__(self, process: ClusterAccess, caller: Caller) -> None:
        self.settings = process.settings
        self.url = process.url
        self.caller = caller
        self.transport = process.transport
        self.client = Client(
            process.settings.bootstrap,
            transport=OnBehalfOf(process.transport, caller),
            suggests_topics=False,
        )
        self.producer = self.client.producer(
            acks="all",
            linger_ms=0,
            delivery_timeout_ms=30_000,
            max_block_ms=5_000,
            # As in Confluent's REST Proxy, auto.create.topics.enable of the cluster decides.
            allow_auto_create_topics=True,
        )
        self.transactions = TransactionalProducers(self.client)
        self.requests = 0
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.waits = process.waits


class CallerAccesses:
    """The open accesses to the cluster, by caller; `process` is the access of the gateway itself."""

    def __init__(self, process: ClusterAccess, settings: GatewaySettings) -> None:
        self._process = process
        self._accesses_max = settings.callers_max
        self.transport = process.transport
        # The access that was not used for the longest time comes first.
        self._known: OrderedDict[Caller, CallerAccess] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._known)

    @contextlib.asynccontextmanager
    async def lease(self, caller: Caller) -> AsyncIterator[CallerAccess]:
        """Yield the caller's access, which stays open until the `async with` block ends."""
        access = self.of(caller)
        access.requests += 1
        try:
            yield access
        finally:
            access.requests -= 1
            self._trim()

    def of(self, caller: Caller) -> CallerAccess:
        """Return the caller's access; it is created if there is none. The access stays open as long as any object in
        its `users`, which holds weak references, exists.
        """
        access = self._known.get(caller)
        if access is None:
            access = self._known[caller] = CallerAccess(self._process, caller)
        self._known.move_to_end(caller)
        return access

    async def close(self) -> None:
        """Close all accesses. Waits at most 5 s. The connections belong to the gateway's own access."""
        for caller in list(self._known):
            self._drop(caller)
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSE_S)

    def _trim(self) -> None:
        if len(self._known) <= self._accesses_max:
            return
        for caller, access in list(self._known.items()):
            if len(self._known) <= self._accesses_max:
                return
            if not access.requests and not access.users:
                self._drop(caller)

    def _drop(self, caller: Caller) -> None:
        task = asyncio.create_task(
            self._end(self._known.pop(caller)), name="close a caller's access"
        )
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _end(self, access: CallerAccess) -> None:
        await access.transactions.close()
        await access.producer.close(_CLOSE_S)
        await access.client.close()

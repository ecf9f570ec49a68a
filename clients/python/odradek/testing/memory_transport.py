"""The transport that ends in a `MemoryCluster`. Every message is encoded and decoded, as on a wire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from odradek.errors import (
    BrokerUnreachable,
    ClientClosed,
    NameUnresolvable,
    RequestTimedOut,
    UnsupportedOperation,
)
from odradek.testing.memory_admin import ADMIN_CALLS
from odradek.testing.memory_broker import BROKER_CALLS, BROKER_STREAMS
from odradek.testing.memory_cluster import MemoryCluster
from odradek.testing.memory_groups import GROUP_CALLS
from odradek.transports.transport import Method, Stream

Q = TypeVar("Q")
R = TypeVar("R")

MESSAGES_MAX = 64


class MemoryTransport:
    """Reaches the brokers of one cluster by their endpoints."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._streams: set[MemoryStream] = set()
        self._is_closed = False

    async def call(self, endpoint: str, method: Method[Q, R], request: Q, *, timeout_s: float) -> R:
        """One request, one answer."""
        if self._is_closed:
            raise ClientClosed("the client is closed")
        broker_id = _reach(self._cluster, endpoint)
        self._cluster.requests.append(method.name)
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(timeout_s):
                while broker_id in self._cluster.frozen:
                    await self._cluster.wait_change()
        except TimeoutError:
            raise RequestTimedOut(f"{method.name} was not answered by {endpoint}") from None
        _reach(self._cluster, endpoint)
        for table in (BROKER_CALLS, ADMIN_CALLS, GROUP_CALLS):
            if method.name in table:
                kind, handler = table[method.name]
                message = kind.FromString(method.encode(request))
                answer = handler(self._cluster, broker_id, message)
                return method.decode(answer.SerializeToString())
        raise UnsupportedOperation(f"the broker at {endpoint} does not offer {method.name}")

    def open(self, endpoint: str, method: Method[Q, R]) -> Stream[Q, R]:
        """Open a stream."""
        if self._is_closed:
            raise ClientClosed("the client is closed")
        stream = MemoryStream(self._cluster, endpoint, method)
        self._streams.add(stream)
        stream.on_end = lambda: self._streams.discard(stream)
        return stream

    async def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for stream in list(self._streams):
            stream.cancel()


class MemoryStream:
    """Two bounded queues and a broker's handler between them, as a task."""

    def __init__(self, cluster: MemoryCluster, endpoint: str, method: Method[Any, Any]) -> None:
        self.on_end: Callable[[], None] = lambda: None
        self._cluster = cluster
        self._endpoint = endpoint
        self._method = method
        self._requests: asyncio.Queue[bytes] = asyncio.Queue(MESSAGES_MAX)
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue(MESSAGES_MAX)
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._broker_id = -1

    async def send(self, request: Any) -> None:
        """Hand over one message; the first one connects."""
        self._connect()
        await self._unless_broken(self._requests.put(self._method.encode(request)))

    async def receive(self) -> Any:
        """The next message, or None at the end."""
        self._connect()
        message = await self._unless_broken(self._answers.get())
        return None if message is None else self._method.decode(message)

    def cancel(self) -> None:
        """End it."""
        self._break()

    def _connect(self) -> None:
        if self._broken.done():
            raise BrokerUnreachable(self._endpoint, "the connection broke")
        if self._task is None:
            self._broker_id = _reach(self._cluster, self._endpoint)
            self._cluster.requests.append(self._method.name)
            self._cluster.on_disconnect(self._broker_id, self._break)
            self._task = asyncio.create_task(self._serve(), name=f"memory {self._method.name}")

    async def _serve(self) -> None:
        kind, handler = BROKER_STREAMS[self._method.name]

        async def requests() -> AsyncGenerator[Message, None]:
            while True:
                request = await self._requests.get()
                while self._broker_id in self._cluster.frozen:
                    await self._cluster.wait_change()
                yield kind.FromString(request)

        try:
            async with contextlib.aclosing(requests()) as source:
                answers = handler(self._cluster, self._broker_id, source)
                async with contextlib.aclosing(answers):
                    async for answer in answers:
                        while self._broker_id in self._cluster.frozen:
                            await self._cluster.wait_change()
                        await self._answers.put(answer.SerializeToString())
            await self._answers.put(None)
        except ConnectionResetError:
            self._break()

    async def _unless_broken(self, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            if not task.done():
                task.cancel()
        raise BrokerUnreachable(self._endpoint, "the connection broke")

    def _break(self) -> None:
        if not self._broken.done():
            self._broken.set_result(None)
        if self._task is not None:
            self._task.cancel()
            self._cluster.forget_disconnect(self._broker_id, self._break)
        self.on_end()


def _reach(cluster: MemoryCluster, endpoint: str) -> int:
    if endpoint.rpartition(":")[0].endswith(".invalid"):
        raise NameUnresolvable(endpoint, "its name does not resolve on this machine")
    for broker_id, known in cluster.endpoints.items():
        if known == endpoint:
            if broker_id in cluster.alive:
                return broker_id
            raise BrokerUnreachable(endpoint, "connection refused")
    raise BrokerUnreachable(endpoint, "nothing listens there")

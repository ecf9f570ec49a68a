"""The server side of the gRPC streams between brokers (peer_streams.py). It receives entries (numbered requests), and
sends their results in any order.

Each other broker has at most one open session of each kind. A session with a higher broker epoch or session number ends
the older session; entries that still arrive on the older session are discarded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from odradek_broker.coordination.peer_streams import MESSAGE_BYTES_MAX, WINDOW_ENTRIES, Entry
from odradek_broker.replication.streams.follower_sessions import Refusal, StreamRefused
from odradek_protocol.identity import ClusterId
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb


class LinkPeer(Protocol):
    """A stream that another broker opened. It delivers encoded messages in order and without gaps until it breaks."""

    def is_from(self, broker_id: int) -> bool:
        """Return whether the caller has authenticated as this broker, or need not authenticate."""

    async def read(self) -> bytes | None:
        """Wait for the next message and return it. Return None if the other broker ended the stream."""

    async def accept(self) -> None:
        """Report to the other broker that its Hello message was accepted."""

    async def write(self, message: bytes) -> None:
        """Send a message with results."""


class SizedResult(Protocol):
    """The result of one entry. Its size counts against the size limit of the message that contains it."""

    def ByteSize(self) -> int: ...


E = TypeVar("E", bound=Entry)
R = TypeVar("R", bound=SizedResult)


class LinkSessions(Generic[E, R]):
    """Serves the streams of one kind that other brokers open. `handle(entry)` must return an awaitable of the entry's
    result.
    """

    def __init__(
        self,
        *,
        cluster_id: ClusterId,
        decode: Callable[[bytes], tuple[pb.TransactionLinkHello | None, Iterable[E]]],
        encode: Callable[[Iterable[R]], bytes],
        handle: Callable[[E], Awaitable[R]],
    ) -> None:
        self._cluster_id = cluster_id
        self._decode = decode
        self._encode = encode
        self._handle = handle
        self._open: dict[int, tuple[tuple[int, int], asyncio.Task[Any]]] = {}

    async def serve(self, connection: LinkPeer) -> None:
        """Serve one broker's stream until either side ends it.

        Raises:
            StreamRefused: the stream does not begin with a valid Hello message, a newer session is open, or too many
                entries have no response.
        """
        first = await connection.read()
        hello = None if first is None else self._decode(first)[0]
        if hello is None:
            raise StreamRefused(Refusal.NO_HELLO, "the first message of a stream must be Hello")
        self._check(hello, connection)
        task = self._supersede(hello)
        try:
            await connection.accept()
            await _Session(connection, self._decode, self._encode, self._handle).run()
        finally:
            if self._open.get(hello.broker_id, (None, None))[1] is task:
                del self._open[hello.broker_id]

    def _check(self, hello: pb.TransactionLinkHello, connection: LinkPeer) -> None:
        if hello.cluster_id != self._cluster_id:
            raise StreamRefused(
                Refusal.NOT_PERMITTED,
                f"this broker belongs to cluster {self._cluster_id}, and the caller to {hello.cluster_id}",
            )
        if not connection.is_from(hello.broker_id):
            raise StreamRefused(
                Refusal.NOT_PERMITTED, f"the certificate does not name broker {hello.broker_id}"
            )

    def _supersede(self, hello: pb.TransactionLinkHello) -> asyncio.Task[Any]:
        number = (hello.broker_epoch, hello.session_id)
        before = self._open.get(hello.broker_id)
        if before is not None:
            older, task = before
            if older >= number:
                raise StreamRefused(
                    Refusal.SUPERSEDED, "a newer session of the calling broker is open"
                )
            task.cancel()
        current = asyncio.current_task()
        assert current is not None
        self._open[hello.broker_id] = (number, current)
        return current


class _Session(Generic[E, R]):
    def __init__(
        self,
        connection: LinkPeer,
        decode: Callable[[bytes], tuple[pb.TransactionLinkHello | None, Iterable[E]]],
        encode: Callable[[Iterable[R]], bytes],
        handle: Callable[[E], Awaitable[R]],
    ) -> None:
        self._connection = connection
        self._decode = decode
        self._encode = encode
        self._handle = handle
        self._results: deque[R] = deque()
        self._wake = asyncio.Event()
        self._under_way = 0

    async def run(self) -> None:
        refusal: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {group.create_task(self._write())}
                await self._read(group, tasks)
                for task in tuple(tasks):
                    task.cancel()
        except* StreamRefused as refused:
            refusal = refused.exceptions[0]
        if refusal is not None:
            raise refusal

    async def _read(self, group: asyncio.TaskGroup, tasks: set[asyncio.Task[None]]) -> None:
        while (message := await self._connection.read()) is not None:
            for entry in self._decode(message)[1]:
                self._under_way += 1
                if self._under_way > 2 * WINDOW_ENTRIES:
                    raise StreamRefused(
                        Refusal.NOT_PERMITTED, "too many entries of the stream have no response yet"
                    )
                task = group.create_task(self._respond(entry))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    async def _respond(self, entry: E) -> None:
        self._results.append(await self._handle(entry))
        self._wake.set()

    async def _write(self) -> None:
        while True:
            while not self._results:
                self._wake.clear()
                await self._wake.wait()
            results: list[R] = []
            size_bytes = 0
            while self._results:
                size_bytes += self._results[0].ByteSize()
                if results and size_bytes > MESSAGE_BYTES_MAX:
                    break
                results.append(self._results.popleft())
            self._under_way -= len(results)
            await self._connection.write(self._encode(results))

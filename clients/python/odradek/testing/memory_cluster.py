"""A cluster in memory, for tests: brokers, leaders, offsets and faults, without a process or a port.

    cluster = MemoryCluster(brokers=3)
    cluster.create_topic("orders", partitions=2)
    async with cluster.client() as client:
        ...

The cluster uses the SDK's wire messages and behaves like a real one in everything that clients depend on: it validates
batches, assigns offsets, recognizes duplicate batches of a producer, refuses gaps in a producer's sequence, refuses
requests with a wrong leader epoch, limits fetches by credit, and identifies topics by id. Consumer groups share
partitions, rebalance, and fence members (`groups`). Records are not replicated: all brokers share one log per
partition, so no records are lost when a broker is killed. `lose_records` loses records.

These methods cause faults: `kill`, `start`, `freeze`, `thaw`, `move_leader`, `fail_next` (error codes for the next
produce, fetch or offset requests of a partition), `lose_next_answers` (the broker writes, but its response is lost),
`lose_records` and `time_out_transaction`. `fail_next_call` and `lose_next_responses` apply to the next calls of an RPC
method, which return an error code or no response. A staged write consists of tasks in several processes that take
effect as one step: `end_lease` lets the lease of one task expire, and `time_out_step` aborts the tasks of a step that
are prepared.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from odradek.cluster.transport import Method, Stream
from odradek.errors import (
    BrokerUnreachable,
    ClientClosed,
    NameUnresolvable,
    RequestTimedOut,
    UnsupportedOperation,
)
from odradek.partitions import TopicPartition
from odradek.testing.memory_admin import ADMIN_CALLS
from odradek.testing.memory_broker import (
    BROKER_CALLS,
    BROKER_STREAMS,
    GROUP_CALLS,
    TRANSACTION_CALLS,
)
from odradek.testing.memory_log import MemoryLog
from odradek.testing.memory_state import MemoryState
from odradek_protocol.kafka.error_codes import ErrorCode

if TYPE_CHECKING:
    from odradek.client import Client


# A connection to a broker that hangs breaks after this time, as it does over gRPC.
KEEPALIVE_S = 2.0


class MemoryCluster(MemoryState):
    """An in-memory cluster, with methods that cause faults."""

    @property
    def bootstrap(self) -> str:
        """The endpoints of all brokers, as HOST:PORT,..."""
        return ",".join(self.endpoints.values())

    def transport(self) -> MemoryTransport:
        """Create a transport to this cluster, for `Client(transport=...)`."""
        return MemoryTransport(self)

    def client(self) -> Client:
        """Create a client of this cluster."""
        from odradek.client import Client

        return Client(self.bootstrap, transport=self.transport())

    def log(self, name: str, index: int = 0) -> MemoryLog:
        """Return the log of a partition, which must exist."""
        return self.topics[name].partitions[index].log

    def move_leader(self, name: str, index: int, to: int, *, tell: bool = True) -> None:
        """Make another broker the leader of a partition. With `tell=False`, clients receive no new metadata."""
        partition = self.topics[name].partitions[index]
        partition.leader_id = to
        partition.leader_epoch += 1
        if tell:
            self.changed()

    def kill(self, broker_id: int, *, elect: bool = True) -> None:
        """Stop a broker and break its connections. Unless `elect` is False, other brokers become the leaders of its
        partitions.
        """
        self.alive.discard(broker_id)
        self._break_connections(broker_id)
        if elect:
            self.elect()

    def elect(self) -> None:
        """Elect a live leader for each partition whose leader is stopped. A partition without a live replica gets no
        leader.
        """
        for topic in self.topics.values():
            for partition in topic.partitions:
                if partition.leader_id not in self.alive:
                    partition.leader_id = next(
                        (i for i in partition.replicas if i in self.alive), -1
                    )
                    partition.leader_epoch += 1
        self.changed()

    def start(self, broker_id: int) -> None:
        """Start a stopped broker again. It becomes the leader of partitions that have no leader, and moves of
        partitions that waited for the broker end.
        """
        self.alive.add(broker_id)
        self.end_moves()
        self.elect()

    def freeze(self, broker_id: int) -> None:
        """Make a broker hang, as SIGSTOP does. It does not respond, and its connections break after KEEPALIVE_S."""
        self.frozen.add(broker_id)
        asyncio.get_running_loop().call_later(KEEPALIVE_S, self._break_if_frozen, broker_id)

    def thaw(self, broker_id: int) -> None:
        """Let a broker that hangs continue."""
        self.frozen.discard(broker_id)
        self.changed()

    def disconnect(self, broker_id: int) -> None:
        """Break the connections of a broker. Requests without a response may or may not have been executed."""
        self._break_connections(broker_id)

    def fail_next(self, kind: str, name: str, index: int, *codes: ErrorCode) -> None:
        """Respond to the next requests of `kind` ("produce", "fetch" or "offsets") for a partition with these error
        codes, one for each request. `ErrorCode.NONE` executes the request.
        """
        self._faults[kind, TopicPartition(name, index)].extend(codes)

    def fail_next_call(self, method: str, *codes: ErrorCode) -> None:
        """Respond to the next calls of a method with these error codes, without executing them. The method must be one
        that changes transactions, such as "EndTransaction" or "CompleteStep".
        """
        self.transactions.faults[method].extend(codes)

    def lose_next_responses(self, method: str, count: int = 1) -> None:
        """Execute the next calls of a method, but lose the responses. The method is "EndTransaction", "OpenStaged",
        "PrepareStaged", "CompleteStep" or "AbortStaged".
        """
        self.transactions.responses_to_lose[method] += count

    def lose_next_ends(self, count: int = 1) -> None:
        """Commit or abort the next transactions that producers end, but lose the responses."""
        self.lose_next_responses("EndTransaction", count)

    def lose_next_answers(self, name: str, index: int, count: int = 1) -> None:
        """Append the batches of the next produce requests for a partition, but break the connection instead of
        responding.
        """
        self._responses_to_lose[TopicPartition(name, index)] += count

    def lose_records(self, name: str, index: int, from_offset: int) -> None:
        """Lose the records of a partition from this offset on, as in an unclean leader election. A new leader epoch
        begins.
        """
        partition = self.topics[name].partitions[index]
        partition.log.truncate_to(from_offset)
        self.move_leader(name, index, partition.leader_id)

    def time_out_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of this transactional id, as if its timeout had passed. After the program
        has called `Transaction.abort`, the producer can begin another transaction.
        """
        self.transactions.time_out(transactional_id)

    def end_lease(self, query: str, task: str) -> None:
        """Abort a task of a staged write, as if its lease had expired. `task` is the name that was passed to `open`."""
        self.staged_writes.end_lease(query, task)

    def time_out_step(self, query: str, step: int) -> None:
        """Abort the prepared tasks of a step, as if no process of its query had renewed them for too long."""
        self.staged_writes.time_out_step(query, step)

    def _break_if_frozen(self, broker_id: int) -> None:
        if broker_id in self.frozen:
            self._break_connections(broker_id)

    def _break_connections(self, broker_id: int) -> None:
        for callback in self._disconnect.pop(broker_id, []):
            callback()
        self.wake()


Q = TypeVar("Q")
R = TypeVar("R")

MESSAGES_MAX = 64


class MemoryTransport:
    """The transport to a `MemoryCluster`. It encodes and decodes every message, as a network transport does."""

    def __init__(self, cluster: MemoryState) -> None:
        self._cluster = cluster
        self._streams: set[MemoryStream] = set()
        self._is_closed = False

    async def call(self, endpoint: str, method: Method[Q, R], request: Q, *, timeout_s: float) -> R:
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
            raise RequestTimedOut(f"{method.name} got no response from {endpoint}") from None
        _reach(self._cluster, endpoint)
        for table in (BROKER_CALLS, ADMIN_CALLS, GROUP_CALLS, TRANSACTION_CALLS):
            if method.name in table:
                kind, handler = table[method.name]
                message = kind.FromString(method.encode(request))
                response = handler(self._cluster, broker_id, message)
                if table is ADMIN_CALLS and "metadata_offset" in response.DESCRIPTOR.fields_by_name:
                    setattr(response, "metadata_offset", self._cluster.metadata_offset)  # noqa: B010
                return method.decode(response.SerializeToString())
        raise UnsupportedOperation(f"the broker at {endpoint} does not support {method.name}")

    def open(self, endpoint: str, method: Method[Q, R]) -> Stream[Q, R]:
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
    """A stream: two bounded queues, and a task that runs the broker's handler between them."""

    def __init__(self, cluster: MemoryState, endpoint: str, method: Method[Any, Any]) -> None:
        self.on_end: Callable[[], None] = lambda: None
        self._cluster = cluster
        self._endpoint = endpoint
        self._method = method
        self._requests: asyncio.Queue[bytes] = asyncio.Queue(MESSAGES_MAX)
        self._responses: asyncio.Queue[bytes | None] = asyncio.Queue(MESSAGES_MAX)
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._broker_id = -1

    async def send(self, request: Any) -> None:
        """Send one message. The first call opens the connection."""
        self._connect()
        await self._unless_broken(self._requests.put(self._method.encode(request)))

    async def receive(self) -> Any:
        """Return the next message, or None if the broker ended the stream."""
        self._connect()
        message = await self._unless_broken(self._responses.get())
        return None if message is None else self._method.decode(message)

    def cancel(self) -> None:
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
                responses = handler(self._cluster, self._broker_id, source)
                async with contextlib.aclosing(responses):
                    async for response in responses:
                        while self._broker_id in self._cluster.frozen:
                            await self._cluster.wait_change()
                        await self._responses.put(response.SerializeToString())
            await self._responses.put(None)
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


def _reach(cluster: MemoryState, endpoint: str) -> int:
    if endpoint.rpartition(":")[0].endswith(".invalid"):
        raise NameUnresolvable(endpoint, "its host name cannot be resolved on this machine")
    for broker_id, broker_endpoint in cluster.endpoints.items():
        if broker_endpoint == endpoint:
            if broker_id in cluster.alive:
                return broker_id
            raise BrokerUnreachable(endpoint, "connection refused")
    raise BrokerUnreachable(endpoint, "nothing listens there")

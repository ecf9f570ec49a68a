"""Streams between brokers: entries of one event-loop iteration are sent together, results arrive in
any order, and nothing is sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from odradek_broker.coordination import peer_streams
from odradek_broker.coordination.link_sessions import LinkSessions
from odradek_broker.coordination.peer_streams import LinkKind, PeerStreams
from odradek_broker.coordination.transaction_runtime import (
    decode_marker_request,
    decode_marker_response,
    encode_marker_request,
    encode_marker_response,
)
from odradek_broker.replication.streams.follower_sessions import Refusal, StreamRefused
from odradek_broker.replication.streams.follower_stream import StreamBroken
from odradek_protocol.identity import BrokerEpoch, BrokerId, ClusterId
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb

CLUSTER = ClusterId("c")
PEER = BrokerId(2)
Handle = Callable[[pb.MarkEntry], Awaitable[pb.MarkResult]]


class Connection:
    """Both ends of one stream: a LinkConnection, and a LinkPeer."""

    def __init__(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        self.requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.messages: list[bytes] = []
        self.is_accepted = asyncio.Event()
        self.refusal: StreamRefused | None = None
        self._serving = asyncio.create_task(self._serve(serve))

    async def _serve(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        try:
            await serve(self)
        except StreamRefused as refused:
            self.refusal = refused
        finally:
            self.responses.put_nowait(None)
            self.is_accepted.set()

    def break_off(self) -> None:
        """End the stream at both ends."""
        self._serving.cancel()

    # A LinkConnection, but for `read`.

    async def accepted(self) -> None:
        await self.is_accepted.wait()
        if self._serving.done():
            raise StreamBroken("refused")

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.wait([self._serving])


class Opened:
    """The end that opened the stream."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.accepted, self.close = connection.accepted, connection.close

    async def write(self, message: bytes) -> None:
        self.connection.messages.append(message)
        self.connection.requests.put_nowait(message)

    async def read(self) -> bytes:
        message = await self.connection.responses.get()
        if message is None:
            raise StreamBroken("the peer is gone")
        return message


class Served:
    """The end that serves the stream."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def is_from(self, broker_id: int) -> bool:
        return broker_id == 1

    async def read(self) -> bytes | None:
        return await self._connection.requests.get()

    async def accept(self) -> None:
        self._connection.is_accepted.set()

    async def write(self, message: bytes) -> None:
        self._connection.responses.put_nowait(message)


class World:
    """Broker 1, which opens streams, and broker 2, which serves them."""

    def __init__(self, handle: Handle) -> None:
        self.sessions: LinkSessions[pb.MarkEntry, pb.MarkResult] = LinkSessions(
            cluster_id=CLUSTER,
            decode=decode_marker_request,
            encode=encode_marker_response,
            handle=handle,
        )
        self.connections: list[Connection] = []
        self.is_known = True
        self.streams: PeerStreams[pb.MarkEntry, pb.MarkResult] = PeerStreams(
            LinkKind.MARK,
            cluster_id=CLUSTER,
            broker_id=BrokerId(1),
            endpoint_of=lambda _: ("b2", 1) if self.is_known else None,
            dial=lambda *_: Opened(self.connect()),
            encode=encode_marker_request,
            decode=decode_marker_response,
        )
        self.streams.broker_epoch = BrokerEpoch(5)

    def connect(self) -> Connection:
        self.connections.append(Connection(lambda end: self.sessions.serve(Served(end))))
        return self.connections[-1]

    def send(self, producer_id: int) -> asyncio.Future[int | None]:
        """Send an entry; the future has the error code of its result, or None if the stream broke."""
        done: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.streams.send(
            PEER,
            pb.MarkEntry(producer_id=producer_id),
            lambda result: done.set_result(None if result is None else result.error_code),
        )
        return done


@asynccontextmanager
async def linked(handle: Handle) -> AsyncIterator[World]:
    world = World(handle)
    task = asyncio.create_task(world.streams.run())
    async with asyncio.timeout(10):
        yield world
    task.cancel()
    await asyncio.wait([task])


async def echo(entry: pb.MarkEntry) -> pb.MarkResult:
    return pb.MarkResult(entry_id=entry.entry_id, error_code=entry.producer_id)


async def test_entries_of_one_turn_are_one_message_each_with_its_own_result() -> None:
    async with linked(echo) as world:
        assert await asyncio.gather(*(world.send(n) for n in range(5))) == [0, 1, 2, 3, 4]
        (connection,) = world.connections
        assert len(connection.messages) == 2, "the Hello, and all entries"


async def test_results_come_in_any_order() -> None:
    may_answer: dict[int, asyncio.Event] = {n: asyncio.Event() for n in (1, 2)}

    async def when_told(entry: pb.MarkEntry) -> pb.MarkResult:
        await may_answer[entry.producer_id].wait()
        return await echo(entry)

    async with linked(when_told) as world:
        first, second = world.send(1), world.send(2)
        may_answer[2].set()
        assert await second == 2
        assert not first.done()
        may_answer[1].set()
        assert await first == 1


async def test_a_stream_that_breaks_fails_what_has_no_result_and_the_next_entry_opens_another() -> (
    None
):
    has_arrived = asyncio.Event()

    async def never(entry: pb.MarkEntry) -> pb.MarkResult:
        if entry.producer_id == 2:
            return await echo(entry)
        has_arrived.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    async with linked(never) as world:
        unanswered = world.send(1)
        await has_arrived.wait()
        world.connections[0].break_off()
        assert await unanswered is None
        assert await world.send(2) == 2
        assert len(world.connections) == 2
        sessions = [decode_marker_request(c.messages[0])[0] for c in world.connections]
        assert [hello.session_id for hello in sessions if hello] == [1, 2]


async def test_entries_for_a_broker_without_an_address_fail() -> None:
    async with linked(echo) as world:
        world.is_known = False
        assert await world.send(1) is None
        world.is_known = True
        assert await world.send(2) == 2


async def test_large_and_many_entries_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_streams, "MESSAGE_BYTES_MAX", 20)
    monkeypatch.setattr(peer_streams, "WINDOW_ENTRIES", 7)
    async with linked(echo) as world:
        numbers = list(range(1, 51))
        assert await asyncio.gather(*map(world.send, numbers)) == numbers
        sizes = [len(message) for message in world.connections[0].messages[1:]]
        assert len(sizes) > 7
        assert max(sizes) < 40


def hello(session_id: int, **fields: object) -> bytes:
    message = pb.TransactionLinkHello(
        cluster_id=CLUSTER, broker_id=1, broker_epoch=5, session_id=session_id
    )
    message.MergeFrom(pb.TransactionLinkHello(**fields))  # type: ignore[arg-type]
    return encode_marker_request(message, ())


async def test_a_newer_session_ends_the_older_one_and_what_it_still_brings() -> None:
    has_arrived = asyncio.Event()
    handled: list[int] = []

    async def slow(entry: pb.MarkEntry) -> pb.MarkResult:
        handled.append(entry.producer_id)
        has_arrived.set()
        return await echo(entry)

    world = World(slow)
    older, newer = world.connect(), world.connect()
    older.requests.put_nowait(hello(1))
    await older.is_accepted.wait()
    newer.requests.put_nowait(hello(2))
    await newer.is_accepted.wait()
    older.requests.put_nowait(encode_marker_request(None, [pb.MarkEntry(producer_id=1)]))
    newer.requests.put_nowait(encode_marker_request(None, [pb.MarkEntry(producer_id=2)]))
    await has_arrived.wait()
    assert await older.responses.get() is None
    assert handled == [2]
    await newer.close()


@pytest.mark.parametrize(
    ("first", "refusal"),
    [
        (partial(encode_marker_request, None, ()), Refusal.NO_HELLO),
        (partial(hello, 1, cluster_id="another"), Refusal.NOT_PERMITTED),
        (partial(hello, 1, broker_id=3), Refusal.NOT_PERMITTED),
        (partial(hello, 1, broker_epoch=4), Refusal.SUPERSEDED),
    ],
    ids=["no hello", "another cluster", "another broker's certificate", "an older registration"],
)
async def test_streams_that_are_refused(first: Callable[[], bytes], refusal: Refusal) -> None:
    world = World(echo)
    present = world.connect()
    present.requests.put_nowait(hello(1))
    await present.is_accepted.wait()
    refused = world.connect()
    refused.requests.put_nowait(first())
    await refused.is_accepted.wait()
    assert refused.refusal is not None
    assert refused.refusal.refusal is refusal
    await present.close()

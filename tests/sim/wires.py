"""The connections of a simulated broker to leaders and controllers, and the heartbeats that it sends.

Each class has the interface that production code expects of gRPC, on the connections of network.py: messages are
delayed, connections break, and only keepalives detect a broken connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from odradek_broker.cluster.heartbeat import Heartbeat, SentBeats
from odradek_broker.coordination.peer_streams import LinkKind
from odradek_broker.coordination.producer_resolver import respond_to_resolve
from odradek_broker.replication.streams.follower_sessions import StreamRefused
from odradek_broker.replication.streams.follower_stream import StreamBroken
from odradek_protocol.identity import BrokerId, ControllerId
from odradek_protocol.rpc.v1 import controller_service_pb2 as controller_pb
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_protocol.rpc.v1 import transaction_service_pb2 as link_pb
from tests.sim.network import Stream
from tests.sim.scheduler import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess
    from tests.sim.controller_node import ControllerNode
    from tests.sim.simulated_loop import SimulatedLoop

HEARTBEAT_US = 250 * MS
# The chance that a message arrives again, perhaps after its stream has ended.
LATE_COPY_CHANCE = 0.02
_ACCEPTED = "accepted"


class Inbox:
    """The messages that arrived at one end of a stream, for the coroutine that waits for them."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._messages: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.is_over = False

    def put(self, message: Any) -> None:
        self._messages.append(message)
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    async def get(self) -> Any:
        """Wait for the next message and return it; None at the end of the stream."""
        while not self._messages:
            if self.is_over:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._messages.popleft()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class ToLeader:
    """The follower's end of a replication stream (a LeaderConnection)."""

    def __init__(self, life: BrokerProcess, leader: BrokerId) -> None:
        self._life = life
        self._inbox = Inbox(life.loop)
        self._stream: Stream | None = None
        self._session_id = 0
        self._leader = leader
        node = life.cluster.brokers.get(leader)
        target = node.life if node is not None else None
        if (
            target is None
            or not target.is_serving
            or not target.process.is_running
            or not life.network.both_ways(life.broker_id, leader)
            or life.cluster.undialled_until_us.get(leader, 0) > life.scheduler.now_us
        ):
            return
        self._stream = Stream(life.network, life.process, target.process)
        self._stream.on_message[0] = self._inbox.put
        self._stream.on_closed[0] = self._inbox.end
        target.accept_follower(self._stream)

    async def write(self, request: pb.ReplicateRequest) -> None:
        if self._stream is None or self._inbox.is_over:
            raise StreamBroken("the connection to the leader has ended")
        if request.HasField("hello"):
            self._session_id = request.hello.session_id
        self._stream.send(self._life.process, request)

    async def accepted(self) -> None:
        if await self._inbox.get() is not _ACCEPTED:
            raise StreamBroken("the leader ended the stream")

    async def read(self) -> bytes:
        message = await self._inbox.get()
        if message is None:
            raise StreamBroken("the leader ended the stream")
        assert isinstance(message, bytes)
        scheduler = self._life.scheduler
        if scheduler.chance(LATE_COPY_CHANCE):
            delay_us = scheduler.between(1, 5_000) * MS
            self._life.process.after(
                delay_us, self._life.hear_leader_again, self._session_id, message
            )
        return message

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.close(self._life.process)
        self._inbox.end()


class FromFollower:
    """The leader's end of a replication stream (a FollowerConnection)."""

    def __init__(self, life: BrokerProcess, stream: Stream) -> None:
        self._life = life
        self._stream = stream
        self._inbox = Inbox(life.loop)
        self._hello: pb.ReplicaHello | None = None
        stream.on_message[1] = self._inbox.put
        stream.on_closed[1] = self._inbox.end

    def is_from(self, broker_id: int) -> bool:
        return broker_id == self._stream.ends[0].node_id

    async def read(self) -> pb.ReplicateRequest | None:
        request: pb.ReplicateRequest | None = await self._inbox.get()
        if request is None:
            return None
        if self._hello is None:
            self._hello = request.hello
        scheduler = self._life.scheduler
        if request.HasField("ack") and scheduler.chance(LATE_COPY_CHANCE):
            delay_us = scheduler.between(1, 5_000) * MS
            self._life.process.after(
                delay_us, self._life.hear_follower_again, self._hello, request.ack
            )
        return request

    async def accept(self) -> None:
        self._stream.send(self._life.process, _ACCEPTED)

    async def write(self, message: bytes) -> None:
        if self._inbox.is_over:
            raise ConnectionError("the connection to the follower has ended")
        self._stream.send(self._life.process, message)
        # The transport sends one message at a time. Records that are appended in this time go into the next message.
        await asyncio.sleep(self._life.scheduler.between(20, 400) / SECOND)

    async def serve(self) -> None:
        """Let the production code's leader serve this stream until either side ends it."""
        assert self._life.broker is not None
        try:
            await self._life.broker.followers.serve(self)
        except* (StreamRefused, ConnectionError):
            pass
        finally:
            self._stream.close(self._life.process)


class ToPeer:
    """The end of a transaction link that opens the link (a LinkConnection)."""

    def __init__(self, life: BrokerProcess, kind: LinkKind, peer: BrokerId) -> None:
        self._life = life
        self._inbox = Inbox(life.loop)
        self._stream: Stream | None = None
        node = life.cluster.brokers.get(peer)
        target = node.life if node is not None else None
        if (
            target is None
            or not target.is_serving
            or not target.process.is_running
            or not life.network.both_ways(life.broker_id, peer)
        ):
            return
        self._stream = Stream(life.network, life.process, target.process)
        self._stream.on_message[0] = self._inbox.put
        self._stream.on_closed[0] = self._inbox.end
        target.accept_link(kind, self._stream)

    async def write(self, message: bytes) -> None:
        if self._stream is None or self._inbox.is_over:
            raise StreamBroken("the connection to the peer has ended")
        self._stream.send(self._life.process, message)

    async def accepted(self) -> None:
        if await self._inbox.get() is not _ACCEPTED:
            raise StreamBroken("the peer ended the stream")

    async def read(self) -> bytes:
        message = await self._inbox.get()
        if message is None:
            raise StreamBroken("the peer ended the stream")
        assert isinstance(message, bytes)
        return message

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.close(self._life.process)
        self._inbox.end()


async def call_resolve(
    life: BrokerProcess,
    peer: BrokerId,
    _host: str,
    _port: int,
    request: link_pb.ResolveProducersRequest,
) -> link_pb.ResolveProducersResponse:
    """Send a ResolveProducers request to another broker's coordinators. The caller must set a timeout."""
    node = life.cluster.brokers.get(peer)
    target = node.life if node is not None else None
    if target is None or not target.is_serving:
        raise StreamBroken("the peer is down")
    response: asyncio.Future[Any] = life.loop.create_future()

    def answered(message: Any) -> None:
        if not response.done():
            response.set_result(message)

    async def serve() -> None:
        assert target.broker is not None
        resolved = await respond_to_resolve(target.broker.transactions.coordinator, request)
        life.network.send(peer, life.process, answered, resolved)

    def begin() -> None:
        target.loop.spawn(serve())

    life.network.send(life.broker_id, target.process, begin)
    resolved: link_pb.ResolveProducersResponse = await response
    return resolved


class FromPeer:
    """The end of a transaction link that accepts the link (a LinkPeer)."""

    def __init__(self, life: BrokerProcess, kind: LinkKind, stream: Stream) -> None:
        self._life = life
        self._kind = kind
        self._stream = stream
        self._inbox = Inbox(life.loop)
        stream.on_message[1] = self._inbox.put
        stream.on_closed[1] = self._inbox.end

    def is_from(self, broker_id: int) -> bool:
        return broker_id == self._stream.ends[0].node_id

    async def read(self) -> bytes | None:
        request: bytes | None = await self._inbox.get()
        return request

    async def accept(self) -> None:
        self._stream.send(self._life.process, _ACCEPTED)

    async def write(self, message: bytes) -> None:
        if self._inbox.is_over:
            raise ConnectionError("the connection to the peer has ended")
        self._stream.send(self._life.process, message)

    async def serve(self) -> None:
        """Let the production code's broker serve this stream until either side ends it."""
        assert self._life.broker is not None
        transactions = self._life.broker.transactions
        is_marking = self._kind is LinkKind.MARK
        try:
            if is_marking:
                await transactions.markers.serve(self)
            else:
                await transactions.registrations.serve(self)
        except* (StreamRefused, ConnectionError):
            pass
        finally:
            self._stream.close(self._life.process)


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class ControllerChannels:
    """Channels to the controllers, for the production code's ControllerClient and MetadataFeed."""

    def __init__(self, life: BrokerProcess) -> None:
        self._life = life

    def channel(
        self, peer: str, host: str, port: int
    ) -> Any:  # the used part of a grpc.aio.Channel
        controller_id = int(peer.removeprefix("controller-"))
        return ControllerChannel(self._life, self._life.cluster.controllers[controller_id])

    async def close(self) -> None:
        """Do nothing, because the channel ends with the process."""


class ControllerChannel:
    """One channel. A unary call is a single message, and a metadata feed is a connection."""

    def __init__(self, life: BrokerProcess, controller: ControllerNode) -> None:
        self._life = life
        self._controller = controller

    def unary_unary(self, path: str, **_: Any) -> Callable[..., Any]:
        return partial(self._call, path.rpartition("/")[2])

    def unary_stream(self, path: str, **_: Any) -> Callable[..., Any]:
        assert path.endswith("/MetadataFeed"), path
        return lambda request, **_: FeedCall(self._life, self._controller, request)

    def stream_stream(self, path: str, **_: Any) -> Callable[..., Any]:
        return partial(_not_served, path)

    stream_unary = stream_stream

    async def _call(self, method: str, request: Any, *, timeout: float, **_: Any) -> Any:
        life, controller = self._life, self._controller
        reply: asyncio.Future[Any] = life.loop.create_future()
        if not controller.process.is_alive and life.network.both_ways(
            life.broker_id, controller.controller_id
        ):
            await asyncio.sleep(life.scheduler.between(100, 3 * MS) / SECOND)
            raise _error(grpc.StatusCode.UNAVAILABLE, "connection refused")
        life.network.send(
            life.broker_id,
            controller.process,
            controller.call,
            method,
            request,
            life.process,
            lambda response: None if reply.done() else reply.set_result(response),
        )
        try:
            async with asyncio.timeout(timeout):
                response = await reply
            if isinstance(response, grpc.aio.AioRpcError):
                raise response
            return response
        except TimeoutError:
            raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "no response") from None


def _not_served(path: str, *_: Any, **__: Any) -> Any:
    raise AssertionError(f"{path} is not simulated on a channel")


class FeedCall:
    """A call of MetadataFeed.

    The broker iterates over the call, and cancels it when another controller is a better source.
    """

    def __init__(
        self,
        life: BrokerProcess,
        controller: ControllerNode,
        request: controller_pb.MetadataFeedRequest,
    ) -> None:
        self._life = life
        self._inbox = Inbox(life.loop)
        self._is_cancelled = False
        self._stream: Stream | None = None
        network = life.network
        if not controller.process.is_running or not network.both_ways(
            life.broker_id, controller.controller_id
        ):
            return
        self._stream = Stream(network, life.process, controller.process)
        self._stream.on_message[0] = self._inbox.put
        self._stream.on_closed[0] = self._inbox.end
        network.scheduler.after(
            network.delay_us(life.broker_id, controller.controller_id),
            controller.process.deliver,
            controller.accept_feed,
            self._stream,
            request,
        )

    def cancel(self) -> bool:
        self._is_cancelled = True
        self._close()
        return True

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close(self._life.process)
        self._inbox.end()

    def __aiter__(self) -> FeedCall:
        return self

    async def __anext__(self) -> controller_pb.MetadataFeedResponse:
        if self._stream is None:
            await asyncio.sleep(self._life.scheduler.between(1, 50) * MS / SECOND)
            raise _error(grpc.StatusCode.UNAVAILABLE, "not reachable")
        message: controller_pb.MetadataFeedResponse | None = await self._inbox.get()
        if message is not None:
            return message
        if self._is_cancelled:
            raise asyncio.CancelledError
        raise _error(grpc.StatusCode.UNAVAILABLE, "the stream broke")


class Beats:
    """The simulated HeartbeatThreads: a stream of heartbeats to each controller, independent of the event loop."""

    def __init__(self, life: BrokerProcess, heartbeat: Heartbeat) -> None:
        self._life = life
        self._heartbeat = heartbeat
        self._process = life.process
        self._scheduler = life.scheduler
        self._network = life.network
        self._streams: dict[int, tuple[Stream, SentBeats]] = {}
        # The simulated send time of each heartbeat, by its sequence number.
        self._sent_us: dict[int, int] = {}

    def start(self) -> None:
        for controller_id in sorted(self._life.cluster.controllers):
            self._connect(controller_id)
        self._beat()

    def beat_now(self) -> None:
        self._process.after(self._scheduler.between(50, 500), self._send)

    def stop(self) -> None:
        for stream, _ in self._streams.values():
            stream.on_closed[0] = None
            stream.close(self._process)
        self._streams.clear()

    def _beat(self) -> None:
        if not self._heartbeat.is_stopped:
            self._send()
            self._process.after(HEARTBEAT_US, self._beat)

    def _send(self) -> None:
        request = None if self._heartbeat.is_stopped else self._heartbeat.beat()
        if request is None:
            return
        self._sent_us[request.seq] = self._scheduler.now_us
        self._sent_us.pop(request.seq - 100, None)
        for stream, sent in self._streams.values():
            sent.sending(request)
            stream.send(self._process, request)

    def _connect(self, controller_id: int) -> None:
        if self._heartbeat.is_stopped:
            return
        controller = self._life.cluster.controllers[controller_id]
        if not controller.process.is_running or not self._network.both_ways(
            self._life.broker_id, controller_id
        ):
            self._connect_later(controller_id)
            return
        stream = Stream(self._network, self._process, controller.process)
        sent = SentBeats(self._heartbeat.clock)
        controller.accept_heartbeats(stream, self._life.broker_id)
        self._streams[controller_id] = (stream, sent)

        def on_message(response: controller_pb.HeartbeatResponse) -> None:
            sent_at_ms = sent.take(response)
            if sent_at_ms is not None:
                self._received(ControllerId(controller_id), response, sent_at_ms)

        def on_closed() -> None:
            if self._streams.get(controller_id, (None,))[0] is stream:
                del self._streams[controller_id]
            self._connect_later(controller_id)

        stream.on_message[0] = on_message
        stream.on_closed[0] = on_closed

    def _connect_later(self, controller_id: int) -> None:
        delay_us = self._scheduler.between(50, 500) * MS
        self._process.after(delay_us, self._connect, controller_id)

    def _received(
        self, controller: ControllerId, response: controller_pb.HeartbeatResponse, sent_at_ms: int
    ) -> None:
        self._heartbeat.received(controller, response, sent_at_ms)
        is_grant = response.is_active and not response.error_code and not response.is_fenced
        if is_grant and response.seq in self._sent_us:
            sent_us = self._sent_us[response.seq]
            self._life.lease_sent_us = max(self._life.lease_sent_us, sent_us)

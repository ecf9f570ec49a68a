"""The follower's end of one replication stream: to one leader, in one lane.

A FollowerStream opens the connection, notifies its partitions that they may attach (SessionReady), and passes the
leader's messages to them. It batches the partitions' messages: up to 64 attaches per message, and the latest ack of
each partition once per iteration of the event loop. When the stream breaks, it notifies the partitions and reconnects
after 50-500 ms, or at once if the image has a change of the leader's broker.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from odradek_broker.access.quotas import TokenBucket
from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.replication.partition_host import PartitionHost
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    LeaderEpoch,
    Offset,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.record_messages import PushedMessage, WireError, read_replicate_response
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_runtime.clock import Clock
from odradek_runtime.listeners import host_port
from odradek_runtime.logs import event_log

ATTACHES_PER_MESSAGE_MAX: Final = 64
_CONNECT_TIMEOUT_S: Final = 5.0
_RETRY_MIN_S: Final = 0.05
_RETRY_MAX_S: Final = 0.5
_LINGER_S: Final = 0.1
_UNREACHED_WARNING_MS: Final = 5_000  # longer than a broker's restart takes
_UNREACHED_WARNING_INTERVAL_MS: Final = 60_000
_log = event_log(__name__)

# The catch-up lane gets 1/4 of the credit, so that partitions far behind do not slow down the others.
_CATCH_UP_SHARE: Final = 4
HostKey = tuple[bytes, int]


class Lane(Enum):
    """One of the two streams between a follower and a leader: one for partitions near the end of the log, and one for
    those far behind.
    """

    HOT = pb.REPLICATION_LANE_HOT
    CATCH_UP = pb.REPLICATION_LANE_CATCH_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerIdentity:
    """The fields with which this broker identifies itself in each Hello."""

    cluster_id: ClusterId
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    directory_id: DirectoryId
    credit_bytes: int


class StreamBroken(ConnectionError):
    """The connection to a leader ended, or could not be opened. The text has the reason."""


class LeaderConnection(Protocol):
    """An open connection to a leader. Messages arrive in order and without gaps until the connection breaks."""

    async def write(self, request: pb.ReplicateRequest) -> None:
        """Send a message. Raises StreamBroken."""

    async def accepted(self) -> None:
        """Wait until the leader has accepted the Hello. Raises StreamBroken."""

    async def read(self) -> bytes:
        """Wait for an encoded ReplicateResponse and return it. Raises StreamBroken."""

    async def close(self) -> None:
        """End the connection at once."""


Dial = Callable[[BrokerId, str, int], LeaderConnection]
"""Opens a new connection to the replication listener of a broker, at (host, port)."""


class FollowerStream:
    """The stream to one leader in one lane. It is opened again whenever it breaks."""

    def __init__(
        self,
        leader: BrokerId,
        lane: Lane,
        *,
        identity: FollowerIdentity,
        endpoint_of: Callable[[BrokerId], tuple[str, int] | None],
        dial: Dial,
        clock: Clock,
        session_ids: itertools.count[int],
        by_session: dict[int, FollowerStream],
        on_distance: Callable[[FollowerStream, PartitionHost, int], None],
        on_ready: Callable[[FollowerStream, HostKey], None],
        throttle: TokenBucket | None = None,
    ) -> None:
        """`on_distance(stream, host, records)` is called when a partition may have to change its lane: it is `records`
        behind its leader's high watermark. `on_ready(stream, key)` is called when a partition attaches in this stream.
        `throttle`, in bytes and shared with other streams, limits the inbound rate.
        """
        self.lane = lane
        self.leader = leader
        self._on_distance = on_distance
        self._on_ready = on_ready
        self._identity = identity
        self._endpoint_of = endpoint_of
        self._dial = dial
        self._clock = clock
        self._session_ids = session_ids
        self._by_session = by_session
        self._hosts: dict[HostKey, PartitionHost] = {}
        self._session_id = 0  # 0: no stream is open
        self._is_closing = False
        self._unreached_warning_at_ms: int | None = None  # None: the last attempt succeeded
        self._kicked = asyncio.Event()
        self._outbox_wake = asyncio.Event()
        self._attaches: dict[HostKey, pb.ReplicaPosition] = {}
        self._detaches: dict[HostKey, common_pb2.TopicIdPartition] = {}
        self._acks: dict[HostKey, pb.ReplicaAckPartition] = {}
        self._consumed_bytes = 0
        self._throttle = throttle
        self._throttle_timer: asyncio.TimerHandle | None = None
        is_hot = lane is Lane.HOT
        self._credit_bytes = identity.credit_bytes // (1 if is_hot else _CATCH_UP_SHARE)
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"replicate from broker {leader}, {lane.name}"
        )

    @property
    def is_empty(self) -> bool:
        """Whether no partition uses this stream."""
        return not self._hosts

    def add(self, key: HostKey, host: PartitionHost) -> None:
        """Let a partition follow its leader in this stream."""
        self._hosts[key] = host
        if self._session_id:
            asyncio.get_running_loop().call_soon(self._tell_ready, key, self._session_id)

    def remove(self, key: HostKey) -> None:
        """Remove a partition from this stream, and detach it at the leader."""
        host = self._hosts.pop(key, None)
        self._attaches.pop(key, None)
        self._acks.pop(key, None)
        if host is not None and self._session_id:
            self.send_detach(host)

    def give_up(self, key: HostKey) -> None:
        """Remove a partition that has moved to the other lane. Its replica sends the detach by itself."""
        self._hosts.pop(key, None)
        self._attaches.pop(key, None)
        self._acks.pop(key, None)

    def kick(self) -> None:
        """Reconnect at once if the stream waits before its next attempt."""
        self._kicked.set()

    def has(self, key: HostKey) -> bool:
        """Return whether that partition uses this stream."""
        return key in self._hosts

    def end(self, on_ended: Callable[[FollowerStream], object]) -> None:
        """End the stream, which no partition uses, after a delay in which its last messages are sent. Then call
        `on_ended`.
        """
        self._task.add_done_callback(lambda _: on_ended(self))
        asyncio.get_running_loop().call_later(_LINGER_S, self._cancel)

    async def close(self) -> None:
        """End the stream at once, and wait until it has ended."""
        self._cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def send_attach(self, host: PartitionHost, effect: fx.SendAttach) -> None:
        """Send an attach with the next message."""
        self._attaches[host_key(host)] = pb.ReplicaPosition(
            partition=_wire(host),
            leader_epoch=effect.leader_epoch,
            log_end=effect.log_end,
            last_epoch=effect.last_epoch,
            log_start=effect.log_start,
            attach_seq=effect.attach_seq,
        )
        self._outbox_wake.set()

    def send_detach(self, host: PartitionHost) -> None:
        """Send a detach with the next message."""
        self._detaches[host_key(host)] = _wire(host)
        self._outbox_wake.set()

    def send_ack(self, host: PartitionHost, effect: fx.SendAck) -> None:
        """Send an acknowledgement with the next message. Acknowledgements are cumulative, so only the latest one of
        each partition is sent, once per iteration of the event loop.
        """
        self._acks[host_key(host)] = pb.ReplicaAckPartition(
            partition=_wire(host),
            leader_epoch=effect.leader_epoch,
            ack_to=effect.ack_to,
            log_start=effect.log_start,
            is_unsynced=not effect.is_synced,
        )
        self._outbox_wake.set()

    def _cancel(self) -> None:
        # Before Python 3.13, a TaskGroup that ends with an error drops a cancellation that arrives at that time
        # (python/cpython#116720), so `_run` checks this flag, too.
        self._is_closing = True
        self._kicked.set()
        self._task.cancel()

    async def _run(self) -> None:
        backoff_s = _RETRY_MIN_S
        while not self._is_closing:
            self._kicked.clear()
            endpoint = self._endpoint_of(self.leader)
            try:
                if endpoint is not None and await self._session(*endpoint):
                    backoff_s = _RETRY_MIN_S
            except Exception as error:
                # An internal error must not end replication from this leader forever.
                _log.error(
                    "Replication stream from a leader failed on an internal error",
                    exc=error,
                    leader=self.leader,
                )
            try:
                async with asyncio.timeout(backoff_s * random.uniform(0.5, 1.0)):
                    await self._kicked.wait()
            except TimeoutError:
                backoff_s = min(backoff_s * 2, _RETRY_MAX_S)

    async def _session(self, host: str, port: int) -> bool:
        """Run one connection from its start to its end. Return whether the leader accepted the Hello."""
        session_id = next(self._session_ids)
        is_open = False
        connection = self._dial(self.leader, host, port)
        try:
            await connection.write(pb.ReplicateRequest(hello=self._hello(session_id)))
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await connection.accepted()
            is_open = True
            self._opened(session_id)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(connection))
                await self._read(connection, session_id)
        except* (OSError, WireError) as errors:
            _log.debug(
                "Replication stream from a leader ended",
                leader=self.leader,
                reason=repr(errors.exceptions),
            )
            if not is_open:
                self._warn_of_unreached(host_port(host, port), errors.exceptions[0])
        finally:
            self._closed(session_id)
            await connection.close()
        return is_open

    def _warn_of_unreached(self, address: str, error: BaseException) -> None:
        """Log that the leader cannot be reached, if this has been the case for some seconds; repeat the warning once a
        minute.
        """
        now_ms = self._clock.monotonic_ms()
        if self._unreached_warning_at_ms is None:
            self._unreached_warning_at_ms = now_ms + _UNREACHED_WARNING_MS
        elif now_ms >= self._unreached_warning_at_ms:
            self._unreached_warning_at_ms = now_ms + _UNREACHED_WARNING_INTERVAL_MS
            _log.warning(
                "Failed to connect to a leader",
                leader=self.leader,
                lane=self.lane.name,
                address=address,
                reason=str(error) or f"no response within {_CONNECT_TIMEOUT_S} s",
            )

    def _hello(self, session_id: int) -> pb.ReplicaHello:
        identity = self._identity
        return pb.ReplicaHello(
            cluster_id=identity.cluster_id,
            broker_id=identity.broker_id,
            broker_epoch=identity.broker_epoch,
            directory_id=identity.directory_id,
            session_id=session_id,
            credit_bytes=self._credit_bytes,
            lane=self.lane.value,
        )

    def _opened(self, session_id: int) -> None:
        self._unreached_warning_at_ms = None
        self._session_id = session_id
        self._by_session[session_id] = self
        self._attaches.clear()
        self._detaches.clear()
        self._acks.clear()
        self._consumed_bytes = 0
        if self._hosts:
            _log.info(
                "Replicating partitions from a leader",
                leader=self.leader,
                lane=self.lane.name,
                partitions=len(self._hosts),
            )
        for key in list(self._hosts):
            self._tell_ready(key, session_id)

    def _closed(self, session_id: int) -> None:
        if self._by_session.pop(session_id, None) is None:
            return
        self._session_id = 0
        if self._hosts:
            _log.info(
                "Replication stream from a leader broke; opening it again",
                leader=self.leader,
                lane=self.lane.name,
                partitions=len(self._hosts),
            )
        for host in list(self._hosts.values()):
            host.step(ev.LeaderSessionClosed(session_id=session_id))

    def _tell_ready(self, key: HostKey, session_id: int) -> None:
        host = self._hosts.get(key)
        if host is not None and session_id == self._session_id:
            host.step(ev.SessionReady(session_id=session_id, leader=self.leader))
            self._on_ready(self, key)

    async def _read(self, connection: LeaderConnection, session_id: int) -> None:
        while True:
            for message in read_replicate_response(await connection.read()):
                host = self._hosts.get((message.topic_id, message.partition))
                if host is not None:
                    deliver(host, session_id, message)
                    self._judge(host, message)
                if message.data is not None:
                    self._consumed_bytes += len(message.data.records)
            if self._consumed_bytes:
                self._outbox_wake.set()

    def _judge(self, host: PartitionHost, message: PushedMessage) -> None:
        """Report how far the partition is behind its leader, if this may require the other lane."""
        if message.data is not None:
            if self.lane is Lane.CATCH_UP:
                distance = message.data.high_watermark - host.replica.log_end
                self._on_distance(self, host, distance)
        elif message.other is not None and message.other.HasField("attached"):
            distance = message.other.attached.high_watermark - host.replica.log_end
            self._on_distance(self, host, distance)

    async def _write(self, connection: LeaderConnection) -> None:
        while True:
            await self._outbox_wake.wait()
            self._outbox_wake.clear()
            if self._detaches:
                detaches, self._detaches = self._detaches, {}
                await connection.write(
                    pb.ReplicateRequest(detach=pb.ReplicaDetach(partitions=detaches.values()))
                )
            while self._attaches:
                keys = list(itertools.islice(self._attaches, ATTACHES_PER_MESSAGE_MAX))
                positions = [self._attaches.pop(key) for key in keys]
                await connection.write(
                    pb.ReplicateRequest(attach=pb.ReplicaAttach(partitions=positions))
                )
            if self._acks:
                acks, self._acks = self._acks, {}
                await connection.write(
                    pb.ReplicateRequest(ack=pb.ReplicaAck(partitions=acks.values()))
                )
            if self._consumed_bytes >= self._credit_bytes // 4 and not self._is_throttled():
                consumed, self._consumed_bytes = self._consumed_bytes, 0
                await connection.write(pb.ReplicateRequest(credit_bytes=consumed))

    def _is_throttled(self) -> bool:
        """Return whether the throttle forbids granting more credit now. If it does not, take the credit from the
        throttle's budget.
        """
        throttle = self._throttle
        if throttle is None:
            return False
        now_s = self._clock.monotonic_ms() / 1000
        wait_s = throttle.debt_s(now_s)
        if wait_s <= 0:
            throttle.take(self._consumed_bytes, now_s)
            return False
        if self._throttle_timer is None:
            loop = asyncio.get_running_loop()
            self._throttle_timer = loop.call_later(wait_s, self._throttle_over)
        return True

    def throttle_changed(self) -> None:
        """Grant the credit that the throttle has delayed, as far as the new rate allows."""
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_over()

    def _throttle_over(self) -> None:
        self._throttle_timer = None
        self._outbox_wake.set()


def host_key(host: PartitionHost) -> HostKey:
    return (host.partition.topic_id, host.partition.partition)


def _wire(host: PartitionHost) -> common_pb2.TopicIdPartition:
    return common_pb2.TopicIdPartition(
        topic_id=host.partition.topic_id, partition=host.partition.partition
    )


def deliver(host: PartitionHost, session_id: int, pushed: PushedMessage) -> None:
    """Pass a leader's message to its partition, as an event."""
    leader_epoch = LeaderEpoch(pushed.leader_epoch)
    data, message = pushed.data, pushed.other
    if data is not None:
        host.data_received(
            session_id=session_id,
            leader_epoch=leader_epoch,
            base_offset=Offset(data.base_offset),
            high_watermark=Offset(data.high_watermark),
            log_start=Offset(data.log_start),
            records=data.records,
        )
        return
    assert message is not None
    kind = message.WhichOneof("message")
    if kind == "attached":
        host.step(
            ev.AttachedReceived(
                session_id=session_id,
                attach_seq=message.attached.attach_seq,
                leader_epoch=leader_epoch,
                high_watermark=Offset(message.attached.high_watermark),
                log_start=Offset(message.attached.log_start),
            )
        )
    elif kind == "diverged":
        diverged = message.diverged
        host.step(
            ev.DivergedReceived(
                session_id=session_id,
                attach_seq=diverged.attach_seq,
                leader_epoch=leader_epoch,
                for_log_end=Offset(diverged.for_log_end),
                for_last_epoch=LeaderEpoch(diverged.for_last_epoch),
                epoch=LeaderEpoch(diverged.epoch),
                end_offset=Offset(diverged.end_offset),
            )
        )
    elif kind == "snapshotless":
        host.step(
            ev.SnapshotlessReceived(
                session_id=session_id,
                attach_seq=message.snapshotless.attach_seq,
                leader_epoch=leader_epoch,
                log_start=Offset(message.snapshotless.log_start),
            )
        )
    elif kind == "refused":
        host.step(
            ev.RefusedReceived(
                session_id=session_id,
                attach_seq=message.refused.attach_seq,
                error_code=ErrorCode.received(message.refused.error_code),
                leader_epoch=leader_epoch,
            )
        )

"""The follower's ends of the replication streams: one per leader, all its partitions on it.

A link opens its stream, tells its partitions that they may attach (SessionReady), hands what the
leader sends to them, and gathers what they answer: attaches up to 64 a message, the latest ack of
each partition once per turn of the loop. When the stream breaks it tells them and tries again after
50-500 ms, or at once when the image says that the leader moved.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.replication.partition_host import PartitionHost
from odradek_protocol.identity import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    LeaderEpoch,
    Offset,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_protocol.rpc.v1 import replication_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import internal_channel
from odradek_runtime.logs import event_log
from odradek_runtime.tls import TlsFiles

ATTACHES_PER_MESSAGE_MAX: Final = 64
_CONNECT_TIMEOUT_S: Final = 3.0
_RETRY_MIN_S: Final = 0.05
_RETRY_MAX_S: Final = 0.5
_log = event_log(__name__)

HostKey = tuple[bytes, int]
Call = grpc.aio.StreamStreamCall[pb.ReplicateRequest, pb.ReplicateResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerIdentity:
    """Who we are, in each Hello."""

    cluster_id: ClusterId
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    directory_id: DirectoryId
    credit_bytes: int


class FollowerLinks:
    """All links of this broker; a partition follows at most one leader."""

    def __init__(
        self,
        *,
        identity: FollowerIdentity,
        endpoint_of: Callable[[BrokerId], tuple[str, int] | None],
        tls: TlsFiles | None,
    ) -> None:
        """`endpoint_of` tells where a broker's replication listener is now, from the image."""
        self._identity = identity
        self._endpoint_of = endpoint_of
        self._tls = tls
        self._links: dict[BrokerId, FollowerLink] = {}
        self._leader_of: dict[HostKey, BrokerId] = {}
        self._session_ids = itertools.count(1)
        self._by_session: dict[int, FollowerLink] = {}

    def stream(self, session_id: int) -> FollowerLink | None:
        """The open stream of that session."""
        return self._by_session.get(session_id)

    def follow(self, host: PartitionHost, leader: BrokerId) -> None:
        """Let `host` follow `leader` (NO_BROKER: nobody); it is told of the stream in a later turn."""
        key = (host.partition.topic_id, host.partition.partition)
        before = self._leader_of.get(key, NO_BROKER)
        if before != leader and before != NO_BROKER:
            self._leave(key, before)
        if leader == NO_BROKER:
            return
        self._leader_of[key] = leader
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = FollowerLink(
                leader,
                identity=self._identity,
                endpoint_of=self._endpoint_of,
                tls=self._tls,
                session_ids=self._session_ids,
                by_session=self._by_session,
            )
        link.add(key, host)

    def broker_changed(self, broker_id: BrokerId) -> None:
        """The image has news of a broker: try at once, perhaps at a new address."""
        link = self._links.get(broker_id)
        if link is not None:
            link.kick()

    async def close(self) -> None:
        """End all streams."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()

    def _leave(self, key: HostKey, leader: BrokerId) -> None:
        del self._leader_of[key]
        link = self._links[leader]
        link.remove(key)
        if link.is_empty:
            del self._links[leader]
            link.cancel()


class FollowerLink:
    """The stream to one leader, opened again whenever it breaks."""

    def __init__(
        self,
        leader: BrokerId,
        *,
        identity: FollowerIdentity,
        endpoint_of: Callable[[BrokerId], tuple[str, int] | None],
        tls: TlsFiles | None,
        session_ids: itertools.count[int],
        by_session: dict[int, FollowerLink],
    ) -> None:
        self._leader = leader
        self._identity = identity
        self._endpoint_of = endpoint_of
        self._tls = tls
        self._session_ids = session_ids
        self._by_session = by_session
        self._hosts: dict[HostKey, PartitionHost] = {}
        self._session_id = 0  # 0: no stream
        self._kicked = asyncio.Event()
        self._outbox_wake = asyncio.Event()
        self._attaches: dict[HostKey, pb.ReplicaPosition] = {}
        self._detaches: dict[HostKey, common_pb2.TopicIdPartition] = {}
        self._acks: dict[HostKey, pb.ReplicaAckPartition] = {}
        self._consumed_bytes = 0
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"replicate from broker {leader}"
        )

    @property
    def is_empty(self) -> bool:
        """Whether no partition follows here any more."""
        return not self._hosts

    def add(self, key: HostKey, host: PartitionHost) -> None:
        """A partition follows this leader."""
        self._hosts[key] = host
        if self._session_id:
            asyncio.get_running_loop().call_soon(self._tell_ready, key, self._session_id)

    def remove(self, key: HostKey) -> None:
        """A partition follows it no longer."""
        host = self._hosts.pop(key, None)
        self._attaches.pop(key, None)
        self._acks.pop(key, None)
        if host is not None and self._session_id:
            self.send_detach(host)

    def kick(self) -> None:
        """Do not wait for the next try."""
        self._kicked.set()

    def cancel(self) -> None:
        """End without waiting."""
        self._task.cancel()

    async def close(self) -> None:
        """End the stream."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- from hosts ------------------------------------------------------------------------------

    def send_attach(self, host: PartitionHost, effect: fx.SendAttach) -> None:
        """Goes with the next message."""
        self._attaches[_key(host)] = pb.ReplicaPosition(
            partition=_wire(host),
            leader_epoch=effect.leader_epoch,
            log_end=effect.log_end,
            last_epoch=effect.last_epoch,
            log_start=effect.log_start,
            attach_seq=effect.attach_seq,
        )
        self._outbox_wake.set()

    def send_detach(self, host: PartitionHost) -> None:
        """Goes with the next message."""
        self._detaches[_key(host)] = _wire(host)
        self._outbox_wake.set()

    def send_ack(self, host: PartitionHost, effect: fx.SendAck) -> None:
        """Goes once per turn of the loop, the latest of each partition (R6)."""
        self._acks[_key(host)] = pb.ReplicaAckPartition(
            partition=_wire(host), leader_epoch=effect.leader_epoch, ack_to=effect.ack_to
        )
        self._outbox_wake.set()

    # --- the stream ------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff_s = _RETRY_MIN_S
        while True:
            self._kicked.clear()
            endpoint = self._endpoint_of(self._leader)
            if endpoint is not None and await self._session(*endpoint):
                backoff_s = _RETRY_MIN_S
            try:
                async with asyncio.timeout(backoff_s * random.uniform(0.5, 1.0)):
                    await self._kicked.wait()
            except TimeoutError:
                backoff_s = min(backoff_s * 2, _RETRY_MAX_S)

    async def _session(self, host: str, port: int) -> bool:
        """One stream from its start to its end; whether it was open."""
        session_id = next(self._session_ids)
        is_open = False
        channel = internal_channel(host, port, self._tls)
        call: Call | None = None
        try:
            call = pb_grpc.ReplicationServiceStub(channel).Replicate()
            await call.write(pb.ReplicateRequest(hello=self._hello(session_id)))
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await call.initial_metadata()
            is_open = True
            self._opened(session_id)
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(call))
                await self._read(call, session_id)
                writer.cancel()
        except* (grpc.aio.AioRpcError, grpc.aio.UsageError, TimeoutError, OSError) as group_error:
            _log.debug(
                "Replication stream ended", leader=self._leader, reason=repr(group_error.exceptions)
            )
        except* asyncio.InvalidStateError:
            pass  # a write met a call that had just ended
        finally:
            self._closed(session_id)
            if call is not None:
                call.cancel()
            await channel.close()
        return is_open

    def _hello(self, session_id: int) -> pb.ReplicaHello:
        identity = self._identity
        return pb.ReplicaHello(
            cluster_id=identity.cluster_id,
            broker_id=identity.broker_id,
            broker_epoch=identity.broker_epoch,
            directory_id=identity.directory_id,
            session_id=session_id,
            credit_bytes=identity.credit_bytes,
            lane=pb.REPLICATION_LANE_HOT,
        )

    def _opened(self, session_id: int) -> None:
        self._session_id = session_id
        self._by_session[session_id] = self
        self._attaches.clear()
        self._detaches.clear()
        self._acks.clear()
        self._consumed_bytes = 0
        _log.info("Replicating", leader=self._leader, partitions=len(self._hosts))
        for key in list(self._hosts):
            self._tell_ready(key, session_id)

    def _closed(self, session_id: int) -> None:
        if self._by_session.pop(session_id, None) is None:
            return
        self._session_id = 0
        _log.info("Replication broke off", leader=self._leader, partitions=len(self._hosts))
        for host in list(self._hosts.values()):
            host.step(ev.LeaderSessionClosed(session_id=session_id))

    def _tell_ready(self, key: HostKey, session_id: int) -> None:
        host = self._hosts.get(key)
        if host is not None and session_id == self._session_id:
            host.step(ev.SessionReady(session_id=session_id, leader=self._leader))

    async def _read(self, call: Call, session_id: int) -> None:
        async for response in call:
            for message in response.messages:
                key = (message.partition.topic_id, message.partition.partition)
                host = self._hosts.get(key)
                if host is not None:
                    _deliver(host, session_id, message)
                if message.HasField("data"):
                    self._consumed_bytes += len(message.data.records)
            if self._consumed_bytes:
                self._outbox_wake.set()

    async def _write(self, call: Call) -> None:
        while True:
            await self._outbox_wake.wait()
            self._outbox_wake.clear()
            if self._detaches:
                detaches, self._detaches = self._detaches, {}
                await call.write(
                    pb.ReplicateRequest(detach=pb.ReplicaDetach(partitions=detaches.values()))
                )
            while self._attaches:
                keys = list(itertools.islice(self._attaches, ATTACHES_PER_MESSAGE_MAX))
                positions = [self._attaches.pop(key) for key in keys]
                await call.write(pb.ReplicateRequest(attach=pb.ReplicaAttach(partitions=positions)))
            if self._acks:
                acks, self._acks = self._acks, {}
                await call.write(pb.ReplicateRequest(ack=pb.ReplicaAck(partitions=acks.values())))
            if self._consumed_bytes >= self._identity.credit_bytes // 4:
                consumed, self._consumed_bytes = self._consumed_bytes, 0
                await call.write(pb.ReplicateRequest(credit_bytes=consumed))


def _key(host: PartitionHost) -> HostKey:
    return (host.partition.topic_id, host.partition.partition)


def _wire(host: PartitionHost) -> common_pb2.TopicIdPartition:
    return common_pb2.TopicIdPartition(
        topic_id=host.partition.topic_id, partition=host.partition.partition
    )


def _deliver(host: PartitionHost, session_id: int, message: pb.LeaderMessage) -> None:
    """Hand a leader's message to its partition."""
    leader_epoch = LeaderEpoch(message.leader_epoch)
    kind = message.WhichOneof("message")
    if kind == "data":
        data = message.data
        host.data_received(
            session_id=session_id,
            leader_epoch=leader_epoch,
            base_offset=Offset(data.base_offset),
            high_watermark=Offset(data.high_watermark),
            log_start=Offset(data.log_start),
            records=data.records,
        )
    elif kind == "attached":
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
                error_code=ErrorCode(message.refused.error_code),
                leader_epoch=leader_epoch,
            )
        )

"""One process of a simulated broker: the production `Broker` on a simulated event loop, disk and network.

This file has the surroundings of the production code: how the process starts and dies, which connections it accepts,
and what the invariants observe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odradek_broker.broker import Broker, Environment, Scale
from odradek_broker.coordination.peer_streams import LinkKind
from odradek_broker.listener_settings import REPLICATION
from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.replication.client_requests import AT_ONCE_MAX
from odradek_broker.replication.disk.disk_pool import DiskPool
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.streams.follower_stream import (
    FollowerStream,
    HostKey,
    Lane,
    deliver,
)
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    IncarnationId,
    LeaderEpoch,
    Offset,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage
from odradek_protocol.record_messages import read_replicate_response
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_runtime.lifecycle import ProcessRefused
from tests.sim.client_shell import ClientShell
from tests.sim.coordinator_shell import SESSION_MS, CoordinatorShell
from tests.sim.data_directory import CLUSTER_ID, CONFIG, OracleLog
from tests.sim.invariants import WATCHED
from tests.sim.machine import ArrangedBug, DiskThreads
from tests.sim.network import Stream
from tests.sim.scheduler import MS, SECOND, Process
from tests.sim.simulated_loop import SimulatedLoop
from tests.sim.wires import (
    HEARTBEAT_US,
    Beats,
    ControllerChannels,
    FromFollower,
    FromPeer,
    ToLeader,
    ToPeer,
    call_resolve,
)

if TYPE_CHECKING:
    from tests.sim.cluster import BrokerNode, Cluster

SESSION_TIMEOUT_MS = 3_000
BEHIND_RECORDS = 15  # a partition changes its lane after fewer records than in production
NEAR_RECORDS = 5
DURABLE_LOOK_CHANCE = 0.25  # the chance that durability is checked after a sync
CHECKPOINT_INTERVALS_MS = (100, 5_000)  # the minimum that a broker accepts, and the default
DELETE_CHANCE = 0.02  # the chance per second and partition of a DeleteRecords


class ObservedHost(PartitionHost):
    """The production code's `PartitionHost`, which runs one replica. Each of its steps is checked by the invariants."""

    __slots__ = ("life", "oracle")

    def __init__(self, life: BrokerProcess, **named: Any) -> None:
        self.life = life
        super().__init__(**named)
        self.oracle: OracleLog = life.node.disk.oracle(self.log)

    def step(self, event: ev.Event) -> None:
        life = self.life
        if not life.process.is_alive:
            return  # code that unwinds after its process was killed must have no effect
        if isinstance(event, ev.Truncated | ev.LogReset):
            self.oracle.is_truncating = False
        elif isinstance(event, ev.LogStartAdvanced):
            life.scheduler.counters["log starts advanced"] += 1
        super().step(event)
        if isinstance(event, ev.Synced) and life.scheduler.chance(DURABLE_LOOK_CHANCE):
            life.node.disk.check_vouched(self.oracle)
        if not self._is_stepping and not self.is_removed:
            life.cluster.invariants.after_step(life, self)

    def found_bug(self, error: Exception) -> None:
        if not isinstance(error, ArrangedBug):
            self.life.scheduler.fail(error)
        super().found_bug(error)

    def _do(self, effects: Any) -> None:
        invariants, life, oracle = self.life.cluster.invariants, self.life, self.oracle
        for effect in effects:
            kind = type(effect)
            if kind is fx.Append:
                if effect.base_offset < self.log.log_end_offset:
                    oracle.cut(effect.base_offset)
            elif kind is fx.TruncateTo:
                life.scheduler.counters["truncations"] += (
                    self.log.log_end_offset > effect.end_offset
                )
                life.note_cut(self, effect.end_offset)
            elif kind is fx.ResetLog:
                life.scheduler.counters["logs reset"] += 1
                life.note_cut(self, effect.start_offset)
            if kind in WATCHED:
                invariants.before_effect(life, self, effect)
            if kind is fx.TruncateTo or kind is fx.ResetLog:
                oracle.catch_up()
                oracle.cut(effect.end_offset if kind is fx.TruncateTo else effect.start_offset)
                oracle.is_truncating = True
            super()._do((effect,))


class BrokerProcess:
    """One process of a broker, from its start until it ends."""

    def __init__(self, cluster: Cluster, node: BrokerNode) -> None:
        self.cluster = cluster
        self.node = node
        self.broker_id = BrokerId(node.broker_id)
        self.scheduler = cluster.scheduler
        self.network = cluster.network
        self.process = Process(self.scheduler, node.broker_id)
        self.loop = SimulatedLoop.of(self.process)
        self.incarnation = IncarnationId(self.scheduler.random.randbytes(16))
        self.broker: Broker | None = None
        self.is_serving = False
        self.lease_sent_us = -10 * SECOND  # send time of the heartbeat that renewed the lease
        self.clients = ClientShell(self)
        self.groups: CoordinatorShell | None = None
        self._image_offset = -1
        self._is_leaving = False
        self._background: list[asyncio.Task[None]] = []
        self.loop.spawn(self._live())

    # --- start and end ----------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            directory = self.node.disk.begin_life(self.incarnation)
        except OSError:
            self._end_later("its disk fails")
            return
        self.broker = broker = Broker(
            self._settings(),
            Environment(
                clock=self.node.clock,
                pool=DiskPool(DiskThreads(self.node, self.process, self.loop)),
                controller_channels=ControllerChannels(self),
                dial=lambda leader, _host, _port: ToLeader(self, leader),
                dial_link=lambda kind, peer, _host, _port: ToPeer(self, kind, peer),
                call_resolve=partial(call_resolve, self),
                beating=lambda heartbeat, _: Beats(self, heartbeat),
            ),
            directory=directory,
            incarnation=self.incarnation,
            on_end=lambda reason, _: self._end_later(reason),
            scale=Scale(
                log_defaults=CONFIG,
                behind_records=BEHIND_RECORDS,
                near_records=NEAR_RECORDS,
                tick_ms=self.cluster.tick_ms,
                tick_slices=1,
                # In every second seed produces share an append, even those that arrive alone.
                produces_at_once_max=AT_ONCE_MAX if self.scheduler.seed % 2 else 0,
            ),
            make_host=partial(ObservedHost, self),
        )
        broker.image_listeners.append(self._image_changed)
        self.groups = CoordinatorShell(self, broker.groups)
        broker.tick.start()
        work = broker.background()
        del work["loop lag"]
        self._background = [self.loop.spawn(run()) for run in work.values()]
        self._background.append(self.loop.spawn(self._look_at_checkpoints()))
        try:
            await broker.join([self._listener()], load_threads_max=1)
        except ProcessRefused as refused:
            self._end_later(str(refused))
            return
        self._watch_lanes()
        self.node.disk.forget_departed()
        self.is_serving = True
        await broker.membership.ask_unfenced()
        if self.cluster.deletes_records:
            self._background.append(self.loop.spawn(self._delete_some()))

    def _settings(self) -> BrokerSettings:
        controllers = tuple((node, f"c{node}", 1) for node in sorted(self.cluster.controllers))
        return BrokerSettings(
            node_id=self.broker_id,
            cluster_id=CLUSTER_ID,
            log_dir=Path("nowhere"),
            controllers=controllers,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_US // MS,
            replica_lag_time_max_ms=3_000,
            log_cleaner_backoff_ms=self.cluster.compact_interval_ms,
            controlled_shutdown_timeout_ms=5_000,
            acks_all_without_controller=self.cluster.acks_all_without_controller,
            log_retention_check_interval_ms=2_000,
            log_checkpoint_interval_ms=self.scheduler.random.choice(CHECKPOINT_INTERVALS_MS),
            replica_credit_bytes=self.cluster.credit_bytes,
            replica_fetch_bytes_max=self.cluster.credit_bytes // 4,
            replica_fetch_response_bytes_max=self.cluster.credit_bytes // 2,
            group_min_session_timeout_ms=1_000,
            group_initial_rebalance_delay_ms=300,
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_heartbeat_interval_ms=500,
        )

    def _listener(self) -> common_pb2.Listener:
        return common_pb2.Listener(
            name=REPLICATION, host=f"b{self.broker_id}", port=1, security_protocol="PLAINTEXT"
        )

    def die(self) -> None:
        """Kill the process at once. Its writes stay in the page cache."""
        if self.process.is_alive:
            self.node.disk.killed()
        self.process.kill()
        self.network.process_ended(self.process)
        self.close()

    def die_within(self) -> None:
        """Kill the process in the middle of its own work. Its peers see the death at the next event."""
        self.node.disk.killed()
        self.process.kill()
        self.scheduler.after(0, self.die)

    def close(self) -> None:
        """Cancel the tasks of this process. They can have no effect any more."""
        self.is_serving = False
        self.process.kill()
        self.loop.close()

    def _end_later(self, reason: str) -> None:
        """End the process, as it would end itself. The simulated supervisor starts it again."""
        if self.process.is_alive:
            self.scheduler.note(f"broker {self.broker_id} ends: {reason}")
            self.die_within()
            self.node.restart_later(self.scheduler.between(100, 1000) * MS)

    def begin_shutdown(self) -> None:
        """Handle SIGTERM: begin a controlled shutdown, which ends after a time limit at the latest."""
        broker = self.broker
        if broker is None or not self.is_serving or self._is_leaving:
            self.die()
            return
        self._is_leaving = True

        async def leave() -> None:
            is_clean = await broker.leave()
            self.is_serving = False
            for task in self._background:
                task.cancel()
            await broker.close(is_clean=is_clean)
            self.scheduler.counters["clean shutdowns"] += is_clean
            self.scheduler.after(0, self.die)

        self.loop.spawn(leave())

    # --- timers -----------------------------------------------------------------------------------

    async def _look_at_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(2)
            self.node.disk.check_checkpoint()

    async def _delete_some(self) -> None:
        """Delete records of random partitions, as an operator does with DeleteRecords."""
        while True:
            await asyncio.sleep(1)
            for host in list(self.table.by_id.values()):
                replica = host.replica
                if (
                    host.is_leader
                    and not host.log.config.cleanup_compact
                    and self.scheduler.chance(DELETE_CHANCE)
                ):
                    before = self.scheduler.between(replica.log_start, replica.high_watermark)
                    self.delete_records(host, before)

    def delete_records(self, host: PartitionHost, before_offset: int) -> None:
        """Send a DeleteRecords request of an operator to this broker."""
        self.loop.spawn(self._delete(host, before_offset))

    async def _delete(self, host: PartitionHost, before_offset: int) -> None:
        assert self.broker is not None
        name = host.partition
        partition = self.broker.partitions.find(name.topic_id, name.partition)
        if isinstance(partition, ErrorCode):
            return
        outcome = await partition.delete_records(Offset(before_offset), timeout_ms=10_000)
        if not outcome.error:
            self.scheduler.counters["deletes acknowledged"] += 1
            self.cluster.invariants.deleted(name, outcome.offset, outcome.leader_epoch)

    # --- used by other simulated parts ------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        return self.broker.feed.image if self.broker is not None else MetadataImage()

    @property
    def broker_epoch(self) -> BrokerEpoch:
        return self.broker.membership.epoch if self.broker is not None else BrokerEpoch(-1)

    @property
    def table(self) -> Any:
        assert self.broker is not None
        return self.broker.table

    def host(self, partition: TopicIdPartition) -> ObservedHost | None:
        """Return this broker's replica of the partition; None if it has none."""
        if self.broker is None:
            return None
        found = self.broker.table.by_id.get((partition.topic_id, partition.partition))
        assert found is None or isinstance(found, ObservedHost)
        return found

    def accept_follower(self, stream: Stream) -> None:
        """Accept a follower's replication stream."""
        self.loop.spawn(FromFollower(self, stream).serve())

    def accept_link(self, kind: LinkKind, stream: Stream) -> None:
        """Accept another broker's stream of transaction requests."""
        self.loop.spawn(FromPeer(self, kind, stream).serve())

    def create_topic(
        self, name: TopicName, reply_to: Process, reply: Callable[[ErrorCode], None]
    ) -> None:
        """Create a topic that a client uses, if the topic does not exist yet."""

        async def create() -> None:
            if self.broker is None or not self.is_serving:
                return
            errors = await self.broker.topic_creation.ensure([name])
            code = errors.get(name, ErrorCode.NONE)
            is_deleted = self.cluster.log.image.topic(name) is None
            if code is ErrorCode.NONE and self.image.topic(name) is None and not is_deleted:
                self.cluster.invariants.fail(
                    "P19", f"{name} was created, but is not in the broker's image"
                )
            self.network.send(self.broker_id, reply_to, reply, code)

        self.loop.spawn(create())

    def hear_leader_again(self, session_id: int, message: bytes) -> None:
        """Deliver a copy of an old message of a leader. The stream of the message may have ended long ago."""
        for pushed in read_replicate_response(message):
            host = self.table.by_id.get((pushed.topic_id, pushed.partition))
            if host is not None:
                self.loop.run_here(deliver, host, session_id, pushed)

    def hear_follower_again(self, hello: pb.ReplicaHello, acks: pb.ReplicaAck) -> None:
        """Deliver a copy of an old acknowledgement of a follower. The stream of the acknowledgement may have ended long
        ago.
        """
        session = ev.FollowerSession(
            broker_id=BrokerId(hello.broker_id),
            broker_epoch=BrokerEpoch(hello.broker_epoch),
            session_id=hello.session_id,
            is_catch_up=hello.lane == pb.REPLICATION_LANE_CATCH_UP,
        )
        for ack in acks.partitions:
            host = self.table.by_id.get((ack.partition.topic_id, ack.partition.partition))
            if host is not None:
                event = ev.AckReceived(
                    session=session,
                    leader_epoch=LeaderEpoch(ack.leader_epoch),
                    ack_to=Offset(ack.ack_to),
                    is_synced=not ack.is_unsynced,
                    log_start=Offset(ack.log_start),
                )
                self.loop.run_here(host.step, event)

    # --- observation ------------------------------------------------------------------------------

    def _image_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.cluster.invariants.image_moves(self, image.offset, self._image_offset)
        self._image_offset = image.offset
        if self.is_serving and (delta.partitions or delta.topics_removed):
            self.node.disk.forget_departed()

    def _watch_lanes(self) -> None:
        links = self.table.links
        ready = links._ready

        def watched(stream: FollowerStream, key: HostKey) -> None:
            other = Lane.HOT if stream.lane is Lane.CATCH_UP else Lane.CATCH_UP
            before = links._streams.get((stream.leader, other))
            if before is not None and before.has(key):
                self.scheduler.counters[f"moves to the {stream.lane.name.lower()} lane"] += 1
            ready(stream, key)

        links._ready = watched

    def note_cut(self, host: ObservedHost, end: int) -> None:
        """Record that a replica is about to truncate its log to `end`, or to reset the log to begin at `end`."""
        self.scheduler.note(f"broker {self.broker_id} cuts {host.log.log_end_offset} to {end}")

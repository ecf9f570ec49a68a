"""The production group coordinator on a simulated broker.

`GroupCoordinator`, its host, shards and record codec are the production's own and run on a
SimulatedLoop; below them this file is the PartitionService, over the replica cores of the broker:
loads read the simulated log, writes are appended with acks=all and replicated like any others.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odradek_broker.coordination.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from odradek_broker.coordination.hosted_shard import CoordinatorError, HostedShard
from odradek_broker.groups import messages as gm
from odradek_broker.groups.group_shard import GroupShard
from odradek_broker.partition.effects import Role
from odradek_broker.replication.outcomes import (
    FetchWant,
    LeaderNow,
    OffsetOutcome,
    ProduceOutcome,
    ReadOutcome,
)
from odradek_broker.replication.partition_service import OFFSET_EARLIEST, LeadershipWatcher
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import (
    NO_OFFSET,
    GroupId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.records import iter_headers
from odradek_protocol.records.batch_header import stamp
from odradek_runtime.clock import Clock
from tests.sim.disk import Batch
from tests.sim.network import Stream
from tests.sim.scheduler import MS
from tests.sim.simulated_loop import SimulatedLoop

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess, Hosted

SESSION_MS = 4_000  # longer than a lease, as any session time-out must be
REBALANCE_MS = 4_000
BATCHES_PER_READ = 16
WALL_BEGINS_MS = 1_700_000_000_000
SETTINGS = BrokerSettings(
    node_id=1,
    log_dir="nowhere",
    controllers="101@simulated:1",
    group_min_session_timeout_ms=1_000,
    group_initial_rebalance_delay_ms=300,
    group_consumer_session_timeout_ms=SESSION_MS,
    group_consumer_heartbeat_interval_ms=500,
)


@dataclass(frozen=True, slots=True)
class GroupCall:
    """One request of a member."""

    call_id: int
    request: Any  # of groups.messages


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """`response` is of groups.messages, or the code with which the coordinator refused."""

    call_id: int
    response: Any


class BrokerClock(Clock):
    """The clocks of a simulated broker's machine."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def monotonic_ms(self) -> int:
        return self._broker.now_ms()

    def wall_ms(self) -> int:
        return WALL_BEGINS_MS + self._broker.now_ms() + self._broker.node.wall_offset_ms


class CoordinatorShell:
    """Belongs to one BrokerProcess."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.scheduler = broker.scheduler
        self.loop = SimulatedLoop(broker.process)
        self._watchers: list[LeadershipWatcher] = []
        self._image_watchers: set[Callable[[MetadataImage], None]] = set()
        self.coordinator = GroupCoordinator(
            settings=SETTINGS,
            partitions=self,  # type: ignore[arg-type]  # of PartitionService what it needs
            topic_creation=None,  # type: ignore[arg-type]  # the topic is there from the start
            clock=BrokerClock(broker),
        )
        self._handlers: dict[type[Any], Callable[[Any], Coroutine[Any, Any, Any]]] = {
            gm.JoinGroup: self.coordinator.join,
            gm.SyncGroup: self.coordinator.sync,
            gm.Heartbeat: self.coordinator.heartbeat,
            gm.LeaveGroup: self.coordinator.leave,
            gm.ConsumerHeartbeat: self.coordinator.consumer_heartbeat,
            gm.CommitOffsets: self.coordinator.commit,
            gm.FetchOffsets: self.coordinator.fetch_offsets,
        }
        self._watch_loads()
        self.loop.spawn(self.coordinator.run())

    def _watch_loads(self) -> None:
        """I11: a shard begins with all that is in its log, committed."""
        host = self.coordinator._host
        load = host._load

        async def watched(hosted: HostedShard[GroupShard]) -> bool:
            is_loaded = await load(hosted)
            if is_loaded:
                found = self._find(hosted.partition)
                self.scheduler.counters["coordinator loads"] += 1
                self.broker.cluster.invariants.coordinator_begins(self.broker, found)
            return is_loaded

        host._load = watched  # type: ignore[method-assign]

    # --- members ---------------------------------------------------------------------------------

    def accept(self, stream: Stream) -> None:
        """A member's connection."""

        def on_message(call: GroupCall) -> None:
            self.loop.spawn(self._answer(stream, call))

        stream.on_message[1] = on_message

    async def _answer(self, stream: Stream, call: GroupCall) -> None:
        try:
            response = await self._handlers[type(call.request)](call.request)
        except CoordinatorError as refused:
            response = refused.code
        else:
            self._note_move(call.request.group_id)
        stream.send(self.broker.process, GroupAnswer(call.call_id, response))

    def _note_move(self, group_id: str) -> None:
        """A group's members are answered by another broker, or another life of it, than before."""
        coordinators, me = self.broker.cluster.coordinators, self.broker.incarnation
        moved = coordinators.get(group_id, me) != me
        self.scheduler.counters["coordinator moves with members live"] += moved
        coordinators[group_id] = me
        kind = next(
            (
                type(shard.groups[GroupId(group_id)]).__name__
                for shard in self.coordinator._host.active_shards()
                if group_id in shard.groups
            ),
            "",
        )
        before = self.broker.cluster.group_kinds.setdefault(group_id, kind)
        self.scheduler.counters["groups migrated"] += kind != before
        self.broker.cluster.group_kinds[group_id] = kind

    # --- what the broker tells -------------------------------------------------------------------

    def role_changed(self, hosted: Hosted) -> None:
        """As PartitionTable does: watchers hear of it in a later turn of the loop."""
        if self._is_ours(hosted.partition):
            self.loop.call_soon(self._tell, hosted)

    def _tell(self, hosted: Hosted) -> None:
        index = PartitionIndex(hosted.partition.partition)
        replica = hosted.replica
        is_here = self.broker.hosted.get(hosted.partition) is hosted
        for watcher in self._watchers:
            if is_here and replica.role is Role.LEADER:
                watcher.on_leader(OFFSETS_TOPIC, index, replica.leader_epoch)
            else:
                watcher.on_resigned(OFFSETS_TOPIC, index)

    def image_changed(self) -> None:
        for watcher in tuple(self._image_watchers):
            watcher(self.broker.image)

    def _is_ours(self, partition: TopicIdPartition) -> bool:
        topic = self.broker.image.topics.get(partition.topic_id)
        return topic is not None and topic.name == OFFSETS_TOPIC

    # --- PartitionService ------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        return self.broker.image

    def watch_leadership(self, topic: str, watcher: LeadershipWatcher) -> None:
        self._watchers.append(watcher)

    def watch_image(self, watcher: Callable[[MetadataImage], None]) -> Callable[[], None]:
        self._image_watchers.add(watcher)
        return lambda: self._image_watchers.discard(watcher)

    def leader_of(self, topic: str, partition: PartitionIndex) -> LeaderNow:
        raise NotImplementedError("members look into images themselves")

    def _find(self, partition: PartitionIndex) -> Hosted | None:
        topic = self.broker.image.topic(OFFSETS_TOPIC)
        if topic is None:
            return None
        return self.broker.hosted.get(TopicIdPartition(topic.topic_id, partition))

    def may_answer(self, topic: str, partition: PartitionIndex, leader_epoch: LeaderEpoch) -> bool:
        hosted = self._find(partition)
        return hosted is not None and self.broker.clients.passes_gate(hosted, leader_epoch)

    def log_end(self, topic: str, partition: PartitionIndex) -> Offset:
        hosted = self._find(partition)
        return NO_OFFSET if hosted is None else hosted.replica.log_end

    def produce(
        self,
        topic: str,
        partition: PartitionIndex,
        records: bytes,
        *,
        acks: int,
        timeout_ms: int,
        on_done: Callable[[ProduceOutcome], None],
        expected_leader_epoch: LeaderEpoch,
        is_internal: bool,
    ) -> None:
        hosted = self._find(partition)
        if hosted is None:
            on_done(ProduceOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        (header,) = (header for _, header in iter_headers(records))
        values = tuple(next(self.broker.cluster.own_values) for _ in range(header.record_count))
        self.broker.clients.produce_here(
            hosted,
            Batch(0, len(values), 0, values, data=bytes(records)),
            acks=acks,
            timeout_ms=timeout_ms,
            on_done=on_done,
            expected_leader_epoch=expected_leader_epoch,
        )

    async def list_offsets(
        self, topic: str, partition: PartitionIndex, timestamp_ms: int
    ) -> OffsetOutcome:
        hosted = self._find(partition)
        if hosted is None or hosted.replica.role is not Role.LEADER:
            return OffsetOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if timestamp_ms == OFFSET_EARLIEST:
            return OffsetOutcome(ErrorCode.NONE, Offset(hosted.log.log_start))
        bound = hosted.replica.latest_offset(
            last_stable_offset=hosted.replica.high_watermark, is_committed_only=False
        )
        if bound.error_code is not ErrorCode.NONE:
            return OffsetOutcome(bound.error_code)
        if not self.may_answer(topic, partition, bound.leader_epoch):
            return OffsetOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return OffsetOutcome(ErrorCode.NONE, bound.end_offset)

    async def fetch(self, wants: Sequence[FetchWant], **_: Any) -> list[ReadOutcome]:
        """A cold read: it takes its time, in which leadership may go."""
        (want,) = wants
        delay_us = self.scheduler.between(100, 30 * MS if self.scheduler.chance(0.1) else 3 * MS)
        await self._sleep(delay_us)
        hosted = self._find(want.partition)
        if hosted is None:
            return [ReadOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        bound = hosted.replica.read_bound(
            last_stable_offset=hosted.replica.high_watermark,
            is_committed_only=False,
            fetch_offset=want.offset,
        )
        if bound.error_code is not ErrorCode.NONE:
            return [ReadOutcome(bound.error_code)]
        batches = hosted.log.read(want.offset, bound.end_offset, BATCHES_PER_READ)
        records = [stamped(batch) for batch in batches]
        return [
            ReadOutcome(
                ErrorCode.NONE,
                records=records,
                size_bytes=sum(map(len, records)),
                next_offset=Offset(batches[-1].end) if batches else want.offset,
                high_watermark=bound.end_offset,
                leader_epoch=bound.leader_epoch,
            )
        ]

    async def _sleep(self, delay_us: int) -> None:
        future = self.loop.create_future()
        self.broker.process.after(delay_us, lambda: future.done() or future.set_result(None))
        await future


def stamped(batch: Batch) -> bytes:
    """The bytes of a batch as they stand in the log."""
    buffer = bytearray(batch.data)
    stamp(buffer, 0, batch.base, batch.epoch)
    return bytes(buffer)

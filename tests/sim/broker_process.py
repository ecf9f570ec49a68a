"""One life of a simulated broker: the production image and replica cores behind simulated shells.

This file: the metadata feed, and what the image means for the replicas here. Registration,
heartbeats and lease are in controller_link.py, replication between brokers in replication_shell.py,
clients in client_shell.py.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odradek_broker.log.storage import StorageFailed
from odradek_broker.partition import events
from odradek_broker.partition.effects import PartitionFailed
from odradek_broker.partition.replica import Replica
from odradek_broker.partition.settings import ReplicaSettings
from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.metadata.image import (
    MetadataDelta,
    MetadataImage,
    PartitionState,
    differences,
)
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.metadata.snapshot import read_snapshot
from tests.sim.client_shell import ClientShell
from tests.sim.controller_link import HEARTBEAT_US, ControllerLink
from tests.sim.coordinator_shell import CoordinatorShell
from tests.sim.disk import SimLog
from tests.sim.network import Stream
from tests.sim.replication_shell import ReplicationShell
from tests.sim.scheduler import MS, SECOND, Process

if TYPE_CHECKING:
    from tests.sim.cluster import BrokerNode, Cluster

STALL_MS = 500
CHECKPOINT_US = 5 * SECOND


@dataclass(slots=True, eq=False)
class Hosted:
    """A replica, its log, and what the image last said of it."""

    partition: TopicIdPartition
    log: SimLog
    replica: Replica
    state: PartitionState | None = None
    is_sync_wanted: bool = False


class BrokerProcess:
    """From start to death."""

    def __init__(self, cluster: Cluster, node: BrokerNode) -> None:
        self.cluster = cluster
        self.node = node
        self.broker_id = node.broker_id
        self.scheduler = cluster.scheduler
        self.network = cluster.network
        self.process = Process(self.scheduler, node.broker_id)
        self.incarnation = self.scheduler.random.randbytes(16)
        self.broker_epoch = -1
        self.image = MetadataImage()
        self.hosted: dict[TopicIdPartition, Hosted] = {}
        self.attach_seqs = itertools.count(1)
        self.is_ready = False  # logs open, image past the registration
        self.has_opened_logs = False
        self.want_shutdown = False
        self.broken: set[TopicIdPartition] = set()  # ended by a bug
        self.lease_until_ms = -1
        self.lease_sent_us = -10 * SECOND  # when the heartbeat that it rests on was sent
        self.link = ControllerLink(self)
        self._feed: Stream | None = None
        self._ticked_at_ms = self.now_ms()
        self.replication = ReplicationShell(self)
        self.clients = ClientShell(self)
        self.groups = CoordinatorShell(self) if cluster.has_groups else None
        self.link.register()
        self._open_feed()
        self.link.connect()
        self.process.after(self.scheduler.between(1, 300) * MS, self._logs_are_open)
        self.process.after(HEARTBEAT_US, self.link.beat)
        self.process.after(cluster.tick_us, self._tick)
        self.process.after(CHECKPOINT_US, self._checkpoint)
        self.process.after(self.scheduler.between(1, 5) * SECOND, self._second_feed)

    def now_ms(self) -> int:
        """CLOCK_BOOTTIME of this machine: it drifts, and never jumps."""
        return int(self.scheduler.now_us * self.node.drift) // 1000

    def lease_clock_ms(self) -> int:
        """The clock that the lease is judged by."""
        return self.now_ms()

    def die(self) -> None:
        """However it comes: what was written stays written."""
        if self.process.is_alive:
            self.node.disk.killed()
        self.process.kill()
        self.network.process_ended(self.process)
        self.close()

    def die_within(self) -> None:
        """As `die`, from inside of what the process does: what is connected to it learns of it next."""
        self.node.disk.killed()
        self.process.kill()
        self.scheduler.after(0, self.die)

    def close(self) -> None:
        """Unwind what runs here."""
        if self.groups is not None:
            self.groups.loop.close()

    def exit_as_stale(self) -> None:
        """STALE_BROKER_EPOCH: another life of this broker has taken over."""
        self.scheduler.note(f"broker {self.broker_id} exits, its epoch is over")
        self.die()
        self.node.restart_later(self.scheduler.between(100, 1000) * MS)

    def step(self, hosted: Hosted, event: events.Event) -> None:
        """One event for one replica, and what comes of it."""
        effects = hosted.replica.step(event, self.now_ms())
        for effect in effects:
            self.cluster.invariants.before_effect(self, hosted, effect)
            if type(effect) is PartitionFailed:
                self._failed(hosted, effect)
            elif not self.replication.carry_out(hosted, event, effect):
                self.clients.carry_out(hosted, effect)
        self.cluster.invariants.after_step(self, hosted)

    def _failed(self, hosted: Hosted, effect: PartitionFailed) -> None:
        if effect.is_bug:
            self.broken.add(hosted.partition)
        else:
            self.fail_directory()

    # --- the feed --------------------------------------------------------------------------------

    def _open_feed(self, *, again: bool = True) -> None:
        self.open_feed_of(
            self.scheduler.random.choice(sorted(self.cluster.controllers)), again=again
        )

    def open_feed_of(self, controller_id: int, *, again: bool = True) -> None:
        """Follow the feed of this controller from where the image is."""
        controller = self.cluster.controllers[controller_id]
        able = controller.process.is_running
        if not able or not self.network.both_ways(self.broker_id, controller_id):
            if again:
                self.process.after(self.scheduler.between(50, 500) * MS, self._open_feed)
            return
        stream = Stream(self.network, self.process, controller.process)
        self._feed = stream

        def on_message(message: tuple[str, Any]) -> None:
            kind, content = message
            if kind == "snapshot":
                self.take_snapshot(content)
            else:
                self._take_entries(content)

        def on_closed() -> None:
            self.process.after(self.scheduler.between(50, 500) * MS, self._open_feed)

        stream.on_message[0] = on_message
        stream.on_closed[0] = on_closed
        self.network.scheduler.after(
            self.network.delay_us(self.broker_id, controller_id),
            controller.process.deliver,
            controller.accept_feed,
            stream,
            self.image.offset + 1,
        )

    def _second_feed(self) -> None:
        """A feed that seems slow is not waited for: two overlap until the older one ends."""
        before = self._feed
        self._open_feed(again=False)
        if before is not None and before is not self._feed:
            before.on_closed[0] = None
            self.process.after(self.scheduler.between(10, 6_000) * MS, before.close, self.process)
        self.process.after(self.scheduler.between(1, 5) * SECOND, self._second_feed)

    def _take_entries(self, entries: list[tuple[int, Any]]) -> None:
        delta = MetadataDelta()
        for offset, entry in entries:
            if offset <= self.image.offset:
                continue
            assert offset == self.image.offset + 1, f"a gap in the feed at {offset}"
            for record in entry.records:
                self.image.replay(offset, entry.term, record, delta)
            if not entry.records:
                self.image.advance(offset, entry.term)
        self._apply(delta)

    def take_snapshot(self, snapshot: bytes) -> None:
        """The image jumps forward; never back."""
        image = read_snapshot(snapshot)
        if image.offset <= self.image.offset:
            return
        self.cluster.invariants.image_moves(self, image)
        self.scheduler.counters["broker snapshots"] += 1
        before, self.image = self.image, image
        for delta in differences(before, image):
            self._apply(delta)

    def _apply(self, delta: MetadataDelta) -> None:
        if self.groups is not None:
            self.groups.image_changed()
        if not self.is_ready:
            self.get_ready()
            return
        for topic_id in sorted(delta.topics_removed):
            for hosted in [h for t, h in self.hosted.items() if t.topic_id == topic_id]:
                self._remove(hosted)
        names = {n for kind, n in delta.configs if kind is ConfigResourceType.TOPIC}
        changed = {TopicIdPartition(t, i) for t, i in delta.partitions}
        changed |= {p for p in self.hosted if self._topic_name(p) in names or "" in names}
        for partition in sorted(changed, key=lambda p: (p.topic_id, p.partition)):
            self._tell(partition)
        for broker_id in sorted(delta.brokers):
            state = self.image.brokers.get(broker_id)
            if state is None:
                continue
            self.replication.links.broker_changed(broker_id)
            event = events.BrokerChanged(broker=_view(state))
            for hosted in list(self.hosted.values()):
                if hosted.state is not None and broker_id in hosted.state.replicas:
                    self.step(hosted, event)

    def _topic_name(self, partition: TopicIdPartition) -> str:
        topic = self.image.topics.get(partition.topic_id)
        return topic.name if topic is not None else ""

    def _tell(self, partition: TopicIdPartition) -> None:
        """What the image says of a partition that is, or will be, here."""
        state = self.image.partition(partition.topic_id, partition.partition)
        hosted = self.hosted.get(partition)
        if state is None or (hosted is None and self.broker_id not in state.replicas):
            return
        if hosted is None:
            try:
                hosted = self._host(partition)
            except StorageFailed:
                self.fail_directory()
                return
        hosted.state = state
        self.step(hosted, self._changed(state))
        if self.broker_id not in state.replicas:
            self._remove(hosted)

    def _changed(self, state: PartitionState) -> events.PartitionChanged:
        topic = self.image.topics[state.topic_id]
        brokers = (self.image.brokers.get(b) for b in state.replicas)
        return events.PartitionChanged(
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=state.replicas,
            isr=state.isr,
            elr=state.elr,
            min_insync_replicas=self.image.min_insync_replicas(state),
            is_recovering=state.recovering,
            brokers=tuple(_view(b) for b in brokers if b is not None),
            is_fsync=self.image.topic_config(topic.name, "durability") == "fsync",
        )

    def _host(self, partition: TopicIdPartition) -> Hosted:
        log = self.node.disk.open_log(partition, self._topic_name(partition))
        hosted = Hosted(
            partition,
            log,
            Replica(
                partition=partition,
                broker_id=self.broker_id,
                settings=ReplicaSettings(replica_lag_time_max_ms=3_000),
                log=log.opened(),
                producers=log,
                attach_seqs=self.attach_seqs,
            ),
        )
        self.hosted[partition] = hosted
        return hosted

    def _remove(self, hosted: Hosted) -> None:
        self.replication.removed(hosted)
        self.step(hosted, events.PartitionRemoved())
        del self.hosted[hosted.partition]
        self.broken.discard(hosted.partition)
        if self.groups is not None:
            self.groups.role_changed(hosted)
        self.node.disk.remove_log(hosted.partition)

    # --- start, time, stop -----------------------------------------------------------------------

    def _logs_are_open(self) -> None:
        self.has_opened_logs = True
        self.get_ready()

    def get_ready(self) -> None:
        """Section 8: roles only when the image has reached our own registration."""
        registered = 0 <= self.broker_epoch <= self.image.offset
        if self.is_ready or not self.has_opened_logs or not registered:
            return
        if self.image.brokers[self.broker_id].broker_epoch != self.broker_epoch:
            return
        self.is_ready = True
        for partition in sorted(self.node.disk.logs, key=lambda p: (p.topic_id, p.partition)):
            state = self.image.partition(partition.topic_id, partition.partition)
            if state is None or self.broker_id not in state.replicas:
                self.node.disk.remove_log(partition)  # deleted or moved while we were away
        for state in self.image.partitions():
            if self.broker_id in state.replicas:
                self._tell(TopicIdPartition(state.topic_id, state.partition))

    def _tick(self) -> None:
        now_ms = self.now_ms()
        late_ms = now_ms - self._ticked_at_ms - self.cluster.tick_us // MS
        self._ticked_at_ms = now_ms
        for hosted in list(self.hosted.values()):
            if late_ms > STALL_MS:
                self.step(hosted, events.LeaderStalled(stall_ms=late_ms))
            self.step(hosted, events.Tick())
        self.replication.flush_some()
        self.replication.apply_retention()
        self.process.after(self.cluster.tick_us, self._tick)

    def _checkpoint(self) -> None:
        for hosted in self.hosted.values():
            hosted.log.checkpoint = hosted.replica.high_watermark
        if self.broker_epoch >= 0:
            try:
                self.node.disk.checkpoint(self.scheduler)
            except StorageFailed:
                self.fail_directory()
        self.process.after(CHECKPOINT_US, self._checkpoint)

    def fail_directory(self) -> None:
        """R11: one directory, so all replicas here are done for."""
        disk = self.node.disk
        if disk.has_failed:
            return
        disk.has_failed = True
        for hosted in list(self.hosted.values()):
            self.step(hosted, events.StorageFailed(reason="the directory failed"))

    def begin_shutdown(self) -> None:
        """Section 8: leave in an orderly way, or after 5 s in any way."""
        self.want_shutdown = True
        self.process.after(5 * SECOND, self._give_up_shutdown)

    def _give_up_shutdown(self) -> None:
        self.die()

    def finish_shutdown(self) -> None:
        """The controller lets it go."""
        for hosted in self.hosted.values():
            hosted.log.checkpoint = hosted.replica.high_watermark
        with suppress(StorageFailed):
            self.node.disk.close_cleanly(self.broker_epoch)
        self.scheduler.counters["clean shutdowns"] += 1
        self.die()


def _view(state: Any) -> events.BrokerView:
    return events.BrokerView(
        broker_id=state.broker_id,
        broker_epoch=state.broker_epoch,
        is_fenced=state.fenced,
        in_shutdown=state.in_shutdown,
    )

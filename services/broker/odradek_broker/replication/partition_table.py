"""All replicas of this broker, and the objects that they share. The replicas follow the metadata image.

Before `activate` is called, changes of the image are only collected: the image may be older than this broker's current
registration, and the logs are not recovered yet. After that, each change of the image becomes events for the replicas
that it concerns, in the order of the metadata log. Logs are created, configured and deleted according to the records.
If the image has no replica for a log, but no record deleted that replica, the log is put aside (disk/stray_logs.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from odradek_broker.cluster.isr_proposals import IsrProposals
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import StorageFailed, StorageRefused
from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.partition.effects import Role
from odradek_broker.partition.marker_writes import CoordinatorEpochs
from odradek_broker.partition.settings import ReplicaSettings
from odradek_broker.replication.batch_checks import RecordChecks
from odradek_broker.replication.client_requests import AT_ONCE_MAX, ProduceTurns
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.disk.disk_pool import Pool
from odradek_broker.replication.disk.stray_logs import NO_REPLICA, NO_TOPIC, StrayLogs
from odradek_broker.replication.host_ports import TransactionRegistrar
from odradek_broker.replication.image_views import ImageViews, broker_view
from odradek_broker.replication.outcomes import LeadershipWatcher
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.streams.follower_links import FollowerLinks
from odradek_broker.replication.streams.follower_stream import FollowerStream
from odradek_broker.replication.streams.leader_stream import LeaderStream
from odradek_protocol.identity import (
    NO_BROKER,
    BrokerId,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage, PartitionState
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.topic_names import TRANSACTIONS_TOPIC
from odradek_runtime.clock import SYSTEM_CLOCK, Clock
from odradek_runtime.logs import event_log

HOSTS_PER_STEP: Final = 5  # one event takes a replica 0.1 to 0.5 ms, at times 2 ms
BROKER_CHANGES_PER_STEP: Final = 200
TICK_MS: Final = 100
TICK_SLICES: Final = 10
STALL_MS: Final = 500
STALL_LOG_INTERVAL_MS: Final = 60_000
BROKEN_MAX: Final = 100  # a heartbeat lists at most this many failed replicas
T = TypeVar("T")
_log = event_log(__name__)


class StallLog:
    """Logs the first stall of the event loop at once. Later stalls are logged as a sum, at most once a minute."""

    def __init__(self) -> None:
        self._count = 0
        self._longest_ms = 0
        self._written_at_ms: int | None = None

    def add(self, stall_ms: int) -> None:
        """Count one stall."""
        self._count += 1
        self._longest_ms = max(self._longest_ms, stall_ms)

    def write_due(self, now_ms: int) -> None:
        """Log the stalls counted so far, unless the last log line is younger than STALL_LOG_INTERVAL_MS."""
        last_ms = self._written_at_ms
        if not self._count or (last_ms is not None and now_ms - last_ms < STALL_LOG_INTERVAL_MS):
            return
        _log.warning(
            "Event loop did not run for a while; requests and heartbeats waited",
            stalls=self._count,
            longest_stall_ms=self._longest_ms,
        )
        self._written_at_ms, self._count, self._longest_ms = now_ms, 0, 0


def _in_steps(items: Sequence[T], count: int = HOSTS_PER_STEP) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), count):
        yield items[start : start + count]


class PartitionTable:
    """The replicas of this broker, by (topic id, partition) and by (topic name, partition)."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        directory: LogDirectory,
        defaults: LogConfig,
        settings: ReplicaSettings,
        pool: Pool,
        proposals: IsrProposals,
        on_offline: Callable[[str], None],
        on_broken: Callable[[tuple[TopicIdPartition, ...]], None],
        clock: Clock = SYSTEM_CLOCK,
        make_host: Callable[..., PartitionHost] = PartitionHost,
        tick_ms: int = TICK_MS,
        tick_slices: int = TICK_SLICES,
        at_once_max: int = AT_ONCE_MAX,
    ) -> None:
        """`on_offline` is called once, when the directory fails. `on_broken` is called with all replicas that are
        offline after internal errors, whenever this set changes. Each replica that waits for a point in time gets a
        Tick every `tick_ms`. These replicas are spread over `tick_slices` iterations of the event loop within that
        time. `at_once_max` is passed to ProduceTurns.
        """
        self.clock = clock
        self.pool = pool
        self.record_checks = RecordChecks(pool)
        self.counters = Counters()
        self.image = MetadataImage()
        self.by_id: dict[tuple[bytes, int], PartitionHost] = {}
        self.by_name: dict[tuple[str, int], PartitionHost] = {}
        self.leader_streams: dict[ev.FollowerSession, LeaderStream] = {}
        self.links: FollowerLinks | None = None  # set before `activate`
        self.coordinator_epochs = CoordinatorEpochs()
        self.transaction_registrar: TransactionRegistrar | None = None  # set before `activate`
        self._has_transactions = self.is_active = False
        self.offline_reason = ""
        self._broker_id = broker_id
        self._directory = directory
        self._views = ImageViews(self.image, defaults=defaults)
        self._settings = settings
        self._proposals = proposals
        self._on_offline = on_offline
        self._on_broken = on_broken
        self._broken: dict[TopicIdPartition, None] = {}
        self._attach_seqs = itertools.count(1)
        self._stalls = StallLog()
        self._watchers: dict[str, list[LeadershipWatcher]] = {}
        self._make_host = make_host
        self._awake: list[PartitionHost] = []  # hosts that get a Tick in the next `tick_ms`
        self._ticked: list[PartitionHost] = []  # hosts that get a Tick in the current `tick_ms`
        self._tick_ms = tick_ms
        self._tick_slices = tick_slices
        self._loop = asyncio.get_running_loop()
        self.produce_turns = ProduceTurns(self._loop.call_soon, at_once_max)
        self.strays = StrayLogs(directory, pool, on_failure=self.storage_failed, clock=clock)
        # Topics that metadata records deleted before `activate`.
        self._deleted_before: set[TopicId] = set()
        # The directory calls this in the thread in which the disk failed.
        directory.on_failure = self._failed_in_some_thread

    def activate(self, image: MetadataImage) -> None:
        """Start the replicas, because the image contains this broker's registration and the logs are recovered."""
        assert self.links is not None, "activated without follower links"
        assert not self.is_active, "activated twice"
        self.image = image
        # Threads that loaded logs may have cached settings from earlier images, so all cached values are removed.
        self._views.follow(image)
        self._hear_of_coordinators((s.topic_id, s.partition) for s in image.partitions())
        self.is_active = True
        self.strays.begin()
        unclaimed: dict[str, list[PartitionLog]] = {NO_TOPIC: [], NO_REPLICA: []}
        for log in list(self._directory.logs()):
            state = image.partition(log.topic_id, log.partition)
            if state is not None and self._broker_id in state.replicas:
                continue
            if log.topic_id in self._deleted_before:
                self._delete(log.topic_id, log.partition)
            else:
                unclaimed[NO_TOPIC if state is None else NO_REPLICA].append(log)
        self.strays.remove_deleted(self._deleted_before)
        self._deleted_before.clear()
        for reason, logs in unclaimed.items():
            self.strays.put_aside(logs, reason)
        for state in image.partitions():
            if self._broker_id in state.replicas:
                self._feed(state)

    def apply(self, image: MetadataImage, delta: MetadataDelta) -> Iterator[None]:
        """Apply a change of the image to the replicas. Yield after every few replicas, so that the event loop can run.

        One record may concern ten thousand replicas. Between two steps, replicas that did not get their event yet are
        behind the image, so they refuse requests as if they were not created or elected yet, and clients try again. A
        log is deleted only if a record deletes its topic or moves its replica to another broker. If the partition is
        only missing in a snapshot, which may come from another history of the cluster, the log is put aside.
        """
        self.image = image
        self._views.follow(image, delta)
        if not self.is_active:
            if not delta.is_of_snapshot:
                self._deleted_before.update(delta.topics_removed)
            return
        # Update the coordinators' epochs before replicas become leaders: a leader must refuse deposed coordinators.
        self._hear_of_coordinators(delta.partitions)
        removed = [
            (topic_id, partition.partition)
            for topic_id, topic in delta.topics_removed.items()
            for partition in topic.partitions
        ]
        for keys in _in_steps(removed):
            self._leave(keys, NO_TOPIC if delta.is_of_snapshot else None)
            yield
        if not delta.is_of_snapshot:
            self.strays.remove_deleted(delta.topics_removed)
        yield from self._apply_configs(delta)
        for keys in _in_steps(list(delta.partitions)):
            for key in keys:
                count = len(self.by_id)
                self._apply_partition(image, key, delta)
                if len(self.by_id) > count:
                    yield  # creating a replica takes 0.5 ms, and 4 ms on some disks
            yield
        if delta.brokers:
            yield from self._apply_brokers(image, delta)

    def _hear_of_coordinators(self, changed: Iterable[tuple[TopicId, int]]) -> None:
        """Update whether the cluster supports transactions, and the leader epochs of the transaction coordinators."""
        image = self.image
        self._has_transactions = image.has_transactions
        transactions_id = image.topic_ids.get(TRANSACTIONS_TOPIC)
        for topic_id, index in changed if transactions_id is not None else ():
            if topic_id == transactions_id and (state := image.partition(topic_id, index)):
                self.coordinator_epochs.heard(state.partition, LeaderEpoch(state.leader_epoch))

    @property
    def registrar(self) -> TransactionRegistrar | None:
        """The object that sends registrations to transaction coordinators; None if the cluster does not support
        transactions.
        """
        return self.transaction_registrar if self._has_transactions else None

    def _apply_partition(
        self, image: MetadataImage, key: tuple[TopicId, PartitionIndex], delta: MetadataDelta
    ) -> None:
        state = image.partition(*key)
        if state is None:
            return
        if self._broker_id in state.replicas:
            self._feed(state)
        else:
            self._leave([key], NO_REPLICA if delta.is_of_snapshot else None)

    def _apply_configs(self, delta: MetadataDelta) -> Iterator[None]:
        names = {name for kind, name in delta.configs if kind is ConfigResourceType.TOPIC}
        has_cluster_defaults = (ConfigResourceType.BROKER, "") in delta.configs
        if not names and not has_cluster_defaults:
            return
        concerned = [
            host for host in self.by_id.values() if has_cluster_defaults or host.topic in names
        ]
        for hosts in _in_steps(concerned):
            for host in hosts:
                if host.is_removed:
                    continue
                host.log.config = self.log_config(host.topic)
                state = self.image.partition(host.partition.topic_id, host.partition.partition)
                if state is not None and self._broker_id in state.replicas:
                    self._feed(state)
            yield

    def _apply_brokers(self, image: MetadataImage, delta: MetadataDelta) -> Iterator[None]:
        assert self.links is not None
        for broker_id in delta.brokers:
            self.links.broker_changed(broker_id)
        views = [view for broker_id in delta.brokers if (view := broker_view(image, broker_id))]
        for hosts in _in_steps(list(self.by_id.values()), BROKER_CHANGES_PER_STEP):
            for host in hosts:
                state = image.partition(host.partition.topic_id, host.partition.partition)
                if state is None or host.is_removed:
                    continue
                for view in views:
                    if view.broker_id in state.replicas:
                        host.step(ev.BrokerChanged(broker=view))
            yield

    def _feed(self, state: PartitionState) -> None:
        """Pass a replica its state in the image. Create the replica first if it does not exist."""
        if self.links is not None:
            self.links.share(state.replicas)
        host = self.by_id.get((state.topic_id, state.partition)) or self._make(state)
        if host is not None:
            host.step(self._views.partition(state, host.log.config))

    def _make(self, state: PartitionState) -> PartitionHost | None:
        topic = self.image.topics[state.topic_id].name
        log = self._directory.get(state.topic_id, state.partition)
        if log is None and (stray := self.strays.find(state.topic_id, state.partition)) is not None:
            self.strays.bring_back(stray, topic, self.log_config(topic), self._returned)
            return None
        if self.strays.is_returning(state.topic_id, state.partition):
            return None
        config = self.log_config(topic)
        try:
            if log is None:
                log = self._directory.create(topic, state.topic_id, state.partition, config)
            else:
                log.config = config
        except StorageFailed as failure:
            self.storage_failed(failure)
            return None
        host = self._make_host(
            topic=topic,
            log=log,
            broker_id=self._broker_id,
            settings=self._settings,
            attach_seqs=self._attach_seqs,
            shared=self,
        )
        self.by_id[log.key] = host
        self.by_name[topic, state.partition] = host
        return host

    def _returned(self, log: PartitionLog) -> None:
        """Start a replica on a stray log that was opened again, if the image still assigns the partition to this
        broker.
        """
        state = self.image.partition(log.topic_id, log.partition)
        if state is not None and self._broker_id in state.replicas:
            self._feed(state)
        else:
            self.strays.put_aside([log], NO_TOPIC if state is None else NO_REPLICA)

    def _leave(
        self, keys: Sequence[tuple[TopicId, PartitionIndex]], stray_reason: str | None
    ) -> None:
        """Remove the replicas with these keys, if they exist. Delete their logs, or put the logs aside if there is a
        `stray_reason`.
        """
        logs: list[PartitionLog] = []
        for key in keys:
            if (host := self.by_id.get(key)) is None:
                continue
            self._forget(key, host)
            if stray_reason is None:
                self._delete(*key)
            else:
                logs.append(host.log)
        if stray_reason is not None:
            self.strays.put_aside(logs, stray_reason)

    def _delete(self, topic_id: TopicId, index: PartitionIndex) -> None:
        try:
            self._directory.delete(topic_id, index)
        except StorageFailed as failure:
            self.storage_failed(failure)

    def log_config(self, topic: TopicName) -> LogConfig:
        """Return a topic's log settings. Configs of the topic override those of the cluster, which override the
        broker's.
        """
        return self._views.log_config(topic)

    def leader_stream(self, session: ev.FollowerSession) -> LeaderStream | None:
        """Return the open stream of a follower's session; None if it has ended."""
        return self.leader_streams.get(session)

    def follower_stream(self, session_id: int) -> FollowerStream | None:
        """Return this broker's open stream to a leader by its session id; None if it has ended."""
        assert self.links is not None
        return self.links.stream(session_id)

    def role_changed(self, host: PartitionHost, effect: fx.RoleChanged) -> None:
        """Begin or stop to follow a leader, and notify the coordinators of the replica's new role."""
        assert self.links is not None
        leader = effect.leader if effect.role is Role.FOLLOWER else NO_BROKER
        self.links.follow(host, leader)
        if host.topic in self._watchers:
            self._loop.call_soon(self._tell_watchers, host)

    def propose_isr(self, host: PartitionHost, effect: fx.ProposeIsr) -> None:
        """Send an ISR change to the controller, and pass the controller's response to the replica."""
        partition = host.partition
        state = self.image.partition(partition.topic_id, partition.partition)
        growth = len(effect.isr) - (len(state.isr) if state is not None else 0)
        if growth > 0:
            self.counters.isr_expands += 1
        elif growth < 0:
            self.counters.isr_shrinks += 1

        def responded(code: ErrorCode) -> None:
            if not host.is_removed:
                host.step(
                    ev.IsrChangeResponded(
                        leader_epoch=effect.leader_epoch,
                        partition_epoch=effect.partition_epoch,
                        error_code=code,
                    )
                )

        self._proposals.propose(partition, effect, is_urgent=growth >= 0, on_response=responded)

    @property
    def storage_problem(self) -> str:
        """The reason why this broker cannot write: its directory is offline or full; "" if it can write."""
        return self.offline_reason or self.full_reason

    @property
    def full_reason(self) -> str:
        """The error because of which the directory is full; "" if it is not full."""
        return str(self._directory.full or "")

    def storage_failed(self, failure: Exception | str) -> None:
        """Take the directory offline, at the first call; the replicas are notified in a later iteration of the event
        loop.

        A write that was only refused does not take the directory offline (full_disk.py).
        """
        if self.offline_reason or isinstance(failure, StorageRefused):
            return
        self.offline_reason = reason = str(failure)
        _log.error("The data directory is offline until the broker restarts", reason=reason)
        self._on_offline(reason)
        self._loop.call_soon(self._fail_all, reason)

    def has_others_in_sync(self, partition: TopicIdPartition) -> bool:
        """Return whether another replica is in the ISR, according to the metadata image, and so has all committed
        records.
        """
        state = self.image.partition(partition.topic_id, partition.partition)
        return state is not None and any(b != self._broker_id for b in state.isr)

    def partition_broke(self, host: PartitionHost, reason: str) -> None:
        """Report to the controller that an internal error, or damage of the log, took this replica offline, so that
        another replica is elected.

        If more than BROKEN_MAX replicas fail, the errors probably have a common cause, so the whole data directory goes
        offline.
        """
        self._broken[host.partition] = None
        if len(self._broken) > BROKEN_MAX:
            self.storage_failed(
                f"{len(self._broken)} replicas failed on internal errors, the last one: {reason}"
            )
        else:
            self._on_broken(tuple(self._broken))

    def _failed_in_some_thread(self, failure: StorageFailed) -> None:
        # `call_soon_threadsafe` raises RuntimeError if the event loop was closed, because the process is ending.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.storage_failed, failure)

    def _fail_all(self, reason: str) -> None:
        for host in list(self.by_id.values()):
            host.failed(reason)

    async def remake_broken(self) -> None:
        """Create again the hosts whose logs a full disk has left half written. Create the hosts that could not be
        created while the disk was full. Raises StorageFailed.
        """
        for key, host in list(self.by_id.items()):
            if host.is_failed and not host.log.is_intact:
                loaded = await self.pool.call(partial(self._directory.recover, host.log))
                if loaded is None:
                    continue
                if host.is_removed:
                    loaded.segments[-1].close()
                    continue
                self._directory.replace(host.log, loaded)
                self._forget(key, host)
        for state in self.image.partitions():
            is_here = (state.topic_id, state.partition) in self.by_id
            if self._broker_id in state.replicas and not is_here:
                self._feed(state)

    def _forget(self, key: tuple[bytes, int], host: PartitionHost) -> None:
        """Remove a host from this table, because its replica was removed or gets a new host."""
        del self.by_id[key]
        if self.by_name.get((host.topic, host.partition.partition)) is host:
            del self.by_name[host.topic, host.partition.partition]
        assert self.links is not None
        self.links.follow(host, NO_BROKER)
        was_leader = host.is_leader
        host.removed()
        if self._broken.pop(host.partition, host) is None:
            self._on_broken(tuple(self._broken))
        if was_leader:
            self._resigned(host)

    def watch_leadership(self, topic: TopicName, watcher: LeadershipWatcher) -> None:
        """Notify `watcher` of each partition of the topic that this broker leads, now and later."""
        self._watchers.setdefault(topic, []).append(watcher)
        for host in list(self.by_id.values()):
            if host.topic == topic and host.is_leader:
                watcher.on_leader(topic, host.partition.partition, host.replica.leader_epoch)

    def _tell_watchers(self, host: PartitionHost) -> None:
        if host.is_removed or not host.is_leader:
            self._resigned(host)
            return
        for watcher in self._watchers.get(host.topic, ()):
            watcher.on_leader(host.topic, host.partition.partition, host.replica.leader_epoch)

    def _resigned(self, host: PartitionHost) -> None:
        for watcher in self._watchers.get(host.topic, ()):
            watcher.on_resigned(host.topic, host.partition.partition)

    def wake(self, host: PartitionHost) -> None:
        """Pass Tick events to this replica from now on."""
        self._awake.append(host)

    async def tick(self) -> None:
        """Pass a Tick to every awake replica every `tick_ms`, one slice of them at a time, until cancelled.

        Any event wakes a replica. After a Tick the replica sleeps again unless it waits for a point in time. At a Tick
        a leader checks its followers' lag, with a clock that also advances while the machine is suspended. The lag must
        not include a stall of the event loop, so before each slice this method detects stalls, with the same clock.
        """
        event = ev.Tick()
        before_ms = self.clock.boottime_ms()
        while True:
            hosts = self._ticked = self._awake
            self._awake = []
            self._stalls.write_due(before_ms)
            # If all replicas sleep, the event loop should wake up less often, too.
            slices = self._tick_slices if hosts else 1
            pause_ms = self._tick_ms // slices
            for number in range(slices):
                now_ms = self.clock.boottime_ms()
                if now_ms - before_ms - pause_ms > STALL_MS:
                    self._stalled(now_ms - before_ms - pause_ms)
                before_ms = now_ms
                for host in hosts[number::slices]:
                    if host.is_removed:
                        continue
                    host.step(event)
                    if host.replica.waits_for_time:
                        self._awake.append(host)
                    else:
                        host.is_awake = False
                await asyncio.sleep(pause_ms / 1000)

    def _stalled(self, stall_ms: int) -> None:
        """Report a stall of the event loop to the leaders, so that they do not count the stall as lag of their
        followers.
        """
        self._stalls.add(stall_ms)
        self._stalls.write_due(self.clock.boottime_ms())
        # Leaders that sleep need no report, because all of their followers are caught up.
        for host in dict.fromkeys((*self._ticked, *self._awake)):
            if host.is_leader and not host.is_removed:
                host.step(ev.LeaderStalled(stall_ms=stall_ms))

    def log_ends(
        self, partitions: Sequence[tuple[TopicId, int]]
    ) -> Iterator[tuple[TopicIdPartition, int, int]]:
        """Yield (partition, last epoch, log end) for each of these partitions that has a replica on this broker, for
        unclean recovery.
        """
        for topic_id, index in partitions:
            host = self.by_id.get((topic_id, index))
            if host is not None and not host.is_failed:
                yield host.partition, host.replica.last_epoch, host.replica.log_end

    def apply_retention(self, *, wall_ms: int) -> Iterator[None]:
        """Remove expired segments from the logs, and delete the state of idle producers. Yield after each log.

        The wall clock measures the age of a segment, a monotonic clock how long a producer is idle.
        """
        boottime_ms = self.clock.boottime_ms()
        for host in list(self.by_id.values()):
            if self.offline_reason:
                return
            if host.is_failed or host.is_removed:
                continue
            before = host.log.log_start_offset
            try:
                with host.guard():
                    host.log.apply_retention(now_ms=wall_ms)
                    host.log.producers.expire(
                        now_ms=boottime_ms, idle_ms_max=self._settings.producer_id_expiration_ms
                    )
            except StorageFailed as failure:
                self.storage_failed(failure)
                return
            if host.log.log_start_offset > before:
                host.step(ev.LogStartAdvanced(log_start=host.log.log_start_offset))
            yield

"""Faults of disks that still work (full disks, damaged bytes, logs put aside), and internal errors of
single replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek_metadata_quorum.controller.requests import Reassignment
from odradek_protocol.identity import BrokerId, TopicIdPartition, TopicPartition
from odradek_protocol.metadata.image import MetadataImage, PartitionState
from tests.sim.cluster import BrokerNode, Cluster
from tests.sim.disk_damage import damage_log
from tests.sim.machine import ArrangedBug
from tests.sim.scheduler import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.nemesis import Nemesis

Fault = tuple[int, str, Callable[[], None]]


class DiskFaults:
    """The disk faults from which a Nemesis chooses.

    At most one copy of a partition is damaged at a time, as with all faults of the Nemesis.
    """

    def __init__(self, nemesis: Nemesis) -> None:
        self._nemesis = nemesis
        self._cluster: Cluster = nemesis.cluster
        self._scheduler = nemesis.scheduler
        self._restarted: set[int] = set()  # brokers whose process must be restarted to repair them

    def full(self) -> list[Fault]:
        """Return the faults that fill disks or refuse new files, and the fault that fails a replica with an internal
        error: (weight, name, action).
        """
        return [
            (8, "fill a disk", self._fill),
            (4, "refuse new files", self._refuse_files),
            (6, "meet a bug in a replica", self._bug),
        ]

    def damaged(self) -> list[Fault]:
        """Return the faults that change bytes of logs, and the fault that leaves a log without a replica for a while:
        (weight, name, action).
        """
        return [(8, "damage a log", self._damage), (8, "strand a replica", self._strand)]

    def heal(self) -> None:
        """Give disks space and undo damage. Kill the brokers that only a restart repairs; `Nemesis.heal` then starts
        them.
        """
        for node in self._cluster.brokers.values():
            node.disk.storage.is_full = node.disk.storage.is_short_of_files = False
            if node.disk.damage:
                node.disk.mend()
                self._restarted.add(node.broker_id)
            if node.broker_id in self._restarted and node.is_up:
                node.crash()
        self._restarted.clear()

    # --- full disks -------------------------------------------------------------------------------

    def _fill(self) -> None:
        node = self._node()
        node.disk.storage.is_full = True
        self._scheduler.after(self._scheduler.between(500 * MS, 5 * SECOND), self._empty, node)

    def _empty(self, node: BrokerNode) -> None:
        directory = node.disk.directory
        self._scheduler.counters["full disks"] += (
            directory is not None and directory.full is not None
        )
        node.disk.storage.is_full = False

    def _refuse_files(self) -> None:
        node = self._node()
        node.disk.storage.is_short_of_files = True

        def allow() -> None:
            node.disk.storage.is_short_of_files = False

        self._scheduler.after(self._scheduler.between(500 * MS, 4 * SECOND), allow)

    # --- bugs -------------------------------------------------------------------------------------

    def _bug(self) -> None:
        """Let one replica fail on an internal error. The other replicas of its broker continue, and an operator
        restarts the broker later.
        """
        node = self._node()
        life = node.life
        if life is None or not life.is_serving:
            return
        hosts = [host for host in life.table.by_id.values() if not host.is_failed]
        if hosts:
            self._scheduler.counters["replicas failed by a bug"] += 1
            host = self._scheduler.random.choice(hosts)
            life.process.deliver(life.loop.run_here, host.found_bug, ArrangedBug("arranged"))
            self._restart_later(node)

    def _restart_later(self, node: BrokerNode) -> None:
        """Restart the broker later, if the same process still runs then."""
        life = node.life
        self._restarted.add(node.broker_id)

        def restart() -> None:
            if node.life is life and not self._nemesis.is_stopped:
                node.crash()
                node.start()
            if node.life is not life:
                self._restarted.discard(node.broker_id)

        self._scheduler.after(self._scheduler.between(1, 5) * SECOND, restart)

    # --- damage -----------------------------------------------------------------------------------

    def _damage(self) -> None:
        """Damage the leader's log, and add a new replica to the partition, which must copy the whole log."""
        if self._nemesis.damaged:
            return
        image = self._cluster.log.image
        states = self._whole_partitions(image)
        for state in self._scheduler.random.sample(states, len(states)):
            node = self._cluster.brokers[state.leader]
            partition = TopicIdPartition(state.topic_id, state.partition)
            log = node.disk.logs.get(partition)
            damage = None
            if log is not None and not log.is_truncating and partition not in node.disk.damage:
                damage = damage_log(node.disk.storage, log.log, self._scheduler)
            if damage is not None:
                node.disk.damage[partition] = damage
                node.disk.losses += 1
                self._nemesis.damaged.add(state.leader)
                self._scheduler.counters["logs damaged"] += 1
                others = [b for b in state.replicas if b != state.leader]
                self._move(image, state, (state.leader, *others[1:], *self._spare(state)))
                self._restart_later(node)
                return

    # --- strays -----------------------------------------------------------------------------------

    def _strand(self) -> None:
        """Move a replica away from a broker that is down, and move it back after a snapshot has replaced the metadata
        records.
        """
        image = self._cluster.log.image
        states = [s for s in self._whole_partitions(image) if self._spare(s)]
        if not states or self._nemesis.damaged:
            return
        state = self._scheduler.random.choice(states)
        name = image.topics[state.topic_id].name
        stranded = next(b for b in state.replicas if b != state.leader)
        node = self._cluster.brokers[stranded]
        others = [b for b in state.replicas if b != stranded]
        node.crash()
        self._move(image, state, (*others, *self._spare(state)))

        def snapshot() -> None:
            self._cluster.log.trim()
            node.start()

        def back() -> None:
            now = self._cluster.log.image
            if not self._nemesis.is_stopped and (topic := now.topic(name)) is not None:
                self._move(now, topic.partitions[state.partition], state.replicas)

        self._scheduler.after(2_500 * MS, snapshot)
        self._scheduler.after(4_500 * MS, back)

    def _move(
        self, image: MetadataImage, state: PartitionState, replicas: tuple[BrokerId, ...]
    ) -> None:
        partition = TopicPartition(image.topics[state.topic_id].name, state.partition)
        move = Reassignment(partition=partition, replicas=replicas)
        active = [c for c in self._cluster.controllers.values() if c.core.is_active]
        if active:
            active[0].process.deliver(
                active[0].request,
                "handle_alter_reassignments",
                (move,),
                self._cluster.admin,
                lambda _: None,
            )

    def _spare(self, state: PartitionState) -> tuple[BrokerId, ...]:
        """Return a broker without a replica of the partition, or an empty tuple."""
        return tuple(BrokerId(b) for b in sorted(self._cluster.brokers) if b not in state.replicas)[
            :1
        ]

    def _whole_partitions(self, image: MetadataImage) -> list[PartitionState]:
        """Return the partitions whose three replicas are all in sync, and whose checks are not suspended."""
        suspended = self._cluster.invariants.suspended
        return [
            state
            for state in image.partitions()
            if len(state.isr) == len(state.replicas) == 3
            and state.leader >= 0
            and TopicIdPartition(state.topic_id, state.partition) not in suspended
        ]

    def _node(self) -> BrokerNode:
        brokers = self._cluster.brokers
        return brokers[self._scheduler.random.choice(sorted(brokers))]

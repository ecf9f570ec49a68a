"""A simulated cluster: controllers, brokers with their disks, and the network between them."""

from __future__ import annotations

from collections.abc import Callable

from odradek_metadata_quorum.controller.requests import CreateTopicsRequest, NewTopic
from tests.sim.broker_process import BrokerProcess
from tests.sim.controller_node import ControllerNode
from tests.sim.data_directory import DataDirectory
from tests.sim.invariants import Invariants
from tests.sim.machine import MachineClock
from tests.sim.metadata_log import MetadataLog
from tests.sim.network import Network
from tests.sim.scheduler import MS, SECOND, Process, Scheduler

FIRST_CONTROLLER = 101
FIRST_CLIENT = 201
ADMIN = 200
CREDIT_BYTES = 4_000  # so few bytes that replication streams wait for credit


class BrokerNode:
    """A broker's machine. Its disk and its clock outlive the broker process."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.drift = 1.0
        self.wall_offset_ms = 0
        self.sync_max_us = 6 * MS
        self.is_disk_broken = False
        self.life: BrokerProcess | None = None
        self.clock = MachineClock(self)
        self.disk = DataDirectory(self)

    @property
    def is_up(self) -> bool:
        return self.life is not None and self.life.process.is_alive

    def start(self) -> None:
        if self.is_up:
            return
        self.is_disk_broken = False
        self.life = BrokerProcess(self.cluster, self)

    def restart_later(self, delay_us: int) -> None:
        """Restart the broker, which has just ended, after a delay, unless it was started before that."""
        self.cluster.scheduler.after(delay_us, self._restart, self.life)

    def _restart(self, ended: BrokerProcess | None) -> None:
        if self.life is ended:
            self.start()

    def restart_when_gone(self, delay_us: int) -> None:
        """Restart the broker like `restart_later`. If the old process is stalled and ends later, wait for its end."""
        self.cluster.scheduler.after(delay_us, self._restart_after, self.life)

    def _restart_after(self, life: BrokerProcess | None) -> None:
        if self.life is not life:
            return  # another process runs already
        if self.is_up:
            self.restart_when_gone(SECOND)
        else:
            self.start()

    def crash(self) -> None:
        """Kill the process (kill -9). The page cache survives."""
        if self.life is not None:
            self.life.die()

    def lose_power(self) -> None:
        """Switch the machine off. Bytes that were not synced are lost."""
        self.crash()
        self.disk.lose_power()


class Cluster:
    """The simulated cluster, without clients and faults."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        broker_count: int = 3,
        controller_count: int = 3,
        make_invariants: Callable[[Cluster], Invariants] = Invariants,
        has_groups: bool = False,
        credit_bytes: int = CREDIT_BYTES,
        tick_ms: int = 100,
        acks_all_without_controller: bool = False,
        deletes_records: bool = True,
        compact_interval_ms: int = 15_000,
    ) -> None:
        """Create the cluster.

        `credit_bytes` bounds the bytes in flight to a follower. `acks_all_without_controller` is the brokers' setting
        `acks.all.without.controller.enable`. If `deletes_records` is set, an operator deletes records of partitions at
        random.
        """
        self.deletes_records = deletes_records
        self.compact_interval_ms = compact_interval_ms
        self.acks_all_without_controller = acks_all_without_controller
        self.scheduler = scheduler
        self.has_groups = has_groups
        self.credit_bytes = credit_bytes
        self.tick_ms = tick_ms
        # For each group: the incarnation of the broker process that last responded.
        self.coordinators: dict[str, bytes] = {}
        self.group_kinds: dict[str, str] = {}  # group -> the protocol that the group last had
        # For each broker: the time before which other brokers cannot resolve its name.
        self.undialled_until_us: dict[int, int] = {}
        self.network = Network(scheduler)
        self.log = MetadataLog(scheduler, self.network)
        self.brokers: dict[int, BrokerNode] = {}
        self.controllers: dict[int, ControllerNode] = {}
        self.admin = Process(scheduler, ADMIN)
        self.invariants = make_invariants(self)
        for index in range(controller_count):
            node = ControllerNode(scheduler, self.network, self.log, FIRST_CONTROLLER + index)
            self.controllers[node.controller_id] = node
            self.log.members[node.controller_id] = node
        for broker_id in range(1, broker_count + 1):
            self.brokers[broker_id] = BrokerNode(self, broker_id)
        self.log.start()

    def start(self) -> None:
        for node in self.brokers.values():
            node.start()

    def close(self) -> None:
        """Cancel all running tasks."""
        for node in self.brokers.values():
            if node.life is not None:
                node.life.close()
        for controller in self.controllers.values():
            controller.process.kill()
            controller.loop.close()

    def create_topics(self, *topics: NewTopic) -> None:
        """Send the topics to the active controller until it has created all of them."""
        wanted = tuple(t for t in topics if self.log.image.topic(t.name) is None)
        active = next(
            (c for c in self.controllers.values() if c.core.is_active and c.process.is_running),
            None,
        )
        live = sum(b.is_live for b in self.log.image.brokers.values())
        if wanted and active is not None and live == len(self.brokers):
            request = CreateTopicsRequest(topics=wanted)
            active.request("handle_create_topics", request, self.admin, lambda _: None)
        if wanted:
            self.scheduler.after(100 * MS, self.create_topics, *topics)

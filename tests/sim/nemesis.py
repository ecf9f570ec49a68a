"""Injects faults that the seed determines. Several faults may be active at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from odradek_protocol.identity import BrokerId, TopicIdPartition
from tests.sim.cluster import Cluster
from tests.sim.disk_faults import DiskFaults
from tests.sim.scheduler import MS, SECOND

PAUSE_MIN_US = 700 * MS
PAUSE_MAX_US = 2_600 * MS


class Nemesis:
    """Injects faults until `stop`. `heal` repairs everything.

    Faults stay within the limits that the durability of a topic survives. At most one copy of a `replicated` partition
    may lack bytes at a time; `damaged` has the brokers whose copies may lack bytes. When all machines lose power at
    once, only `fsync` partitions must survive, and the checks of `replicated` partitions are suspended.
    """

    def __init__(
        self,
        cluster: Cluster,
        client_ids: Iterable[int],
        *,
        fills_disks: bool = False,
        damages_disks: bool = False,
    ) -> None:
        self.cluster = cluster
        self.scheduler = cluster.scheduler
        self.network = cluster.network
        self.client_ids = list(client_ids)
        self.faults = 0
        self.is_stopped = False
        self.damaged: set[int] = set()
        self._cuts = 0
        self._faults: list[tuple[int, str, Callable[[], None]]] = [
            (6, "kill a broker", self._kill_broker),
            (3, "kill the leader of many", self._kill_leader),
            (2, "kill a controller", self._kill_controller),
            (1, "kill all brokers", self._kill_all),
            (4, "cut the power of a broker", self._power_one),
            (1, "cut all power", self._power_all),
            (4, "stop a broker", self._stop_broker),
            (2, "stop a controller", self._stop_controller),
            (10, "cut links", self._cut_links),
            (3, "lose messages", self._lossy),
            (3, "delay messages", self._slow_links),
            (2, "reset connections", self._resets),
            (2, "slow a disk", self._slow_disk),
            (2, "break a disk", self._break_disk),
            (2, "shut a broker down", self._shut_down),
            (2, "move the controller", self._move_controller),
            (2, "write a metadata snapshot", cluster.log.trim),
            (2, "jump a wall clock", self._jump_clock),
            (4, "kill a broker within its disk work", self._kill_within),
            (2, "kill a broker, then cut its power", self._kill_then_power),
        ]
        self._disk_faults = DiskFaults(self)
        if fills_disks:
            self._faults += self._disk_faults.full()
        if damages_disks:
            self._faults += self._disk_faults.damaged()
        self.scheduler.after(self._pause(), self._strike)

    def stop(self) -> None:
        self.is_stopped = True

    def heal(self) -> None:
        """Repair the network and the disks, and start all machines again."""
        self.stop()
        for node in self.cluster.brokers.values():
            node.disk.spare()
        self._disk_faults.heal()
        self.network.set_cut(())
        self.network.extra_delay_us.clear()
        self.network.loss = self.network.reset = self.network.doubling = 0.0
        self.network.delay_max_us = 3 * MS
        for node in self.cluster.brokers.values():
            node.sync_max_us = 6 * MS
            if node.is_disk_broken and node.is_up:
                node.crash()
            node.start()
        for controller in self.cluster.controllers.values():
            if not controller.process.is_alive:
                controller.start()

    # --- the loop ---------------------------------------------------------------------------------

    def _pause(self) -> int:
        return self.scheduler.between(PAUSE_MIN_US, PAUSE_MAX_US)

    def _strike(self) -> None:
        if self.is_stopped:
            return
        self._undamage()
        weights = [weight for weight, _, _ in self._faults]
        _, name, fault = self.scheduler.random.choices(self._faults, weights)[0]
        self.faults += 1
        self.scheduler.counters[f"fault: {name}"] += 1
        self.scheduler.note(f"fault: {name}")
        fault()
        self.scheduler.after(self._pause(), self._strike)

    def _undamage(self) -> None:
        """Treat a broker's copies as complete again when it has reported its losses to the controller, and is in the
        ISR of all its partitions.
        """
        image = self.cluster.log.image
        for broker_id in sorted(self.damaged):
            node = self.cluster.brokers[broker_id]
            broker = image.brokers.get(BrokerId(broker_id))
            is_told = (
                node.is_up
                and node.life is not None
                and broker is not None
                and broker.broker_epoch == node.life.broker_epoch
                and not node.disk.lost_power
                and not node.disk.has_failed
                and not node.disk.damage
            )
            states = [s for s in image.partitions() if broker_id in s.replicas]
            if is_told and all(broker_id in s.isr or len(s.replicas) == 1 for s in states):
                self.damaged.discard(broker_id)

    def _broker(self) -> int:
        return self.scheduler.random.choice(sorted(self.cluster.brokers))

    def _restart_later(self, broker_id: int, longest_us: int = 4 * SECOND) -> None:
        delay = self.scheduler.between(50 * MS, longest_us)
        self.cluster.brokers[broker_id].restart_later(delay)

    # --- processes and machines -------------------------------------------------------------------

    def _kill_broker(self) -> None:
        broker_id = self._broker()
        self.cluster.brokers[broker_id].crash()
        self._restart_later(broker_id)

    def _kill_leader(self) -> None:
        leaders = [s.leader for s in self.cluster.log.image.partitions() if s.leader >= 0]
        if leaders:
            broker_id = max(sorted(set(leaders)), key=leaders.count)
            self.cluster.brokers[broker_id].crash()
            self._restart_later(broker_id)

    def _kill_controller(self) -> None:
        controller_id = self.scheduler.random.choice(sorted(self.cluster.controllers))
        if self.scheduler.chance(0.5) and self.cluster.log.leader_id is not None:
            controller_id = self.cluster.log.leader_id
        node = self.cluster.controllers[controller_id]
        if node.process.is_alive:
            node.crash()
            self.scheduler.after(self.scheduler.between(100 * MS, 3 * SECOND), node.start)

    def _kill_all(self) -> None:
        for broker_id, node in self.cluster.brokers.items():
            node.crash()
            self._restart_later(broker_id, 2 * SECOND)
        if self.scheduler.chance(0.3):
            for controller in self.cluster.controllers.values():
                if controller.process.is_alive:
                    controller.crash()
                    delay = self.scheduler.between(100 * MS, 2 * SECOND)
                    self.scheduler.after(delay, controller.start)

    def _power_one(self) -> None:
        broker_id = self._broker()
        if self.damaged - {broker_id}:
            self.cluster.brokers[broker_id].crash()
        else:
            self.damaged.add(broker_id)
            self.cluster.brokers[broker_id].lose_power()
        self._restart_later(broker_id)

    def _kill_within(self) -> None:
        """Kill a broker in one of its next disk operations, which may be part of its next start."""
        broker_id = self._broker()
        disk = self.cluster.brokers[broker_id].disk
        disk.doom(self.scheduler.between(1, 80), lambda: self._restart_later(broker_id))

    def _kill_then_power(self) -> None:
        """Kill a process that has unsynced writes, let the next process read them, and then cut the power."""
        broker_id = self._broker()
        node = self.cluster.brokers[broker_id]

        def power() -> None:
            if not self.is_stopped and not self.damaged - {broker_id}:
                self.damaged.add(broker_id)
                node.lose_power()
            self._restart_later(broker_id)

        def restart() -> None:
            node.start()
            self.scheduler.after(self.scheduler.between(0, 900 * MS), power)

        node.disk.doom(self.scheduler.between(1, 40), restart)

    def _power_all(self) -> None:
        self._suspend_replicated()
        for broker_id, node in self.cluster.brokers.items():
            self.damaged.add(broker_id)
            node.lose_power()
            self._restart_later(broker_id, 2 * SECOND)

    def _suspend_replicated(self) -> None:
        image = self.cluster.log.image
        for topic in image.topics.values():
            if image.topic_config(topic.name, "durability") != "fsync":
                for state in topic.partitions:
                    partition = TopicIdPartition(topic.topic_id, state.partition)
                    self.cluster.invariants.suspend(partition)

    def _stop_broker(self) -> None:
        node = self.cluster.brokers[self._broker()]
        duration = self.scheduler.between(300 * MS, 7 * SECOND)
        if node.life is not None and node.is_up:
            node.life.process.stall(duration)
            self.network.process_stalled(node.life.process, duration)

    def _stop_controller(self) -> None:
        controller_id = self.scheduler.random.choice(sorted(self.cluster.controllers))
        process = self.cluster.controllers[controller_id].process
        duration = self.scheduler.between(200 * MS, 5 * SECOND)
        process.stall(duration)
        self.network.process_stalled(process, duration)

    def _shut_down(self) -> None:
        broker_id = self._broker()
        node = self.cluster.brokers[broker_id]
        if node.life is not None and node.is_up and node.life.broker_epoch >= 0:
            node.life.begin_shutdown()
            node.restart_when_gone(self.scheduler.between(5_200 * MS, 7 * SECOND))

    def _move_controller(self) -> None:
        self.cluster.log.transfer(self.scheduler.random.choice(sorted(self.cluster.controllers)))

    # --- disks and clocks -------------------------------------------------------------------------

    def _slow_disk(self) -> None:
        node = self.cluster.brokers[self._broker()]
        node.sync_max_us = self.scheduler.between(50, 600) * MS
        self.scheduler.after(self.scheduler.between(1, 6) * SECOND, self._mend_disk, node)

    def _mend_disk(self, node: object) -> None:
        node.sync_max_us = 6 * MS  # type: ignore[attr-defined]

    def _break_disk(self) -> None:
        broker_id = self._broker()
        if self.damaged - {broker_id}:
            return
        self.damaged.add(broker_id)
        node = self.cluster.brokers[broker_id]
        node.is_disk_broken = True
        node.disk.losses += 1
        self.scheduler.after(self.scheduler.between(1, 4) * SECOND, self._replace_disk, broker_id)

    def _replace_disk(self, broker_id: int) -> None:
        node = self.cluster.brokers[broker_id]
        if node.is_disk_broken:
            node.crash()
            node.start()

    def _jump_clock(self) -> None:
        node = self.cluster.brokers[self._broker()]
        # The jump is less than message.timestamp.after.max.ms. Otherwise all records of producers would be refused.
        node.wall_offset_ms = self.scheduler.random.choice((-1_800_000, 1_800_000))

    # --- network ----------------------------------------------------------------------------------

    def _cut_links(self) -> None:
        """Cut links in one of many shapes: around one node, in one direction, between halves of the nodes, so that one
        node is a bridge, between brokers and controllers, or between a broker and its clients.
        """
        brokers = sorted(self.cluster.brokers)
        controllers = sorted(self.cluster.controllers)
        servers = brokers + controllers
        one = self.scheduler.random.choice(brokers)
        some_controller = self.scheduler.random.choice(controllers)
        half = [n for n in servers if self.scheduler.chance(0.5)]
        rest = [n for n in servers if n not in half]
        shapes: list[set[tuple[int, int]]] = [
            _both([one], [n for n in servers if n != one]),
            _both([one], [n for n in servers if n != one] + self.client_ids),
            _both([one], controllers),
            _both([one], [b for b in brokers if b != one]),
            _one_way([one], [n for n in servers if n != one]),
            _one_way([n for n in servers if n != one], [one]),
            _one_way([one], [b for b in brokers if b != one]),
            _one_way(controllers, [one]),
            _both(half, rest),
            _one_way(half, rest),
            _both([some_controller], [n for n in servers if n != some_controller]),
            _both([some_controller], controllers),
            _both(brokers[:1], brokers[2:]),  # the broker between them is a bridge
            _both([controllers[0]], [controllers[2]]),
            _both(brokers, controllers),
            _both([one], self.client_ids),
        ]
        self._cuts += 1
        self.network.set_cut(self.scheduler.random.choice(shapes))
        duration = self.scheduler.between(400 * MS, 6 * SECOND)
        self.scheduler.after(duration, self._join_links, self._cuts)

    def _join_links(self, number: int) -> None:
        if number == self._cuts:
            self.network.set_cut(())

    def _lossy(self) -> None:
        self.network.loss = self.scheduler.random.random() * 0.3
        self.network.doubling = self.scheduler.random.random() * 0.3
        self.scheduler.after(self.scheduler.between(1, 5) * SECOND, self._calm)

    def _slow_links(self) -> None:
        if self.scheduler.chance(0.5):
            self.network.delay_max_us = self.scheduler.between(20, 800) * MS
        else:
            one, other = self._broker(), self._broker()
            for pair in ((one, other), (other, one)):
                self.network.extra_delay_us[pair] = self.scheduler.between(500, 5_000) * MS
        self.scheduler.after(self.scheduler.between(1, 5) * SECOND, self._calm)

    def _resets(self) -> None:
        self.network.reset = self.scheduler.random.random() * 0.03
        self.scheduler.after(self.scheduler.between(1, 4) * SECOND, self._calm)

    def _calm(self) -> None:
        if self.is_stopped:
            return  # `heal` has already restored the network
        self.network.loss = self.network.doubling = self.network.reset = 0.0
        self.network.delay_max_us = 3 * MS
        self.network.extra_delay_us.clear()


def _one_way(sources: Iterable[int], targets: Iterable[int]) -> set[tuple[int, int]]:
    targets = list(targets)
    return {(a, b) for a in sources for b in targets if a != b}


def _both(some: Iterable[int], others: Iterable[int]) -> set[tuple[int, int]]:
    some, others = list(some), list(others)
    return _one_way(some, others) | _one_way(others, some)

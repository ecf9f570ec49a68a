"""A cluster of voters in one thread: the production code on a simulated clock, disk and network.

Everything random comes from one seed, and everything that happens is an event in one heap, so a seed always gives the
same run; the hash of the trace proves that. Links are FIFO, as TCP is, with delays. They can be cut (messages are lost)
or held (messages wait, then arrive all at once). Disk writes take time, and complete in order. A kill or a power cut
may come in the middle of a write; only a power cut loses unsynced bytes. The oracle (`oracle.py`) checks what was
committed.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable

from odradek_metadata_quorum.network.wire import Message, decode
from odradek_metadata_quorum.raft.shell import RaftLimits, RaftTimers
from odradek_metadata_quorum.storage.data_directory import (
    StorageIdentity,
    format_disk,
    save_identity,
)
from tests.sim.quorum.oracle import Oracle
from tests.sim.quorum.simulated_disk import PowerCut, SimulatedDisk
from tests.sim.quorum.simulated_node import CLUSTER_ID, SimulatedNode

TIMERS = RaftTimers(
    election_min_s=0.5,
    election_max_s=1.0,
    lost_leader_min_s=0.1,
    lost_leader_max_s=0.3,
    heartbeat_s=0.1,
    fallback_s=1.0,
    tick_s=0.02,
)
LIMITS = RaftLimits(
    snapshot_interval_entries=30,
    snapshot_interval_bytes=64 << 10,
    snapshot_entries_min=10,
    snapshot_entries_bytes_max=64 << 10,
    snapshot_chunk_bytes=1024,
    snapshot_bytes_max=1 << 20,
    window_bytes_max=64 << 10,
)


class World:
    """The cluster, its clock and its faults."""

    def __init__(
        self,
        seed: int,
        *,
        voters: int = 3,
        first_id: int = 1,
        limits: RaftLimits = LIMITS,
        delay_s: tuple[float, float] = (0.0005, 0.003),
        disk_delay_s: tuple[float, float] = (0.0002, 0.003),
        segment_bytes_max: int = 8192,
        joined: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.voters = list(range(first_id, first_id + voters))
        self.timers = TIMERS
        self.limits = limits
        self.segment_bytes_max = segment_bytes_max
        self.oracle = Oracle()
        self.nodes: dict[int, SimulatedNode] = {}
        self.disks: dict[int, SimulatedDisk] = {}
        self.deaths: list[tuple[int, str]] = []
        self.counts: dict[str, int] = {"active": 0, "snapshot installed": 0, "delivered": 0}
        # For each read: whether the leadership was confirmed, and the seconds until then.
        self.reads: list[tuple[bool, float]] = []
        self.cut: set[tuple[int, int]] = set()
        self.held: dict[tuple[int, int], list[tuple[int, int, bytes]]] = {}
        self.drop: Callable[[int, int, Message], bool] = lambda source, target, message: False
        self.sent: list[tuple[int, int, Message]] | None = None
        self.on_send: Callable[[SimulatedNode, int, Message], None] | None = None
        self.trace = hashlib.sha256()
        self._delay_s = delay_s
        self._disk_delay_s = disk_delay_s
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._lives = 0
        self._last_delivery: dict[tuple[int, int], float] = {}
        for node_id in self.voters:
            self.disks[node_id] = SimulatedDisk(self.random)
            format_disk(self.disks[node_id], self.identity(node_id), "sim")
            if joined:
                save_identity(self.disks[node_id], self.identity(node_id, joined=True))

    def identity(self, node_id: int, *, joined: bool = False) -> StorageIdentity:
        return StorageIdentity(
            cluster_id=CLUSTER_ID, node_id=node_id, voters=tuple(self.voters), joined=joined
        )

    # Time and events.

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        self.at(self.now + delay_s, call)

    def at(self, due_s: float, call: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (due_s, self._sequence, call))

    def run(self, duration_s: float) -> None:
        """Let simulated time pass."""
        self.run_until(lambda: False, duration_s)

    def run_until(self, condition: Callable[[], bool], bound_s: float) -> bool:
        """Process events until the condition is true; it is checked after each event. Return False if `bound_s` passes
        first.
        """
        end = self.now + bound_s
        while not condition():
            if not self._heap or self._heap[0][0] > end:
                self.now = end
                return condition()
            due, _, call = heapq.heappop(self._heap)
            self.now = max(self.now, due)
            call()
        return True

    def disk_delay_s(self) -> float:
        return self.random.uniform(*self._disk_delay_s)

    def set_disk_delay_s(self, least: float, most: float) -> None:
        """Set the range of the duration of a disk job from now on."""
        self._disk_delay_s = (least, most)

    def set_turn_s(self, duration_s: float) -> None:
        """Set the duration of an iteration of each running voter's event loop from now on."""
        for node in self.nodes.values():
            node.turn_s = duration_s

    def next_life(self) -> int:
        self._lives += 1
        return self._lives

    def note(self, *what: object) -> None:
        """Add one line to the trace."""
        self.trace.update(repr((round(self.now, 6), *what)).encode())

    # Nodes.

    def start(self, node_id: int) -> SimulatedNode:
        """Start a voter from the files on its disk."""
        node = self.nodes[node_id] = SimulatedNode(self, node_id, self.disks[node_id])
        for peer_id, peer in self.nodes.items():
            if peer_id != node_id and peer.dead is None:
                node.raft.peer_connected(peer_id)
                peer.raft.peer_connected(node_id)
        return node

    def start_all(self) -> None:
        for node_id in self.voters:
            if node_id not in self.nodes:
                self.start(node_id)

    def kill(self, node_id: int) -> None:
        """Kill a voter, perhaps in the middle of a disk job. The page cache survives, synced or not."""
        self._interrupt(node_id)

    def power_cut(self, node_id: int) -> None:
        """Cut a voter's power, perhaps in the middle of a disk job. Unsynced bytes may be lost."""
        self._interrupt(node_id)
        self.disks[node_id].crash()

    def _interrupt(self, node_id: int) -> None:
        """End a process of a voter. A waiting disk job is not begun, stops at some call, or completes without being
        reported.
        """
        node = self._end(node_id)
        if node is None or node.dead is not None:
            return
        for queue in (node.queue, node.snapshot_queue):
            if queue.jobs and self.random.random() < 0.7:
                node.disk.interrupt_after = self.random.choice((0, 1, 1, 2, 3, 3, 4, 5, 6, 7))
                try:
                    queue.jobs[0][0]()
                except PowerCut:
                    self.counts["interrupted job"] = self.counts.get("interrupted job", 0) + 1
                except OSError:
                    pass  # the disk call failed before the interruption
                node.disk.interrupt_after = None

    def wipe(self, node_id: int) -> None:
        """Replace a voter's disk by an empty, formatted one."""
        self._end(node_id)
        self.disks[node_id] = SimulatedDisk(self.random)
        format_disk(self.disks[node_id], self.identity(node_id), "sim")

    def _end(self, node_id: int) -> SimulatedNode | None:
        node = self.nodes.pop(node_id, None)
        if node is not None:
            self.note(node_id, "ends")
            self.lost_connections(node_id)
        return node

    def lost_connections(self, node_id: int) -> None:
        for peer_id, peer in self.nodes.items():
            if peer_id != node_id and peer.dead is None:
                peer.raft.peer_disconnected(node_id)

    def leader(self) -> SimulatedNode | None:
        """Return the active leader of the highest term; None if there is none."""
        active = [
            node
            for node in self.nodes.values()
            if node.dead is None and node.raft.active_epoch is not None
        ]
        return max(active, key=lambda node: node.raft.term, default=None)

    def elect(self, bound_s: float = 20.0) -> SimulatedNode:
        """Wait for an active leader, and return it."""
        assert self.run_until(lambda: self.leader() is not None, bound_s), self.describe()
        leader = self.leader()
        assert leader is not None
        return leader

    def commit(self, count: int, bound_s: float = 20.0) -> list[int]:
        """Propose this many entries to the leader, wait until they are acknowledged, and return their offsets."""
        offsets = []
        for number in range(count):
            node = self.elect(bound_s)
            offset = node.propose(b"entry-%d-%d" % (len(self.oracle.acknowledged), number))
            assert offset is not None
            offsets.append(offset)
        done = self.run_until(
            lambda: all(offset in self.oracle.acknowledged for offset in offsets), bound_s
        )
        assert done, self.describe()
        return offsets

    def converge(self, bound_s: float = 30.0) -> None:
        """Heal the network, and wait until every running node has applied the same entries."""
        self.heal()

        def same() -> bool:
            leader = self.leader()
            return leader is not None and all(
                node.raft.applied == leader.raft.log.last_index for node in self.nodes.values()
            )

        assert self.run_until(same, bound_s), self.describe()
        last = max(self.oracle.acknowledged, default=0)
        for node in self.nodes.values():
            assert node.raft.applied >= last, (node.node_id, node.raft.applied, last)
        assert len({node.machine.digest for node in self.nodes.values()}) == 1

    def describe(self) -> str:
        """Return the state of every node as a text, for a failed assertion."""
        lines = [f"deaths {self.deaths}"]
        for node_id, node in sorted(self.nodes.items()):
            raft = node.raft
            lines.append(
                f"node {node_id}: dead={node.dead} leader={raft.is_leader} term={raft.term}"
                f" commit={raft.commit_index} applied={raft.applied}"
                f" log={raft.log.first_index}..{raft.log.last_index} may_vote={raft.may_vote}"
            )
        return "\n".join(lines)

    # Network.

    def send(self, source: SimulatedNode, target_id: int, frame: bytes) -> None:
        link = (source.node_id, target_id)
        if self.sent is not None:
            self.sent.append((*link, decode(frame[4:])))
        if self.on_send is not None:
            self.on_send(source, target_id, decode(frame[4:]))
        target = self.nodes.get(target_id)
        if link in self.cut or target is None:
            return
        item = (source.life, target.life, frame)
        if link in self.held:
            self.held[link].append(item)
        else:
            self._deliver_later(link, item)

    def _deliver_later(self, link: tuple[int, int], item: tuple[int, int, bytes]) -> None:
        due = max(
            self.now + self.random.uniform(*self._delay_s),
            self._last_delivery.get(link, 0.0) + 1e-6,
        )
        self._last_delivery[link] = due
        self.after(due - self.now, lambda: self._deliver(link, item))

    def _deliver(self, link: tuple[int, int], item: tuple[int, int, bytes]) -> None:
        source_life, target_life, frame = item
        source, target = self.nodes.get(link[0]), self.nodes.get(link[1])
        if link in self.cut or target is None or target.life != target_life:
            return
        if source is not None and source.life != source_life:
            return  # the sender was restarted: its new connection has ended the old one
        if target.dead is not None:
            return
        busy_until = target.busy_until()
        if busy_until > self.now:
            self.at(busy_until, lambda: self._deliver(link, item))
            return
        message = decode(frame[4:])
        if self.drop(*link, message):
            return
        self.counts["delivered"] += 1
        self.note(*link, message["type"], message.get("term"))
        target.entering(lambda: target.receive(link[0], message))

    def queued_bytes(self, source_id: int, target_id: int) -> int:
        return sum(len(item[2]) for item in self.held.get((source_id, target_id), ()))

    def isolate(self, node_id: int) -> None:
        """Cut all links between a node and the others, without breaking a connection."""
        for peer_id in self.voters:
            if peer_id != node_id:
                self.cut |= {(node_id, peer_id), (peer_id, node_id)}

    def hold(self, source_id: int, target_id: int) -> None:
        """Let the messages of one direction wait until `release`."""
        self.held.setdefault((source_id, target_id), [])

    def release(self, source_id: int, target_id: int) -> None:
        """Deliver the messages that `hold` kept, all at once."""
        for item in self.held.pop((source_id, target_id), []):
            self._deliver_later((source_id, target_id), item)

    def heal(self) -> None:
        """Let every link work again."""
        self.cut.clear()
        for link in sorted(self.held):
            self.release(*link)

"""Runs voters under random faults that a seed determines. The oracle checks what the voters commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim.quorum.oracle import check_dirty_disk_vouches, check_opened
from tests.sim.quorum.world import World


@dataclass
class ChaosResult:
    """The counts of one seed's events, and the hash of its trace."""

    seed: int
    trace: str
    acknowledged: int
    terms: int
    counts: dict[str, int] = field(default_factory=dict)


class Chaos:
    """One run under faults: clients propose entries all the time, and a fault happens about every second."""

    def __init__(self, seed: int, *, duration_s: float = 30.0, voters: int = 3) -> None:
        self.seed = seed
        self.world = World(seed, voters=voters)
        self.random = self.world.random
        self.duration_s = duration_s
        self.counts = self.world.counts
        self._proposed = 0
        self._broken = 0
        self._faults_on = True

    def run(self) -> ChaosResult:
        world = self.world
        world.on_send = check_dirty_disk_vouches
        world.start_all()
        self._propose()
        world.after(2.0, self._fault)
        world.run(self.duration_s)
        self._faults_on = False
        self._all_fast()
        world.heal()
        self._start_missing(certainly=True)
        assert not self._deaths(), (self.seed, world.deaths)
        self._commit()
        world.converge(bound_s=40.0)
        assert not self._deaths(), (self.seed, world.deaths)
        assert len(world.deaths) == self._broken, (self.seed, world.deaths, self._broken)
        self.counts["read"] = sum(was_answered for was_answered, _ in world.reads)
        self.counts["refused read"] = len(world.reads) - self.counts["read"]
        return ChaosResult(
            self.seed,
            world.trace.hexdigest(),
            len(world.oracle.acknowledged),
            len(world.oracle.leaders),
            dict(self.counts),
        )

    def _commit(self) -> None:
        """Commit entries on the healed cluster. Try again if a stale leader accepted the first ones and then stepped
        down.
        """
        world = self.world
        epoch = world.elect(40.0).raft.active_epoch
        try:
            world.commit(5, bound_s=40.0)
        except AssertionError:
            if world.elect(40.0).raft.active_epoch == epoch:
                raise
            world.commit(5, bound_s=40.0)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _propose(self) -> None:
        world = self.world
        world.after(self.random.uniform(0.005, 0.03), self._propose)
        for node_id in list(world.nodes):
            node = world.nodes[node_id]
            if node.dead is None and node.raft.active_epoch is not None:
                if self._proposed % 3 == 0:
                    node.read()
                for _ in range(self.random.choice((1, 1, 1, 4))):
                    self._proposed += 1
                    size = self.random.choice((0, 0, 40, 900))
                    node.propose(b"p%d-" % self._proposed + b"x" * size)

    def _fault(self) -> None:
        if not self._faults_on:
            return
        world, rng = self.world, self.random
        world.after(rng.uniform(0.2, 1.5), self._fault)
        up = sorted(world.nodes)
        kind = rng.random()
        if kind < 0.18 and up:
            self._power_cut(rng.choice(up))
        elif kind < 0.25:
            self._count("all crash")
            for node_id in up:
                self._power_cut(node_id)
        elif kind < 0.42 and up:
            self._stop_in_job(rng.choice(up))
        elif kind < 0.53:
            self._count("cut")
            first, second = rng.sample(world.voters, 2)
            world.cut |= {(first, second), (second, first)}
        elif kind < 0.60:
            self._count("one-way cut")
            first, second = rng.sample(world.voters, 2)
            world.cut.add((first, second))
        elif kind < 0.69:
            self._count("isolated")
            world.isolate(rng.choice(world.voters))
        elif kind < 0.80:
            self._count("hold")
            world.hold(*rng.sample(world.voters, 2))
        elif kind < 0.84:
            self._wipe()
        elif kind < 0.87 and up:
            self._break_disk(rng.choice(up))
        elif kind < 0.91 and up:
            self._count("frozen")
            world.nodes[rng.choice(up)].frozen_until = world.now + rng.uniform(0.1, 4.0)
        elif kind < 0.94:
            self._count("slow disks")
            world.set_disk_delay_s(0.02, 0.6)
        elif kind < 0.97 and up:
            self._count("slow loop")
            world.nodes[rng.choice(up)].turn_s = rng.uniform(0.05, 0.4)
        else:
            self._all_fast()
        if rng.random() < 0.5:
            world.heal()
        self._start_missing(certainly=False)

    def _all_fast(self) -> None:
        self.world.set_disk_delay_s(0.0002, 0.003)
        self.world.set_turn_s(0.0)

    def _power_cut(self, node_id: int) -> None:
        self._count("power cut")
        self.world.power_cut(node_id)

    def _stop_in_job(self, node_id: int) -> None:
        """Interrupt the next write of a voter's log or snapshot, mostly by a kill, otherwise by a power cut."""
        world, rng = self.world, self.random
        node = world.nodes[node_id]
        queue = node.snapshot_queue if rng.random() < 0.3 else node.queue
        if rng.random() < 0.8:
            self._count("kill")
            queue.at_next_job = lambda: world.kill(node_id)
        else:
            queue.at_next_job = lambda: self._power_cut(node_id)

    def _break_disk(self, node_id: int) -> None:
        """Let one of the voter's next disk calls fail.

        The process must then end itself, and nothing else may end it.
        """
        skip = self.random.randint(0, 5)
        disk = self.world.disks[node_id]

        def fail(call: str, name: str) -> bool:
            nonlocal skip
            skip -= 1
            if skip >= 0:
                return False
            disk.fail = None
            self._count("failed disk call")
            self._broken += node_id in self.world.nodes  # the voter may have been stopped before
            return True

        disk.fail = fail

    def _deaths(self) -> list[tuple[int, str]]:
        """Return the deaths of processes that no injected failure explains."""
        return [death for death in self.world.deaths if "injected" not in death[1]]

    def _wipe(self) -> None:
        """Wipe a voter, unless another voter is down or has not joined yet: only one may be wiped at a time."""
        world = self.world
        node_id = self.random.choice(world.voters)
        others = [world.nodes.get(peer_id) for peer_id in world.voters if peer_id != node_id]
        if all(peer is not None and peer.raft.may_vote for peer in others):
            self._count("wiped")
            world.wipe(node_id)

    def _start_missing(self, *, certainly: bool) -> None:
        world = self.world
        for node_id in world.voters:
            node = world.nodes.get(node_id)
            if certainly:
                world.disks[node_id].fail = None
                if node is not None:
                    node.frozen_until = 0.0
                    node.queue.at_next_job = node.snapshot_queue.at_next_job = None
            if node is not None and node.dead is not None:
                self._end_broken(node_id)
            if node_id not in world.nodes and (certainly or self.random.random() < 0.6):
                self._restart(node_id)

    def _end_broken(self, node_id: int) -> None:
        """End a voter whose disk call failed, by a power cut or by a kill. After a kill the next process may read bytes
        that are not on the disk.
        """
        if self.random.random() < 0.5:
            self.world.power_cut(node_id)
        else:
            self._count("restart on lost pages")
            self.world.kill(node_id)

    def _restart(self, node_id: int) -> None:
        disk = self.world.disks[node_id]
        truncated = disk.calls["truncate"]
        try:
            check_opened(self.world.start(node_id))
        except OSError:  # the disk failed while it was opened; the process is started again later
            self._count("failed start")
        else:
            self._count("restart")
        if disk.calls["truncate"] > truncated:
            self._count("torn tail")

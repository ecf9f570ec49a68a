"""With slow disks and slow event loops the quorum still has a leader, and a silent leader is still replaced.

All times are simulated seconds, with the production code's timers (elections after 0.5 to 1.0 s).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from odradek_metadata_quorum.network.outbox import Outbox
from odradek_metadata_quorum.raft.elections import LoopTurns, PreVote
from odradek_metadata_quorum.raft.replication import Replication
from tests.sim.quorum.simulated_node import SimulatedNode
from tests.sim.quorum.world import World

SEEDS = range(6)
FIRST_LEADER_S_MAX = 10.0
LED_SHARE_MIN = 0.9
LED_S = 20.0
# The time for election timers, one forgiven stall, and a few event loop iterations of every voter.
REPLACED_S_MAX = 4.0
STEPPED_DOWN_S_MAX = 2.5
SLOW = {  # seconds for a disk job, and for an iteration of the event loop
    "disks": (0.5, 0.0),
    "loops": (0.0, 0.3),
    "disks and loops": (0.5, 0.3),
}


def make_slow(world: World, kind: str) -> None:
    disk_s, turn_s = SLOW[kind]
    if disk_s:
        world.set_disk_delay_s(disk_s * 0.95, disk_s * 1.05)
    world.set_turn_s(turn_s)


def slow_cluster(seed: int, kind: str) -> World:
    world = World(seed, joined=True)
    world.start_all()
    make_slow(world, kind)
    return world


def led_share(world: World, duration_s: float) -> float:
    """Send proposals to the leader all the time. Return the share of the time with an active leader."""
    samples: list[bool] = []

    def sample() -> None:
        leader = world.leader()
        samples.append(leader is not None)
        if leader is not None:
            leader.propose(b"entry-%d" % len(samples))
        world.after(0.02, sample)

    sample()
    world.run(duration_s)
    return sum(samples) / len(samples)


def check_first_leader(kind: str) -> None:
    for seed in SEEDS:
        world = slow_cluster(seed, kind)
        world.elect(FIRST_LEADER_S_MAX)
        acknowledged = len(world.oracle.acknowledged)
        assert led_share(world, LED_S) >= LED_SHARE_MIN, (seed, world.describe())
        assert len(world.oracle.acknowledged) > acknowledged + 100, seed
        assert world.deaths == []


def check_leader_of_before(kind: str) -> None:
    for seed in SEEDS:
        world = World(seed, joined=True)
        world.start_all()
        leader = world.elect()
        world.commit(3)
        make_slow(world, kind)
        assert led_share(world, LED_S) >= LED_SHARE_MIN, (seed, world.describe())
        assert leader.raft.is_leader, (seed, world.describe())


def check_next_leader(kind: str) -> None:
    for seed in SEEDS:
        world = slow_cluster(seed, kind)
        world.kill(world.elect(FIRST_LEADER_S_MAX).node_id)
        world.elect(FIRST_LEADER_S_MAX)


@pytest.mark.parametrize("kind", SLOW)
def test_a_slow_cluster_elects_its_first_leader_and_keeps_it(kind: str) -> None:
    check_first_leader(kind)


@pytest.mark.parametrize("kind", SLOW)
def test_a_leader_stays_when_everything_gets_slow(kind: str) -> None:
    check_leader_of_before(kind)


@pytest.mark.parametrize("kind", SLOW)
def test_a_slow_cluster_replaces_a_leader_that_dies(kind: str) -> None:
    check_next_leader(kind)


def led_cluster(seed: int) -> tuple[World, SimulatedNode]:
    world = World(seed, joined=True)
    world.start_all()
    leader = world.elect()
    world.commit(3)
    world.run(0.3)
    return world, leader


def check_silent_leader_is_replaced() -> None:
    for turn_s in (0.0, 0.15, 0.3):
        for seed in SEEDS:
            world, old = led_cluster(seed)
            for node in world.nodes.values():
                node.turn_s = 0.0 if node is old else turn_s
            world.isolate(old.node_id)

            def is_replaced(world: World = world, old: SimulatedNode = old) -> bool:
                return any(node.raft.is_leader for node in world.nodes.values() if node is not old)

            assert world.run_until(is_replaced, REPLACED_S_MAX), (turn_s, seed, world.describe())


def check_lonely_leader_steps_down() -> None:
    for turn_s in (0.0, 0.15, 0.3):
        for seed in SEEDS:
            world, old = led_cluster(seed)
            old.turn_s = turn_s
            world.isolate(old.node_id)
            stepped_down = world.run_until(partial(bool, old.resignations), STEPPED_DOWN_S_MAX)
            assert stepped_down, (turn_s, seed, world.describe())


def test_slow_followers_replace_a_silent_leader() -> None:
    check_silent_leader_is_replaced()


def test_a_slow_leader_without_followers_steps_down() -> None:
    check_lonely_leader_steps_down()


def every_message_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "_needed", lambda self, message: self._barrier.noted)


def no_heartbeats_beside_entries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "_beat", lambda self: None)


def every_long_turn_is_forgiven(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LoopTurns, "_may_forgive", lambda self, began_s: True)


def no_candidate_stands_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PreVote, "yields_to", lambda self, other, own: False)


Patch = Callable[[pytest.MonkeyPatch], None]
PLANTED: list[tuple[Patch, Callable[[], None]]] = [
    (every_message_waits, lambda: check_leader_of_before("disks")),
    (no_heartbeats_beside_entries, lambda: check_leader_of_before("disks")),
    (every_long_turn_is_forgiven, check_silent_leader_is_replaced),
    (every_long_turn_is_forgiven, check_lonely_leader_steps_down),
    (no_candidate_stands_back, lambda: check_next_leader("disks and loops")),
]


@pytest.mark.parametrize(
    ("bug", "check"), PLANTED, ids=[f"{n}-{bug.__name__}" for n, (bug, _) in enumerate(PLANTED)]
)
def test_the_checks_catch_the_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Patch, check: Callable[[], None]
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        check()

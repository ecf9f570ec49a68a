"""While a follower's disk hangs, the other voters continue, and the leader keeps at most a few
windows of entries for it.
"""

from __future__ import annotations

from dataclasses import replace

from odradek_metadata_quorum.network import wire
from tests.sim.quorum.simulated_node import SimulatedNode
from tests.sim.quorum.world import LIMITS, TIMERS, World
from tests.unit.quorum.lone_voter import LoneVoter

ENTRY_BYTES = 2048
PATIENCE_S = TIMERS.election_min_s - 0.25  # an election, which would repair it too, comes later


def propose_for_a_while(world: World, turns: int) -> None:
    for _ in range(turns):
        leader = world.elect()
        for _ in range(10):
            leader.propose(b"x" * ENTRY_BYTES)
        world.run(0.05)


def hang(node: SimulatedNode) -> None:
    """Let the next job of the voter's disk never return."""
    node.queue.at_next_job = lambda: None


def recover(node: SimulatedNode) -> None:
    node.queue._schedule()


def cluster_with_a_hung_follower() -> tuple[World, SimulatedNode, SimulatedNode]:
    limits = replace(LIMITS, snapshot_interval_entries=10_000, snapshot_interval_bytes=1 << 30)
    world = World(4, joined=True, limits=limits)
    world.start_all()
    leader = world.elect()
    world.commit(2)
    hung = next(node for node in world.nodes.values() if node is not leader)
    hang(hung)
    propose_for_a_while(world, 100)
    return world, leader, hung


def test_a_follower_whose_disk_hangs_is_sent_no_more_than_a_window() -> None:
    world, leader, hung = cluster_with_a_hung_follower()
    assert len(world.oracle.acknowledged) > 900
    assert world.leader() is leader
    window_max = LIMITS.window_bytes_max
    assert hung.raft.log.unsynced_bytes <= window_max + 11 * ENTRY_BYTES
    assert hung.dead is None
    assert hung.raft.leader_id == leader.node_id  # it hears heartbeats all the time
    recover(hung)
    world.converge()
    assert hung.raft.applied >= max(world.oracle.acknowledged)


def test_a_window_that_was_lost_on_the_way_is_sent_again() -> None:
    """The connection stays open: if a peer's queue is full, new messages are dropped."""
    world = World(6, joined=True)
    world.start_all()
    leader = world.elect()
    world.commit(2)
    follower = next(node for node in world.nodes.values() if node is not leader)
    world.drop = lambda source, target, message: (
        target == follower.node_id and message["type"] == wire.APPEND_ENTRIES
    )
    propose_for_a_while(world, 4)
    assert leader.raft.replication.is_full(follower.node_id)
    world.drop = lambda source, target, message: False
    assert world.run_until(lambda: follower.raft.applied == leader.raft.log.last_index, PATIENCE_S)


def test_a_hung_follower_takes_a_few_windows_at_most_from_a_leader_that_knows_none() -> None:
    """A leader of the first release does not limit windows; it only counts what waits in its own
    queue.
    """
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1], commit=2)
    voter.settle()
    hang(voter.node)
    last = 2
    for _ in range(500):
        voter.append(2, 1, (last, 1), [1], commit=2, text=b"y" * ENTRY_BYTES)
        last += 1
    unsynced = voter.node.raft.log.unsynced_bytes
    limit = 4 * LIMITS.window_bytes_max
    assert limit / 2 < unsynced <= limit + 2 * ENTRY_BYTES
    assert voter.node.raft.log.last_index < last
    voter.take_sent(wire.NEXT_NODE_IDX)
    voter.append(2, 1, (last, 1), [1], commit=2)
    assert (
        voter.take_sent(wire.NEXT_NODE_IDX) == []
    )  # no refusal, which would bring everything again
    recover(voter.node)
    voter.settle()
    voter.append(2, 1, (last, 1), [1], commit=2)
    voter.settle()
    refusal = voter.take_sent(wire.NEXT_NODE_IDX)[-1][1]
    assert refusal["reset"]
    assert refusal["next_node_idx"] == voter.node.raft.log.last_index + 1

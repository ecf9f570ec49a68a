"""A voter sends no message before the state that it reports is on disk; the power may fail at each
message.
"""

from __future__ import annotations

from odradek_metadata_quorum.network import wire
from tests.sim.quorum.oracle import check_disk_vouches
from tests.sim.quorum.world import World
from tests.unit.quorum.lone_voter import LoneVoter


def test_at_every_message_the_disk_vouches_for_what_it_says() -> None:
    for seed in range(4):
        world = World(seed)
        world.on_send = check_disk_vouches
        world.start_all()
        for _ in range(3):
            leader = world.elect()
            world.commit(15)
            world.isolate(leader.node_id)
            world.run(2.5)
            assert world.leader() not in (None, leader)
            world.commit(5)
            world.heal()
            world.run(1.0)
        world.converge()
        assert world.deaths == []
        assert world.counts["delivered"] > 200


def test_a_vote_is_not_given_twice_when_the_power_goes_as_it_leaves() -> None:
    """Voter 1 votes for 2 and loses power as the vote is sent; then 3 requests its vote."""
    for seed in range(10):
        voter = LoneVoter(seed=seed)
        voter.receive(2, wire.REQUEST_VOTE, term=3, last_log_index=9, last_log_term=2)
        assert voter.world.run_until(
            lambda voter=voter: any(m["type"] == wire.RESPONSE_VOTE for *_, m in voter.world.sent),
            1.0,
        )
        voter.world.power_cut(1)
        voter.world.sent = []
        voter.restart()
        voter.receive(3, wire.REQUEST_VOTE, term=3, last_log_index=9, last_log_term=2)
        voter.settle()
        assert voter.take_sent(wire.RESPONSE_VOTE) == []


def test_an_entry_is_not_forgotten_when_the_power_goes_as_its_acknowledgement_leaves() -> None:
    for seed in range(10):
        voter = LoneVoter(seed=seed)
        voter.append(2, 1, (1, 0), [1, 1, 1], commit=1)
        assert voter.world.run_until(
            lambda voter=voter: any(
                m["type"] == wire.NEXT_NODE_IDX and m["success"] for *_, m in voter.world.sent
            ),
            1.0,
        )
        voter.world.power_cut(1)
        assert voter.restart().raft.log.last_index == 4


def test_a_single_voter_applies_nothing_that_it_has_not_synced() -> None:
    world = World(1, voters=1, disk_delay_s=(0.5, 0.5))
    node = world.start(1)
    world.elect()
    before = node.raft.applied
    node.propose(b"p")
    world.run(0.3)
    assert node.raft.applied == before
    world.run(1.0)
    assert node.raft.applied == before + 1

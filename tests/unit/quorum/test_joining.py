"""A voter with an empty disk votes only when it cannot have voted before: in a new cluster, or once
it has caught up above a safe term.
"""

from __future__ import annotations

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.raft.joining import JoinRound
from tests.sim.quorum.world import World
from tests.unit.quorum.lone_voter import LoneVoter


def joining() -> JoinRound:
    return JoinRound(frozenset({2, 3}), round_number=7, genesis_index=1)


def test_all_voters_empty_is_a_new_cluster_even_if_one_moves_on_meanwhile() -> None:
    rules = joining()
    rules.respond(2, 7, 0, 1)
    assert not rules.cluster_is_new
    assert rules.missing == [3]
    rules.respond(2, 7, 4, 9)
    rules.respond(3, 7, 0, 1)
    assert rules.cluster_is_new


def test_a_single_used_voter_makes_it_an_old_cluster_with_a_floor() -> None:
    rules = joining()
    rules.respond(2, 7, 0, 1)
    rules.respond(3, 7, 4, 9)
    assert not rules.cluster_is_new
    assert rules.floor == 4
    rules.respond(3, 7, 6, 9)
    assert rules.floor == 6


def test_answers_to_another_life_or_of_strangers_do_not_count() -> None:
    rules = joining()
    rules.respond(2, 6, 0, 1)
    rules.respond(9, 7, 0, 1)
    assert rules.missing == [2, 3]
    assert rules.floor is None


def test_an_empty_voter_gives_no_vote_and_no_consent_and_does_not_campaign() -> None:
    voter = LoneVoter(joined=False)
    voter.receive(2, wire.PRE_VOTE, term=5, round=1, last_log_index=50, last_log_term=4)
    voter.receive(2, wire.REQUEST_VOTE, term=5, last_log_index=50, last_log_term=4)
    voter.world.run(5.0)
    sent = [message for _, _, message in voter.world.sent or []]
    assert not [m for m in sent if m["type"] in (wire.RESPONSE_VOTE, wire.PRE_VOTE)]
    assert [m["granted"] for m in sent if m["type"] == wire.PRE_VOTE_REPLY] == [False]


def test_a_wiped_voter_cannot_vote_again_in_a_term_it_voted_in() -> None:
    """Voter 1 voted in term 6 for a candidate that was cut off; its disk is wiped, and it follows
    the leader of term 5.
    """
    voter = LoneVoter(joined=False)
    voter.world.run(0.01)
    queries = voter.take_sent(wire.JOIN_QUERY)
    for peer_id, term in ((2, 5), (3, 6)):
        voter.receive(
            peer_id, wire.JOIN_REPLY, round=queries[0][1]["round"], term=term, last_log_index=4
        )
    voter.append(2, 5, (1, 0), [5, 5, 5], commit=4)
    voter.world.run(0.2)
    raft = voter.node.raft
    assert raft.may_vote
    assert raft.term == 6
    voter.receive(3, wire.REQUEST_VOTE, term=6, last_log_index=9, last_log_term=5)
    voter.settle()
    assert voter.take_sent(wire.RESPONSE_VOTE) == []
    voter.receive(3, wire.REQUEST_VOTE, term=7, last_log_index=9, last_log_term=5)
    voter.settle()
    assert len(voter.take_sent(wire.RESPONSE_VOTE)) == 1


def test_catching_up_means_a_commit_of_the_leaders_own_term() -> None:
    voter = LoneVoter(joined=False)
    voter.world.run(0.01)
    queries = voter.take_sent(wire.JOIN_QUERY)
    for peer_id in (2, 3):
        voter.receive(
            peer_id, wire.JOIN_REPLY, round=queries[0][1]["round"], term=5, last_log_index=4
        )
    voter.append(2, 5, (1, 0), [3, 3, 3], commit=4)  # that leader's commit index may be an old one
    voter.world.run(0.2)
    assert not voter.node.raft.may_vote
    voter.append(2, 5, (4, 3), [5], commit=5)
    voter.world.run(0.2)
    assert voter.node.raft.may_vote


def test_a_new_cluster_starts_only_when_every_voter_has_been_heard_of() -> None:
    world = World(1)
    world.start(1)
    world.start(2)
    world.run(5.0)
    assert world.leader() is None
    world.start(3)
    assert world.run_until(lambda: world.leader() is not None, 1.0)


def test_a_wiped_voter_rejoins_and_the_cluster_then_survives_the_loss_of_another() -> None:
    for seed in range(5):
        world = World(seed)
        world.start_all()
        world.elect()
        world.commit(50)
        world.wipe(1)
        world.start(1)
        world.commit(5)
        world.converge()
        assert world.run_until(lambda world=world: world.nodes[1].raft.may_vote, 2.0)
        world.kill(2)
        world.commit(5)
        world.converge()
        assert world.deaths == []

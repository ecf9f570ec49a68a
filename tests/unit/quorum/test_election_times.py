"""How long a voter waits before it requests votes, how long a leader stays without followers, and
who is granted a pre-vote.
"""

from __future__ import annotations

import pytest

from odradek_metadata_quorum.network import wire
from tests.sim.quorum.world import TIMERS
from tests.unit.quorum.lone_voter import LoneVoter

STEP_S = 0.02  # by which a step may be later than its time


def following(seed: int = 1, *, voters: int = 3) -> LoneVoter:
    """Return a voter that has just received a message of the leader, voter 2 of term 1.

    Its log ends with entry 3 of term 1.
    """
    voter = LoneVoter(seed=seed, voters=voters)
    voter.append(2, 1, (1, 0), [1, 1], commit=1)
    voter.settle()
    voter.append(2, 1, (3, 1), [], commit=1)
    voter.take_sent(wire.PRE_VOTE)
    return voter


def waited_s(voter: LoneVoter) -> float:
    """Return how long the voter waits until it sends a pre-vote."""
    began_s = voter.world.now
    assert voter.world.run_until(lambda: bool(voter.take_sent(wire.PRE_VOTE)), 10.0)
    return voter.world.now - began_s


def test_a_silent_leader_is_waited_for_as_long_as_the_settings_say() -> None:
    waits_s = [waited_s(following(seed)) for seed in range(30)]
    assert min(waits_s) >= TIMERS.election_min_s - STEP_S
    assert max(waits_s) <= TIMERS.election_max_s + STEP_S
    assert max(waits_s) - min(waits_s) > (TIMERS.election_max_s - TIMERS.election_min_s) / 3


def test_a_leader_whose_connection_broke_is_waited_for_less() -> None:
    waits_s = []
    for seed in range(30):
        voter = following(seed)
        voter.node.entering(lambda voter=voter: voter.node.raft.peer_disconnected(2))  # type: ignore[misc]
        waits_s.append(waited_s(voter))
    assert min(waits_s) >= TIMERS.lost_leader_min_s - STEP_S
    assert max(waits_s) <= TIMERS.lost_leader_max_s + STEP_S


def test_another_connection_that_broke_changes_nothing() -> None:
    voter = following()
    voter.node.entering(lambda: voter.node.raft.peer_disconnected(3))
    assert waited_s(voter) >= TIMERS.election_min_s - STEP_S


def test_a_heartbeat_begins_the_wait_anew() -> None:
    voter = following()
    for _ in range(10):
        voter.world.run(TIMERS.election_min_s * 0.9)
        assert voter.take_sent(wire.PRE_VOTE) == []
        voter.append(2, 1, (3, 1), [], commit=1)
    assert waited_s(voter) >= TIMERS.election_min_s - STEP_S


def asks(voter: LoneVoter, *, term: int, last: tuple[int, int], peer_id: int = 3) -> bool:
    """Return whether the voter grants a pre-vote for `term` to a peer whose log ends with (term,
    index) `last`.
    """
    voter.take_sent(wire.PRE_VOTE_REPLY)
    voter.receive(
        peer_id,
        wire.PRE_VOTE,
        term=term,
        round=7,
        last_log_index=last[1],
        last_log_term=last[0],
    )
    ((asked, message),) = voter.take_sent(wire.PRE_VOTE_REPLY)
    assert (asked, message["round"], message["term"]) == (peer_id, 7, voter.node.raft.term)
    granted: bool = message["granted"]
    return granted


@pytest.mark.parametrize(
    ("term", "last", "granted"),
    [
        (2, (1, 3), True),
        (2, (1, 4), True),
        (2, (2, 1), True),
        (2, (1, 2), False),
        (2, (0, 9), False),
        (1, (1, 9), False),
        (0, (1, 9), False),
    ],
)
def test_consent_goes_to_a_later_term_with_a_log_that_is_not_behind(
    term: int, last: tuple[int, int], granted: bool
) -> None:
    voter = following()
    voter.world.run(TIMERS.election_min_s - STEP_S)
    assert not asks(voter, term=term, last=last), "the leader was heard"
    voter.world.run(2 * STEP_S)
    assert asks(voter, term=term, last=last) == granted


def test_a_voter_whose_connection_to_the_leader_broke_consents_at_once() -> None:
    voter = following()
    voter.world.run(0.01)
    voter.node.entering(lambda: voter.node.raft.peer_disconnected(2))
    assert asks(voter, term=2, last=(1, 3))
    voter.append(2, 1, (3, 1), [], commit=1)
    assert not asks(voter, term=2, last=(1, 3)), "the leader is back"


def test_a_vote_counts_as_hearing_a_leader_from_when_it_leaves() -> None:
    voter = following()
    voter.world.run(TIMERS.election_min_s + STEP_S)
    voter.receive(3, wire.REQUEST_VOTE, term=2, last_log_index=3, last_log_term=1)
    voter.settle()
    assert [peer_id for peer_id, _ in voter.take_sent(wire.RESPONSE_VOTE)] == [3]
    assert not asks(voter, term=3, last=(1, 3), peer_id=2)
    assert waited_s(voter) >= TIMERS.election_min_s - 2 * STEP_S


def test_a_leader_that_hears_too_few_steps_down_after_its_time_and_not_before() -> None:
    voter = LoneVoter(voters=5)
    term = voter.become_leader(followers=(2, 3))
    for _ in range(8):
        voter.world.run(TIMERS.fallback_s * 0.8)
        assert voter.node.raft.is_leader
        for peer_id in (2, 3):
            voter.acknowledge(peer_id, term)
    heard_s = voter.world.now
    for _ in range(3):
        voter.world.run(TIMERS.fallback_s * 0.3)
        assert voter.node.raft.is_leader
        voter.acknowledge(2, term)  # one of four is no majority with the leader
    assert voter.world.run_until(lambda: not voter.node.raft.is_leader, 5.0)
    silent_s = voter.world.now - heard_s
    assert TIMERS.fallback_s - STEP_S <= silent_s <= TIMERS.fallback_s + 2 * TIMERS.tick_s + STEP_S


def test_a_leader_of_a_later_term_is_learnt_of_by_any_response() -> None:
    for kind, fields in (
        (wire.RESPONSE_VOTE, {"term": 9}),
        (wire.PRE_VOTE_REPLY, {"term": 9, "round": 1, "granted": False}),
    ):
        voter = following()
        voter.receive(3, kind, **fields)
        voter.settle()
        assert voter.node.raft.term == 9
        assert voter.node.raft.leader_id is None


def test_a_majority_of_consents_begins_the_election_at_once() -> None:
    voter = following(voters=5)
    ((_, message), *_) = voter.hear_pre_votes(rounds=1)
    assert (message["term"], message["last_log_index"], message["last_log_term"]) == (2, 3, 1)
    reply = {"term": 1, "round": message["round"]}
    voter.receive(2, wire.PRE_VOTE_REPLY, **reply, granted=True)
    voter.receive(2, wire.PRE_VOTE_REPLY, **reply, granted=True)
    voter.receive(3, wire.PRE_VOTE_REPLY, **reply, granted=False)
    voter.world.run(0.001)
    assert voter.node.raft.term == 1, "two of five"
    voter.receive(4, wire.PRE_VOTE_REPLY, **reply, granted=True)
    voter.settle()
    assert voter.node.raft.term == 2
    asked = {peer_id for peer_id, _ in voter.take_sent(wire.REQUEST_VOTE)}
    assert asked == {2, 3, 4, 5}

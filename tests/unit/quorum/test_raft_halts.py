"""A state that only a bug or damage can explain ends the process: the voter logs why, and sends
nothing more.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek_metadata_quorum.network import wire
from tests.unit.quorum.lone_voter import LoneVoter


def another_entry_where_one_is_committed(voter: LoneVoter) -> None:
    voter.append(3, 2, (3, 2), [], commit=4)


def another_leaders_entry_over_a_committed_one(voter: LoneVoter) -> None:
    voter.append(3, 2, (2, 1), [2], commit=4)


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        (
            another_entry_where_one_is_committed,
            "entry 3 is committed, but the leader has another entry",
        ),
        (
            another_leaders_entry_over_a_committed_one,
            "entry 3 is committed, but the leader sent another entry",
        ),
    ],
)
def test_a_follower_never_gives_up_what_is_committed(
    do: Callable[[LoneVoter], None], reason: str
) -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1, 1, 1, 1], commit=4)
    voter.settle()
    voter.world.sent = []
    do(voter)
    voter.world.run(1.0)
    assert reason in (voter.node.dead or "")
    assert voter.world.sent == []
    assert voter.node.raft.log.last_index == 5
    assert [voter.node.raft.log.term_at(index) for index in (3, 4)] == [1, 1]


def test_the_entry_behind_the_last_committed_one_may_be_replaced() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1, 1, 1, 1], commit=4)
    voter.settle()
    voter.append(3, 2, (5, 2), [], commit=4)
    voter.settle()
    answers = [m for _, m in voter.take_sent(wire.NEXT_NODE_IDX)]
    assert [(m["reset"], m["next_node_idx"]) for m in answers[-1:]] == [(True, 5)]
    voter.append(3, 2, (4, 1), [2], commit=4)
    voter.settle()
    assert voter.node.dead is None
    assert [voter.node.raft.log.term_at(index) for index in (4, 5)] == [1, 2]


def test_a_leader_that_hears_of_entries_it_never_sent_ends() -> None:
    voter = LoneVoter()
    term = voter.become_leader()
    last = voter.node.raft.log.last_index
    voter.acknowledge(2, term, last)
    assert voter.node.dead is None
    voter.acknowledge(2, term, last + 1)
    voter.world.run(1.0)
    reason = f"voter 2 acknowledges entry {last + 1}, but this leader's log ends at entry {last}"
    assert reason in (voter.node.dead or "")


def test_a_leader_that_hears_another_leader_of_its_term_ends() -> None:
    voter = LoneVoter()
    term = voter.become_leader()
    voter.append(3, term, (1, 0), [], commit=1)
    voter.world.sent = []
    voter.world.run(1.0)
    assert f"voter 3 claims to lead term {term}" in (voter.node.dead or "")
    assert voter.world.sent == []


def test_a_feed_begins_behind_the_first_entry_and_ends_with_the_last_applied_one() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1] * 6, commit=5)
    voter.settle()
    raft = voter.node.raft

    def offsets(start: int, count_max: int = 100) -> list[int]:
        entries = raft.entries(start, count_max)
        assert entries is not None
        return [offset for _, offset, _ in entries]

    assert offsets(0) == offsets(1) == offsets(2) == [2, 3, 4, 5]
    assert offsets(4) == [4, 5]
    assert offsets(6) == []
    assert offsets(2, 2) == [2, 3]


def test_a_feed_of_entries_that_are_trimmed_says_so() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1] * 60, commit=61)
    voter.world.run(0.5)
    raft = voter.node.raft
    first = raft.log.first_index
    assert first > 1, "a snapshot was taken"
    assert raft.entries(first, 5) is None
    assert raft.entries(first - 1, 5) is None
    entries = raft.entries(first + 1, 5)
    assert entries is not None
    assert [offset for _, offset, _ in entries] == list(range(first + 1, first + 6))

"""A voter never replaces or skips committed entries, and never assumes that an entry is
committed.
"""

from __future__ import annotations

import itertools

import pytest

from odradek_metadata_quorum.errors import CorruptStorage
from odradek_metadata_quorum.raft.replicated_state import APPLY_BYTES_MAX
from tests.sim.quorum.oracle import Oracle
from tests.unit.quorum.lone_voter import LoneVoter


def test_a_heartbeat_commits_no_further_than_what_it_proves() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1, 1, 1, 1], commit=1)
    voter.append(3, 2, (3, 1), [], commit=5)  # a new leader with other entries 4 and 5
    voter.settle()
    assert voter.node.raft.commit_index == 3


def test_replacing_a_committed_entry_ends_the_process_even_before_it_is_applied() -> None:
    voter = LoneVoter(disk_delay_s=(0.5, 0.5))
    voter.append(2, 1, (1, 0), [1] * 9, commit=10)
    raft = voter.node.raft
    assert (raft.commit_index, raft.applied) == (10, 1)
    voter.append(3, 2, (7, 1), [2, 2], commit=7)
    assert voter.node.dead is not None
    assert "committed" in voter.node.dead


def test_a_gap_between_state_and_log_ends_the_process() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1] * 50, commit=51)
    voter.world.run(0.5)
    raft = voter.node.raft
    assert raft.log.first_index > 20
    raft.engine.applied = raft.log.first_index - 5
    voter.append(2, 1, (51, 1), [1], commit=52)
    voter.world.run(0.1)
    assert voter.node.dead is not None
    assert "missing" in voter.node.dead


def test_a_step_applies_no_more_bytes_than_the_loop_bears_to_wait_for() -> None:
    """A restarted leader that replayed everything at once would be deposed, because it would send
    no heartbeats.
    """
    voter = LoneVoter()
    size = 100_000
    for index in range(1, 41, 10):
        voter.append(2, 1, (index, min(index - 1, 1)), [1] * 10, commit=1, text=b"x" * size)
        voter.settle()
    applied = [voter.node.raft.applied]
    voter.append(2, 1, (41, 1), [], commit=41)
    while applied[-1] != voter.node.raft.applied:
        applied.append(voter.node.raft.applied)
        voter.node.step()
    assert applied[-1] == 41
    steps = [after - before for before, after in itertools.pairwise(applied)]
    assert max(steps) <= APPLY_BYTES_MAX // size + 1
    assert len(steps) < 41


def test_a_trimmed_log_without_its_snapshot_does_not_start() -> None:
    voter = LoneVoter()
    for index in range(1, 120, 10):
        voter.append(
            2, 1, (index, 0 if index == 1 else 1), [1] * 10, commit=index + 10, text=b"x" * 400
        )
        voter.world.run(0.1)
    disk = voter.world.disks[1]
    voter.world.kill(1)
    for name in disk.names():
        if name.startswith("snapshot-"):
            disk.remove(name)
    with pytest.raises(CorruptStorage, match="no snapshot"):
        voter.restart()


def test_the_oracle_itself_notices_divergence_and_two_leaders() -> None:
    oracle = Oracle()
    oracle.applied(1, 5, 1, b"a", b"d")
    with pytest.raises(AssertionError):
        oracle.applied(2, 5, 1, b"b", b"d")
    with pytest.raises(AssertionError):
        oracle.applied(2, 5, 1, b"a", b"e")
    oracle.leads(1, 7)
    with pytest.raises(AssertionError):
        oracle.leads(2, 7)
    with pytest.raises(AssertionError):
        oracle.acknowledge(5, b"c")

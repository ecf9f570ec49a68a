"""A process is killed within a disk job, or a sync fails, and the voter restarts on the same disk.

The next process reads what was written, whether a power cut would keep it or not. Everything that
it then reports must survive a power cut.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from odradek_metadata_quorum.network import wire
from tests.sim.quorum.oracle import DigestMachine, check_disk_vouches, check_opened
from tests.sim.quorum.simulated_disk import PowerCut
from tests.sim.quorum.simulated_node import SimulatedQueue
from tests.unit.quorum.lone_voter import LoneVoter

CALLS_MAX = 9  # more than any job here makes


def appending(**world: Any) -> tuple[LoneVoter, SimulatedQueue]:
    """Return a voter whose vote and entries 2 to 4 are being written to disk."""
    voter = LoneVoter(**world)
    voter.append(2, 1, (1, 0), [1, 1, 1], commit=1, text=b"x" * 100)
    return voter, voter.node.queue


def rolling() -> tuple[LoneVoter, SimulatedQueue]:
    """Return a voter that is writing entries to disk which begin a new segment."""
    voter, queue = appending(segment_bytes_max=500)
    voter.settle()
    voter.append(2, 1, (4, 1), [1, 1], commit=1, text=b"y" * 100)
    return voter, queue


def voting() -> tuple[LoneVoter, SimulatedQueue]:
    voter = LoneVoter()
    voter.receive(2, wire.REQUEST_VOTE, term=3, last_log_index=9, last_log_term=2)
    return voter, voter.node.queue


def taking_a_snapshot() -> tuple[LoneVoter, SimulatedQueue]:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1] * 40, commit=41)
    voter.world.run_until(lambda: bool(voter.node.snapshot_queue.jobs), 5.0)
    voter.append(2, 1, (41, 1), [1] * 3, commit=41)
    voter.settle()
    return voter, voter.node.snapshot_queue


def receiving_a_snapshot() -> tuple[LoneVoter, SimulatedQueue]:
    voter = LoneVoter()
    data = bytes(16 + DigestMachine.PADDING // 16 * 16)
    voter.receive(
        2,
        wire.INSTALL_SNAPSHOT,
        term=1,
        offset=50,
        epoch=1,
        total=len(data),
        crc=zlib.crc32(data),
        position=0,
        data=data,
    )
    queue = voter.node.snapshot_queue
    voter.world.run_until(lambda: len(queue.jobs) == 1, 1.0)  # the file is made, the chunk is next
    return voter, queue


def joining() -> tuple[LoneVoter, SimulatedQueue]:
    voter = LoneVoter(joined=False, voters=1)
    voter.world.run_until(lambda: voter.node.raft.joining.announced, 5.0)
    return voter, voter.node.queue


JOBS = [appending, rolling, voting, taking_a_snapshot, receiving_a_snapshot, joining]


def life_killed_after(
    begin: Callable[[], tuple[LoneVoter, SimulatedQueue]], calls: int
) -> tuple[LoneVoter, bool]:
    """Kill a voter within its disk job, after this many calls; return whether that interrupted the
    job.
    """
    voter, queue = begin()
    assert queue.jobs
    job = queue.jobs[0][0]
    voter.node.disk.interrupt_after = calls
    try:
        job()
    except PowerCut:
        cut_short = True
    else:
        cut_short = False
    voter.node.disk.interrupt_after = None
    queue.jobs.clear()
    voter.node.snapshot_queue.jobs.clear()
    voter.world.kill(1)
    return voter, cut_short


@pytest.mark.parametrize("begin", JOBS)
def test_a_life_after_a_kill_within_a_disk_job_vouches_for_durable_bytes_only(
    begin: Callable[[], tuple[LoneVoter, SimulatedQueue]],
) -> None:
    cut_short = 0
    for calls in range(CALLS_MAX):
        voter, was_cut_short = life_killed_after(begin, calls)
        cut_short += was_cut_short
        check_opened(voter.restart())
        voter.world.power_cut(1)
        check_opened(voter.restart())
    assert 0 < cut_short < CALLS_MAX


@pytest.mark.parametrize("begin", [appending, rolling])
def test_an_entry_repeated_after_a_kill_is_acknowledged_when_it_is_durable(
    begin: Callable[[], tuple[LoneVoter, SimulatedQueue]],
) -> None:
    for calls in range(CALLS_MAX):
        voter, _ = life_killed_after(begin, calls)
        voter.world.on_send = check_disk_vouches
        voter.restart()
        last = 4 if begin is appending else 6
        text = (b"x" if begin is appending else b"y") * 100
        if begin is appending:
            voter.append(2, 1, (1, 0), [1, 1, 1], commit=4, text=text)
        else:
            voter.append(2, 1, (4, 1), [1, 1], commit=6, text=text)
        voter.settle()
        acknowledged = [m for _, m in voter.take_sent(wire.NEXT_NODE_IDX) if m["success"]]
        assert acknowledged[-1]["next_node_idx"] == last + 1
        voter.world.power_cut(1)
        assert voter.restart().raft.log.last_index == last


def test_a_log_that_goes_on_in_another_segment_after_a_kill_opens_after_a_power_cut() -> None:
    """The killed process wrote the end of the first segment, and no process has synced it."""
    for calls, seed in itertools.product(range(CALLS_MAX), range(6)):
        voter, _ = life_killed_after(
            lambda seed=seed: appending(segment_bytes_max=500, seed=seed), calls
        )
        node = voter.restart()
        last = node.raft.log.last_index
        term = node.raft.log.term_at(last)
        assert term is not None
        voter.append(2, 1, (last, term), [1] * 6, commit=1, text=b"z" * 100)
        voter.settle()
        assert node.disk.calls["create"] > 3
        voter.world.power_cut(1)
        assert voter.restart().raft.log.last_index == last + 6


def fail_next_sync(voter: LoneVoter, prefix: str) -> None:
    """Let the next sync fail.

    The system then treats the pages that it could not write as clean, so a later sync skips them.
    """

    def fail(call: str, name: str) -> bool:
        if call != "sync" or not name.startswith(prefix):
            return False
        voter.node.disk.fail = None
        return True

    voter.node.disk.fail = fail


@pytest.mark.parametrize(
    ("begin", "prefix"), [(appending, "log-"), (rolling, "log-"), (voting, "vote")]
)
def test_what_a_failed_sync_left_in_the_page_cache_is_written_again(
    begin: Callable[[], tuple[LoneVoter, SimulatedQueue]], prefix: str
) -> None:
    voter, _ = begin()
    fail_next_sync(voter, prefix)
    voter.world.run(1.0)
    assert voter.node.dead is not None
    voter.world.kill(1)
    opened = voter.restart()
    check_opened(opened)
    position = (opened.raft.log.last_index, opened.barrier.term, opened.barrier.vote)
    voter.world.power_cut(1)
    again = voter.restart()
    assert position == (again.raft.log.last_index, again.barrier.term, again.barrier.vote)

"""After a failed disk call a voter sends nothing more, and after a restart it still has all that it
reported.
"""

from __future__ import annotations

import random

import pytest

from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.storage.vote_file import VoteFile
from odradek_metadata_quorum.storage.write_ahead_log import WriteAheadLog
from tests.sim.quorum.simulated_disk import PowerCut, SimulatedDisk
from tests.sim.quorum.simulated_node import SimulatedNode
from tests.sim.quorum.world import World


class _FailOnce:
    """Makes the n-th call of a kind on files with a prefix fail."""

    def __init__(self, call: str, prefix: str, skip: int) -> None:
        self.call, self.prefix, self.skip = call, prefix, skip
        self.failed = False

    def __call__(self, call: str, name: str) -> bool:
        if self.failed or call != self.call or not name.startswith(self.prefix):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.failed = True
        return True


@pytest.mark.parametrize(
    ("call", "prefix"),
    [
        ("write", "log-"),
        ("sync", "log-"),
        ("create", "log-"),
        ("remove", "log-"),
        ("sync_directory", ""),
        ("write", "vote"),
        ("sync", "vote"),
        ("create", "writing-snapshot"),
        ("write", "writing-snapshot"),
        ("sync", "writing-snapshot"),
        ("rename", "snapshot-"),
        ("remove", "snapshot-"),
        ("write", "receiving-snapshot"),
        ("sync", "receiving-snapshot"),
        ("write", "identity"),
        ("rename", "identity"),
    ],
)
def test_a_failed_disk_call_is_the_last_thing_a_voter_does(call: str, prefix: str) -> None:
    """Any call may fail, on any file and at any time: no message is sent after it."""
    for skip in (0, 1, 3) if prefix in ("log-", "writing-snapshot", "snapshot-", "") else (0,):
        world = World(7 + skip, segment_bytes_max=1024)
        victim_id = 2
        fault = _FailOnce(call, prefix, skip)
        sent_after: list[Message] = []

        def watch(
            source: SimulatedNode,
            target: int,
            message: Message,
            victim_id: int = victim_id,
            fault: _FailOnce = fault,
            sent_after: list[Message] = sent_after,
        ) -> None:
            if source.node_id == victim_id and fault.failed:
                sent_after.append(message)

        world.on_send = watch
        world.start_all()
        world.disks[victim_id].fail = fault
        if prefix == "receiving-snapshot":
            world.run(2.0)
            world.isolate(victim_id)
        for round_number in range(20):
            if fault.failed:
                break
            if round_number == 12:
                world.heal()
            leader = world.elect()
            for number in range(12):
                leader.propose(b"entry-%d-%d" % (round_number, number))
            world.run_until(lambda fault=fault: fault.failed, 0.3)
        assert fault.failed, (call, prefix, world.disks[victim_id].calls)
        world.run(0.1)
        assert [node_id for node_id, _ in world.deaths] == [victim_id], world.deaths
        assert sent_after == []
        world.deaths.clear()
        world.power_cut(victim_id)  # the bytes of the failed call may be lost now
        world.start(victim_id)
        world.commit(5)
        world.converge()
        assert world.deaths == []


def test_votes_and_entries_survive_a_crash_at_any_step_of_rolling_and_removing() -> None:
    for cut_after in range(60):
        disk = SimulatedDisk(random.Random(cut_after))
        WriteAheadLog.create(disk)
        VoteFile.create(disk)
        disk.sync_directory()
        log, votes = WriteAheadLog(disk, segment_bytes_max=300), VoteFile(disk)
        disk.interrupt_after = cut_after
        synced, vote = 1, (0, None)
        try:
            for index in range(2, 40):
                log.append(b"x" * 60, index, 1)
                log.write(log.take())
                log.written()
                synced = index
                if index % 10 == 0:
                    votes.save(index, 1)
                    vote = (index, 1)
                    log.trim_to(index - 5)
                    log.remove_before(index - 5)
        except PowerCut:
            pass
        disk.crash()
        log, votes = WriteAheadLog(disk, segment_bytes_max=300), VoteFile(disk)
        assert log.last_index >= synced
        assert log.first_index <= max(1, synced - 5)
        assert (votes.term, votes.vote) in (vote, (vote[0] + 10, 1))

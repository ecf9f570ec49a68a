"""Voters continue and keep their logs when a snapshot is too large or does not fit on the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import cast

import pytest

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.raft.shell import StateMachine
from odradek_metadata_quorum.raft.voter import Voter, VoterEvents
from odradek_metadata_quorum.settings import QuorumSettings
from tests.sim.quorum.world import LIMITS, World

SNAPSHOT_BYTES = 3008  # the size of DigestMachine's snapshots


def full_for(prefix: str, error: int = ENOSPC) -> Callable[[str, str], int]:
    """Return a rule that fails every call which needs space for files of this name."""

    def fail(call: str, name: str) -> int:
        return error if call in ("create", "write", "sync") and name.startswith(prefix) else 0

    return fail


def test_a_snapshot_above_the_limit_is_not_stored_and_its_voters_keep_their_logs() -> None:
    """If the log were trimmed below a snapshot that followers refuse, they would stay behind for
    ever.
    """
    world = World(3, joined=True, limits=replace(LIMITS, snapshot_bytes_max=SNAPSHOT_BYTES - 1))
    world.start_all()
    leader = world.elect()
    away = next(node for node in world.nodes.values() if node is not leader)
    world.kill(away.node_id)
    for _ in range(12):
        world.commit(10)
    world.run(2.0)
    assert [weighed for weighed in leader.snapshots_weighed if weighed[1] is not None] == []
    assert {size for size, _ in leader.snapshots_weighed} == {SNAPSHOT_BYTES}
    assert 3 <= len(leader.snapshots_weighed) <= 5  # once an interval, not once an entry
    assert leader.raft.snapshot is None
    assert leader.raft.log.first_index == 1
    back = world.start(away.node_id)
    world.converge()
    assert back.raft.applied > 120
    assert world.deaths == []


def test_a_follower_tells_of_a_snapshot_that_it_does_not_take() -> None:
    """The leader has another limit: it was raised only there, or the leader runs an older
    release.
    """
    world = World(3, joined=True)
    world.start_all()
    leader = world.elect()
    away = next(node for node in world.nodes.values() if node is not leader)
    world.kill(away.node_id)
    world.commit(120)
    world.run(2.0)
    world.limits = replace(LIMITS, snapshot_bytes_max=SNAPSHOT_BYTES - 1)
    back = world.start(away.node_id)
    assert world.run_until(lambda: bool(back.snapshots_refused), 5.0)
    assert back.snapshots_refused[0] == (leader.node_id, SNAPSHOT_BYTES)


@pytest.mark.parametrize("error", [ENOSPC, EDQUOT])
def test_a_snapshot_without_room_on_the_disk_ends_no_voter(error: int) -> None:
    """The disks of all voters fill up at the same time, so the cluster would lose all voters at once."""
    world = World(4, joined=True)
    world.start_all()
    leader = world.elect()
    for disk in world.disks.values():
        disk.fail = full_for("writing-snapshot", error)
    world.commit(100)
    world.run(1.0)
    assert world.deaths == []
    assert all(node.raft.snapshot is None for node in world.nodes.values())
    assert all("writing-snapshot" not in disk.names() for disk in world.disks.values())
    failures = [failure for _, failure in leader.snapshots_weighed]
    assert failures
    assert all(failure is not None and failure.errno == error for failure in failures)
    for disk in world.disks.values():
        disk.fail = None
    world.commit(60)
    world.run(1.0)
    assert all(node.raft.snapshot is not None for node in world.nodes.values())
    world.converge()


def test_another_failure_of_a_snapshot_is_the_disks_and_ends_the_voter() -> None:
    world = World(4, joined=True)
    world.start_all()
    world.elect()
    world.disks[2].fail = lambda call, name: call == "sync" and name == "writing-snapshot"
    world.commit(60)
    world.run(1.0)
    assert [node_id for node_id, _ in world.deaths] == [2]


def test_a_received_snapshot_without_room_is_taken_when_there_is_some() -> None:
    world = World(5, joined=True)
    world.start_all()
    leader = world.elect()
    away = next(node for node in world.nodes.values() if node is not leader)
    world.kill(away.node_id)
    world.commit(120)
    world.run(2.0)
    disk = world.disks[away.node_id]
    disk.fail = full_for("receiving-snapshot")
    back = world.start(away.node_id)
    world.sent = []
    world.run(5.0)
    assert back.dead is None
    assert 2 <= len(back.snapshots_without_room) <= 10  # at the leader's pace
    assert "receiving-snapshot" not in disk.names()
    chunks = [m for *_, m in world.sent if m["type"] == wire.INSTALL_SNAPSHOT and m["data"]]
    assert len(chunks) <= 10
    disk.fail = None
    world.converge()
    assert world.counts["snapshot installed"] == 1
    assert world.deaths == []


def test_a_snapshot_that_is_not_stored_is_an_error_that_names_its_size_and_the_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = QuorumSettings(
        node_id=1, cluster_id="c", voters={1: ("127.0.0.1", 0)}, data_dir=tmp_path
    )
    voter = Voter(
        settings,
        cast(StateMachine, None),
        events=cast(VoterEvents, None),
        fatal=lambda reason, error: None,
    )
    for size, failure, level in (
        (50, None, None),
        (51, None, "WARNING"),
        (101, None, "ERROR"),
        (9, OSError(ENOSPC, "No space left on device"), "ERROR"),
    ):
        caplog.clear()
        voter.snapshot_weighed(size, 100, failure)
        assert [record.levelname for record in caplog.records] == ([level] if level else [])
        if failure is None and level:
            fields = caplog.records[0].odradek_fields  # type: ignore[attr-defined]  # set by EventLog
            assert fields == {
                "snapshot_bytes": size,
                "limit": "metadata.log.max.snapshot.bytes=100",
            }
    assert (voter.snapshot_taken_bytes, voter.snapshots_not_stored) == (9, 2)
    caplog.clear()
    for size in (101, 101, 102):
        voter.snapshot_refused(2, size, 100)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]

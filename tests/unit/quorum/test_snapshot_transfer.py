"""Transfers of snapshots to voters that are too far behind, and what a transfer must not change
while it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from odradek_metadata_quorum.errors import OutcomeUnknown
from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.raft.quorum import PendingProposals
from tests.sim.quorum.world import LIMITS, World
from tests.unit.quorum.left_behind import leader_left_behind, snapshot_chunk
from tests.unit.quorum.lone_voter import LoneVoter


def test_snapshot_chunks_commit_nothing_of_an_unverified_tail() -> None:
    world, old = leader_left_behind()
    world.sent = []
    world.converge()
    chunks = [
        message
        for _, target, message in world.sent
        if message["type"] == wire.INSTALL_SNAPSHOT and target == old.node_id and message["data"]
    ]
    assert len(chunks) >= 3
    assert len(old.unknown) == 5
    assert not any(payload.startswith(b"ghost") for _, payload in world.oracle.entries.values())


def test_an_old_snapshot_sent_again_rolls_nothing_back() -> None:
    """A complete transfer is replayed later, in the name of the present leader: it must not be
    installed.
    """
    world, old = leader_left_behind()
    world.sent = []
    world.converge()
    replay = [
        message
        for _, target, message in world.sent
        if message["type"] == wire.INSTALL_SNAPSHOT and target == old.node_id and message["data"]
    ]
    world.commit(60)
    world.converge()
    applied = old.raft.applied
    leader = world.leader()
    assert leader is not None
    assert leader is not old
    for message in replay:
        world.run(0.02)
        again = dict(message, term=leader.raft.term)
        old.entering(lambda again=again: old.receive(leader.node_id, again))
    world.run(0.3)
    assert old.raft.applied >= applied
    assert old.snapshots.current is not None
    assert old.snapshots.current.offset > replay[0]["offset"]
    world.power_cut(old.node_id)
    restarted = world.start(old.node_id)
    assert restarted.raft.applied > replay[0]["offset"]
    world.commit(3)
    world.converge()


def test_a_damaged_chunk_damages_nothing_but_the_transfer() -> None:
    world, _ = leader_left_behind()
    damaged: list[Message] = []

    def damage(source: int, target: int, message: Message) -> bool:
        if message["type"] == wire.INSTALL_SNAPSHOT and message["position"] > 0 and not damaged:
            message["data"] = bytes(len(message["data"]))
            damaged.append(message)
        return False

    world.drop = damage
    world.converge()
    assert damaged
    assert world.deaths == []
    assert world.counts["snapshot installed"] == 1


def test_a_lost_chunk_is_sent_again_and_the_transfer_ends() -> None:
    for lost_number in range(3):
        world, _ = leader_left_behind()
        seen: list[Message] = []

        def lose(
            source: int,
            target: int,
            message: Message,
            seen: list[Message] = seen,
            lost_number: int = lost_number,
        ) -> bool:
            if message["type"] == wire.INSTALL_SNAPSHOT and message["data"]:
                seen.append(message)
                return len(seen) - 1 == lost_number
            return False

        world.drop = lose
        world.converge()
        assert len(seen) > 3
        assert world.counts["snapshot installed"] == 1


def test_a_quick_reconnect_in_the_middle_of_a_transfer_goes_on() -> None:
    world, old = leader_left_behind()
    leader = world.leader()
    assert leader is not None
    reconnected: list[Message] = []

    def reconnect(source: int, target: int, message: Message) -> bool:
        if message["type"] == wire.INSTALL_SNAPSHOT and message["position"] and not reconnected:
            reconnected.append(message)
            leader.raft.peer_disconnected(old.node_id)
            leader.raft.peer_connected(old.node_id)
            return True
        return False

    world.drop = reconnect
    world.converge()
    assert reconnected
    assert world.counts["snapshot installed"] == 1


def test_an_installed_snapshot_acknowledges_its_own_index_and_keeps_the_tail() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1] * 19, commit=5)
    voter.settle()
    voter.take_sent(wire.SNAPSHOT_REPLY)
    voter.receive(3, wire.INSTALL_SNAPSHOT, **snapshot_chunk(12, 1, term=2))
    voter.world.run(0.05)
    replies = voter.take_sent(wire.SNAPSHOT_REPLY)
    assert [(r["offset"], r["installed"]) for _, r in replies if r["installed"]] == [(12, True)]
    raft = voter.node.raft
    assert (raft.commit_index, raft.applied) == (12, 12)
    assert raft.log.last_index == 20, "entries behind the snapshot may have been acknowledged"


def test_the_leader_counts_an_installed_snapshot_up_to_its_index() -> None:
    voter = LoneVoter()
    term = voter.become_leader(followers=(2,))
    offsets = [voter.node.propose(b"p%d" % number) for number in range(9)]
    voter.settle()
    voter.receive(
        3,
        wire.SNAPSHOT_REPLY,
        term=term,
        offset=offsets[3],
        epoch=term,
        position=0,
        installed=True,
    )
    assert voter.node.raft.progress_of(3)[0] == offsets[3]
    assert voter.node.raft.commit_index == offsets[3]


def test_a_vote_request_right_after_a_torn_install_meets_the_snapshot() -> None:
    """The crash comes between the rename of the snapshot and the reset of the log."""
    world, old = leader_left_behind()
    last_log = (old.raft.log.last_index, old.raft.log.entries[-1][2])
    world.heal()

    def renamed() -> bool:
        return any(name.startswith("rename snapshot-") for name in old.disk.call_names)

    assert not renamed()
    assert world.run_until(renamed, 10.0)
    world._end(old.node_id)
    world.disks[old.node_id].sync_directory()
    world.disks[old.node_id].crash()
    world.sent = []
    node = world.start(old.node_id)
    assert node.raft.applied > last_log[0]
    candidate = next(peer_id for peer_id in world.voters if peer_id != old.node_id)
    node.raft.receive(
        candidate,
        {
            "type": wire.REQUEST_VOTE,
            "term": node.raft.term + 50,
            "last_log_index": last_log[0] + 1,
            "last_log_term": last_log[1],
        },
    )
    world.isolate(old.node_id)
    world.run(0.1)
    assert node.raft.term > 50
    assert not [
        message
        for source, _, message in world.sent
        if source == old.node_id and message["type"] == wire.RESPONSE_VOTE
    ]
    world.converge()


async def test_a_snapshot_that_jumps_over_proposals_fails_them_as_unknown() -> None:
    pending = PendingProposals()
    futures = [pending.add(offset, 3, 10) for offset in (5, 6, 7)]
    pending.restored(6)
    for future in futures[:2]:
        with pytest.raises(OutcomeUnknown, match="snapshot"):
            await future
    assert pending.count == 1
    pending.applied(7, 3)
    assert await futures[2] == 7
    assert (pending.count, pending.payload_bytes) == (0, 0)


def test_a_follower_a_little_behind_a_snapshot_gets_entries_not_the_snapshot() -> None:
    world = World(4, limits=replace(LIMITS, snapshot_interval_entries=30, snapshot_entries_min=25))
    world.start_all()
    leader = world.elect()
    world.commit(22)
    lagging = next(node for node in world.nodes.values() if node is not leader)
    world.isolate(lagging.node_id)
    world.commit(15)
    world.run(0.1)
    assert leader.raft.snapshot is not None
    assert leader.raft.snapshot.offset > lagging.raft.applied
    world.sent = []
    world.converge()
    assert not [m for _, _, m in world.sent if m["type"] == wire.INSTALL_SNAPSHOT]


def test_a_snapshot_is_encoded_on_the_disks_queue_not_on_the_loop() -> None:
    world = World(1, voters=1)
    node = world.start(1)
    encoding: list[int] = []
    capture = node.machine.snapshot

    def watched() -> object:
        encode = capture()

        def encode_later() -> bytes:
            encoding.append(len(node.snapshot_queue.jobs))
            return encode()

        return encode_later

    node.machine.snapshot = watched  # type: ignore[method-assign,assignment]
    world.commit(40)
    world.run(0.1)
    assert encoding == [1], "it ran as the job at the head of the queue"


def test_a_received_snapshot_is_decoded_on_the_disks_thread_and_put_in_place_on_the_loop() -> None:
    """Decoding a large snapshot takes seconds; the event loop responds to its leader meanwhile."""
    world, old = leader_left_behind()
    in_job = False
    decoded_in_job: list[bool] = []
    replaced_in_job: list[bool] = []
    restore, run = old.machine.restore, old.snapshot_queue._run

    def note_restore(offset: int, epoch: int, data: bytes) -> Callable[[], None]:
        decoded_in_job.append(in_job)
        replace = restore(offset, epoch, data)

        def note_replace() -> None:
            replaced_in_job.append(in_job)
            replace()

        return note_replace

    def note_run() -> None:
        nonlocal in_job
        job, done = old.snapshot_queue.jobs[0]

        def noted_job() -> object:
            nonlocal in_job
            in_job = True
            try:
                return job()
            finally:
                in_job = False

        old.snapshot_queue.jobs[0] = (noted_job, done)
        run()

    old.machine.restore = note_restore  # type: ignore[method-assign]
    old.snapshot_queue._run = note_run  # type: ignore[method-assign]
    world.converge()
    assert decoded_in_job == [True]
    assert replaced_in_job == [False]


def test_few_entries_of_many_bytes_are_a_reason_for_a_snapshot() -> None:
    """A log of few large entries would never be trimmed otherwise."""
    limits = replace(LIMITS, snapshot_interval_entries=1000, snapshot_interval_bytes=10_000)
    voter = LoneVoter(limits=limits)
    voter.append(2, 1, (1, 0), [1] * 9, commit=10, text=b"x" * 1_000)
    voter.world.run(0.5)
    assert voter.node.raft.state.snapshot is None
    voter.append(2, 1, (10, 1), [1] * 2, commit=12, text=b"x" * 1_000)
    voter.world.run(0.5)
    snapshot = voter.node.raft.state.snapshot
    assert snapshot is not None
    assert snapshot.offset == 12

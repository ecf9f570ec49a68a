"""The review of the reference prototype (rows R1 to R22), each row a schedule that would break it.

R4 and R5 are about the log's bytes: `test_write_ahead_log.py`. R19 and R20 are about sockets:
`tests/integration/quorum/test_voter_network.py`.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from odradek_metadata_quorum.quorum import (
    CorruptStorage,
    NotLeader,
    OutcomeUnknown,
    ProposalTooLarge,
    Quorum,
    QuorumSettings,
    format_storage,
)
from odradek_metadata_quorum.quorum.network import wire
from odradek_metadata_quorum.quorum.network.wire import Message
from odradek_metadata_quorum.quorum.proposals import PendingProposals
from odradek_metadata_quorum.quorum.storage.vote_file import VoteFile
from odradek_metadata_quorum.quorum.storage.write_ahead_log import WriteAheadLog
from tests.sim.quorum.simulated_disk import PowerCut, SimulatedDisk
from tests.sim.quorum.world import LIMITS, DigestMachine, Oracle, SimulatedNode, World
from tests.unit.quorum.lone_voter import LoneVoter

SNAPSHOT_DATA = b"s" * (16 + DigestMachine.PADDING // 16 * 16)


def snapshot_chunk(offset: int, epoch: int, *, term: int, data: bytes = SNAPSHOT_DATA) -> Message:
    """A snapshot in one chunk."""
    return {
        "term": term,
        "offset": offset,
        "epoch": epoch,
        "total": len(data),
        "crc": zlib.crc32(data),
        "position": 0,
        "data": data,
    }


def leader_left_behind(seed: int = 1) -> tuple[World, SimulatedNode]:
    """A leader cut off with pending entries, while the others commit and compact past its log."""
    world = World(seed)
    world.start_all()
    old = world.elect()
    world.commit(5)
    world.isolate(old.node_id)
    for number in range(5):
        assert old.propose(b"ghost-%d" % number) is not None
    world.run_until(lambda: world.leader() is not old and world.leader() is not None, 10.0)
    for _ in range(8):
        world.commit(10)
    new = world.leader()
    assert new is not None
    assert new.raft._log.first_index > old.raft._log.last_index
    return world, old


# R1


def test_r01_snapshot_chunks_commit_nothing_of_an_unverified_tail() -> None:
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


def test_r01_a_heartbeat_commits_no_further_than_what_it_proves() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1, 1, 1, 1], commit=1)
    voter.append(3, 2, (3, 1), [], commit=5)  # a new leader, whose entries 4 and 5 are others
    voter.settle()
    assert voter.node.raft.commit_index == 3


# R2, R3


class _FailOnce:
    """Fails one call, the n-th of a kind on a file whose name starts so."""

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
def test_r02_r03_a_failed_disk_call_is_the_last_thing_a_voter_does(call: str, prefix: str) -> None:
    """Whatever fails, on any file, in the middle of anything: nothing leaves after it."""
    for skip in (0, 1, 3) if prefix in ("log-", "writing-snapshot", "snapshot-", "") else (0,):
        world = World(7 + skip, segment_bytes_max=1024)
        victim_id = 2
        fault = _FailOnce(call, prefix, skip)
        world.disks[victim_id].fail = fault
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
        world.power_cut(victim_id)  # what the failed call left behind is in doubt now
        world.start(victim_id)
        world.commit(5)
        world.converge()
        assert world.deaths == []


def test_r03_votes_and_entries_survive_a_crash_at_any_step_of_rolling_and_removing() -> None:
    for cut_after in range(60):
        disk = SimulatedDisk(random.Random(cut_after))
        WriteAheadLog.create(disk)
        VoteFile.create(disk)
        disk.sync_directory()
        log, votes = WriteAheadLog(disk, segment_bytes_max=300), VoteFile(disk)
        disk.power_cut_after = cut_after
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


# R6


def test_r06_an_old_snapshot_sent_again_rolls_nothing_back() -> None:
    """A whole transfer is replayed later, by the then leader's name: it must not be installed."""
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


def test_r06_a_damaged_chunk_damages_nothing_but_the_transfer() -> None:
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


# R7


def test_r07_a_lost_chunk_is_sent_again_and_the_transfer_ends() -> None:
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


def test_r07_a_quick_reconnect_in_the_middle_of_a_transfer_goes_on() -> None:
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


# R8


def test_r08_a_single_voter_elects_itself_at_once() -> None:
    world = World(1, voters=1)
    world.start_all()
    assert world.run_until(lambda: world.leader() is not None, 0.1)
    world.commit(3)


# R9


def test_r09_a_late_vote_of_the_last_term_does_not_eat_the_real_one() -> None:
    voter = LoneVoter()
    first = voter.campaign(grants=(2,))
    second = voter.campaign(grants=(2,))
    assert second == first + 1
    voter.receive(2, wire.RESPONSE_VOTE, term=first)
    assert not voter.node.raft.is_leader
    voter.receive(2, wire.RESPONSE_VOTE, term=second)
    assert voter.node.raft.is_leader


def test_r09_a_vote_counts_once() -> None:
    voter = LoneVoter(voters=5)
    term = voter.campaign(grants=(2, 3))
    for _ in range(3):
        voter.receive(2, wire.RESPONSE_VOTE, term=term)
    assert not voter.node.raft.is_leader
    voter.receive(3, wire.RESPONSE_VOTE, term=term)
    assert voter.node.raft.is_leader


# R10


def test_r10_an_installed_snapshot_acknowledges_its_own_index_and_keeps_the_tail() -> None:
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
    assert raft._log.last_index == 20, "entries behind the snapshot may have been acknowledged"


def test_r10_the_leader_counts_an_installed_snapshot_up_to_its_index() -> None:
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


# R11


def test_r11_a_vote_request_right_after_a_torn_install_meets_the_snapshot() -> None:
    """The crash comes between the snapshot's rename and the log's reset."""
    world, old = leader_left_behind()
    last_log = (old.raft._log.last_index, old.raft._log.entries[-1][2])
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


# R12


def test_r12_a_proposal_is_appended_in_its_epoch_by_its_leader_or_refused_at_once() -> None:
    world = World(3)
    world.start_all()
    first = world.elect()
    epoch = first.raft.term
    for node in world.nodes.values():
        if node is not first:
            assert node.raft.propose(b"p", epoch) is None
    assert first.raft.propose(b"p", epoch - 1) is None
    assert first.raft.propose(b"p", epoch + 1) is None
    world.isolate(first.node_id)
    world.run_until(lambda: world.leader() not in (None, first), 10.0)
    second = world.leader()
    assert second is not None
    world.run(2.0)
    assert first.raft.propose(b"p", epoch) is None
    assert second.raft.propose(b"p", epoch) is None
    world.heal()
    for _ in range(20):  # until the first leads again
        world.run_until(lambda: world.leader() is not None, 10.0)
        leader = world.leader()
        assert leader is not None
        if leader is first:
            break
        leader.raft.hand_over(first.node_id)
        world.run(0.5)
    assert first.raft.active_epoch is not None
    assert first.raft.propose(b"p", epoch) is None


# R13


def test_r13_a_stall_of_its_own_deposes_no_leader() -> None:
    """The whole machine stops for 5 s; the leader wakes first and sees its stall, not silence."""
    world = World(5)
    world.start_all()
    leader = world.elect()
    world.commit(3)
    term = leader.raft.term
    world.run(0.05)
    for node in world.nodes.values():
        node.frozen_until = world.now + (5.0 if node is leader else 5.001)
        if node is not leader:
            world.hold(node.node_id, leader.node_id)
    world.run(5.0005)  # the leader has woken, and no answer of the others has reached it yet
    world.heal()
    world.run(3.0)
    assert leader.raft.is_leader
    assert leader.raft.term == term
    assert leader.resignations == []


# R14


def test_r14_a_restarted_voter_helps_nobody_against_a_leader_it_has_not_heard_yet() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1, 1], commit=3)
    voter.settle()
    voter.world.kill(1)
    voter.restart()
    voter.take_sent(wire.PRE_VOTE_REPLY)
    voter.receive(3, wire.PRE_VOTE, term=2, round=1, last_log_index=9, last_log_term=1)
    voter.settle()
    assert [m["granted"] for _, m in voter.take_sent(wire.PRE_VOTE_REPLY)] == [False]


def test_r14_consent_is_void_once_this_voter_has_voted_for_another() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1], commit=1)
    asked = voter.hear_pre_votes(rounds=1)
    raft = voter.node.raft
    reply = {"term": 1, "round": asked[0][1]["round"], "granted": True}
    raft.receive(2, {"type": wire.PRE_VOTE_REPLY, **reply})  # consent, and no step yet
    voter.receive(3, wire.REQUEST_VOTE, term=2, last_log_index=9, last_log_term=1)
    voter.settle()
    assert [peer for peer, _ in voter.take_sent(wire.RESPONSE_VOTE)] == [3]
    assert (raft.term, raft._SyncObj__votedForNodeId) == (2, 3)


def test_r14_consent_of_an_earlier_round_counts_for_nothing() -> None:
    voter = LoneVoter()
    asked = voter.hear_pre_votes(rounds=2)
    term = voter.node.raft.term
    voter.receive(2, wire.PRE_VOTE_REPLY, term=term, round=asked[0][1]["round"], granted=True)
    voter.settle()
    assert voter.node.raft.term == term


def test_r14_an_isolated_voter_returns_without_deposing_the_leader() -> None:
    for seed in range(5):
        world = World(seed)
        world.start_all()
        leader = world.elect()
        world.commit(2)
        away = next(node for node in world.nodes.values() if node is not leader)
        term = leader.raft.term
        world.isolate(away.node_id)
        world.run(10.0)
        world.heal()
        world.run(3.0)
        assert leader.raft.is_leader, seed
        assert {node.raft.term for node in world.nodes.values()} == {term}, seed


# R15


def test_r15_replacing_a_committed_entry_ends_the_process_even_before_it_is_applied() -> None:
    voter = LoneVoter(disk_delay_s=(0.5, 0.5))
    voter.append(2, 1, (1, 0), [1] * 9, commit=10)
    raft = voter.node.raft
    assert (raft.commit_index, raft.applied) == (10, 1)
    voter.append(3, 2, (7, 1), [2, 2], commit=7)
    assert voter.node.dead is not None
    assert "committed" in voter.node.dead


# R16


def test_r16_a_gap_between_state_and_log_ends_the_process() -> None:
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1] * 50, commit=51)
    voter.world.run(0.5)
    raft = voter.node.raft
    assert raft._log.first_index > 20
    raft._SyncObj__raftLastApplied = raft._log.first_index - 5
    voter.append(2, 1, (51, 1), [1], commit=52)
    voter.world.run(0.1)
    assert voter.node.dead is not None
    assert "missing" in voter.node.dead


def test_r16_a_trimmed_log_without_its_snapshot_does_not_start() -> None:
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


# R17


async def test_r17_a_snapshot_that_jumps_over_proposals_fails_them_as_unknown() -> None:
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


# R18


def test_r18_a_follower_a_little_behind_a_snapshot_gets_entries_not_the_snapshot() -> None:
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


def test_r18_a_burst_costs_one_message_a_peer_and_one_sync() -> None:
    voter = LoneVoter()
    voter.become_leader()
    voter.world.run(0.05)
    voter.take_sent(wire.APPEND_ENTRIES)
    syncs = voter.node.barrier.latency.count
    for number in range(50):
        voter.node.propose(b"burst-%d" % number)
    voter.world.run(0.005)
    voter.settle()
    sent = [m for peer, m in voter.take_sent(wire.APPEND_ENTRIES) if peer == 2 and m["entries"]]
    assert [len(message["entries"]) for message in sent] == [50]
    assert voter.node.barrier.latency.count == syncs + 1


def test_r18_a_snapshot_is_encoded_on_the_disks_queue_not_on_the_loop() -> None:
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


# R21


def test_r21_leadership_is_handed_over_at_once_and_elections_still_work_after_it() -> None:
    world = World(2)
    world.start_all()
    leader = world.elect()
    world.commit(3)
    world.run(0.2)
    successor_id = leader.raft.best_successor()
    assert successor_id is not None
    leader.raft.hand_over(successor_id)
    successor = world.nodes[successor_id]
    assert world.run_until(lambda: successor.raft.active_epoch is not None, 0.2)
    assert leader.resignations != []
    world.kill(successor_id)
    assert world.run_until(lambda: world.leader() not in (None, successor), 5.0)
    world.commit(2)


def test_r21_only_the_leader_of_the_term_may_ask_to_campaign() -> None:
    voter = LoneVoter()
    voter.append(2, 3, (1, 0), [3], commit=1)
    voter.receive(3, wire.TIMEOUT_NOW, term=3)
    voter.receive(2, wire.TIMEOUT_NOW, term=2)
    voter.settle()
    assert voter.node.raft.term == 3
    voter.receive(2, wire.TIMEOUT_NOW, term=3)
    voter.settle()
    assert voter.node.raft.term == 4


# R22


class _Recorder:
    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        self.payloads.append(payload)

    def snapshot(self) -> object:
        return lambda: b""

    def restore(self, offset: int, epoch: int, data: bytes) -> None:
        raise AssertionError


async def test_r22_a_proposal_over_the_limit_is_refused_and_one_at_the_limit_commits(
    tmp_path: Path,
) -> None:
    format_storage(tmp_path / "q", cluster_id="c", node_id=1, voters=[1])
    settings = QuorumSettings(
        node_id=1, cluster_id="c", voters={1: ("127.0.0.1", 0)}, data_dir=tmp_path / "q"
    )
    machine = _Recorder()
    quorum = Quorum(settings, machine)  # type: ignore[arg-type]
    active = asyncio.Event()
    quorum.add_leadership_listener(
        on_active=lambda epoch: active.set(), on_resigned=lambda epoch: None
    )
    await quorum.start()
    async with asyncio.timeout(5):
        await active.wait()
        with pytest.raises(ProposalTooLarge, match="split it"):
            await quorum.propose(b"x" * (1 << 20) + b"x", epoch=1, timeout_s=5)
        with pytest.raises(NotLeader):
            await quorum.propose(b"x", epoch=2, timeout_s=5)
        await quorum.propose(b"x" * (1 << 20), epoch=1, timeout_s=5)
        await quorum.stop()
    assert [len(payload) for payload in machine.payloads] == [1 << 20]


def test_r22_the_largest_entry_travels_in_one_message() -> None:
    voter = LoneVoter()
    voter.become_leader()
    voter.world.run(0.2)
    voter.take_sent(wire.APPEND_ENTRIES)
    voter.node.propose(b"x" * (1 << 20))
    voter.world.run(0.05)
    sent = [m for peer, m in voter.take_sent(wire.APPEND_ENTRIES) if peer == 2 and m["entries"]]
    assert [len(message["entries"]) for message in sent] == [1]


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

"""A proposal is appended once, in its epoch and within the limits, and has one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek_metadata_quorum.errors import NotLeader, ProposalTooLarge
from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.raft.quorum import HeldProposal, Quorum
from odradek_metadata_quorum.settings import QuorumSettings
from odradek_metadata_quorum.storage.data_directory import format_storage
from tests.sim.quorum.world import World
from tests.unit.quorum.lone_voter import LoneVoter


class _Recorder:
    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        self.payloads.append(payload)

    def snapshot(self) -> object:
        return lambda: b""

    def restore(self, offset: int, epoch: int, data: bytes) -> Callable[[], None]:
        raise AssertionError


def test_a_proposal_is_appended_in_its_epoch_by_its_leader_or_refused_at_once() -> None:
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


def test_a_burst_costs_one_message_a_peer_and_one_sync() -> None:
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


async def test_a_proposal_over_the_limit_is_refused_and_one_at_the_limit_commits(
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
    async with asyncio.timeout(30):
        await active.wait()
        with pytest.raises(ProposalTooLarge, match="divide it"):
            await quorum.propose(b"x" * (1 << 20) + b"x", epoch=1, timeout_s=30)
        with pytest.raises(NotLeader):
            await quorum.propose(b"x", epoch=2, timeout_s=30)
        await quorum.propose(b"x" * (1 << 20), epoch=1, timeout_s=30)
        await quorum.stop()
    assert [len(payload) for payload in machine.payloads] == [1 << 20]


def test_the_largest_entry_travels_in_one_message() -> None:
    voter = LoneVoter()
    voter.become_leader()
    voter.world.run(0.2)
    voter.take_sent(wire.APPEND_ENTRIES)
    voter.node.propose(b"x" * (1 << 20))
    voter.world.run(0.05)
    sent = [m for peer, m in voter.take_sent(wire.APPEND_ENTRIES) if peer == 2 and m["entries"]]
    assert [len(message["entries"]) for message in sent] == [1]


async def test_a_proposal_that_waited_for_a_hand_over_is_appended_unless_its_caller_has_gone() -> (
    None
):
    loop = asyncio.get_running_loop()
    appended: list[tuple[bytes, int]] = []
    outcome: asyncio.Future[int] = loop.create_future()

    def append(payload: bytes, epoch: int) -> tuple[int, asyncio.Future[int]]:
        appended.append((payload, epoch))
        if payload == b"late":
            raise NotLeader("another leads", leader_id=None)
        return 7, outcome

    waiting, gone, late = (
        HeldProposal(payload=payload, epoch=3, admitted=loop.create_future())
        for payload in (b"waiting", b"gone", b"late")
    )
    gone.admitted.cancel()
    for proposal in (waiting, gone, late):
        proposal.admit(append)
    assert appended == [(b"waiting", 3), (b"late", 3)]
    assert waiting.admitted.result() == (7, outcome)
    with pytest.raises(NotLeader):
        late.admitted.result()

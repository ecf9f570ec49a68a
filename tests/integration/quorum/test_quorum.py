"""Three quorum nodes on one event loop: proposals, leadership, feed, status, restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest

from odradek.embedded import free_ports
from odradek_metadata_quorum.errors import (
    NotLeader,
    OutcomeUnknown,
    QuorumOverloaded,
    StorageMismatch,
)
from odradek_metadata_quorum.raft.quorum import Quorum
from odradek_metadata_quorum.raft.shell import CommittedEntry, QuorumRole, QuorumStatus
from odradek_metadata_quorum.settings import QuorumSettings
from odradek_metadata_quorum.storage.data_directory import format_storage

WAIT_S_MAX: Final = 60.0  # so high that a slow machine does not exceed it


class History:
    """A state machine that keeps all payloads."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, bytes]] = []

    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        self.entries.append((offset, epoch, payload))

    def snapshot(self) -> Callable[[], bytes]:
        entries = list(self.entries)
        return lambda: msgpack.packb(entries)

    def restore(self, offset: int, epoch: int, data: bytes) -> Callable[[], None]:
        entries = [(at, term, payload) for at, term, payload in msgpack.unpackb(data)]

        def replace() -> None:
            self.entries = entries

        return replace


class Cluster:
    def __init__(self, tmp_path: Path, voters: int, **settings: Any) -> None:
        self._tmp_path = tmp_path
        self._settings = settings
        self._voters = {
            number + 1: ("127.0.0.1", port) for number, port in enumerate(free_ports(voters))
        }
        self.quorums: dict[int, Quorum] = {}
        self.machines: dict[int, History] = {}
        self.events: list[tuple[str, int, int]] = []
        for node_id in self._voters:
            format_storage(
                tmp_path / str(node_id), cluster_id="c", node_id=node_id, voters=self._voters
            )

    async def start(self, node_id: int) -> Quorum:
        machine = self.machines[node_id] = History()
        quorum = self.quorums[node_id] = Quorum(
            QuorumSettings(
                node_id=node_id,
                cluster_id="c",
                voters=self._voters,
                data_dir=self._tmp_path / str(node_id),
                listen_port=self._voters[node_id][1],
                **self._settings,
            ),
            machine,
        )
        quorum.add_leadership_listener(
            on_active=lambda epoch: self.events.append(("active", node_id, epoch)),
            on_resigned=lambda epoch: self.events.append(("resigned", node_id, epoch)),
        )
        await quorum.start()
        return quorum

    async def stop(self, node_id: int) -> None:
        await self.quorums.pop(node_id).stop()

    async def leader(self) -> Quorum:
        async with asyncio.timeout(WAIT_S_MAX):
            while True:
                for quorum in self.quorums.values():
                    if quorum.active_epoch is not None:
                        return quorum
                await asyncio.sleep(0.005)


@asynccontextmanager
async def cluster_of(tmp_path: Path, voters: int, **settings: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path, voters, **settings)
    try:
        for node_id in list(cluster._voters):
            await cluster.start(node_id)
        yield cluster
    finally:
        for node_id in list(cluster.quorums):
            await cluster.stop(node_id)


async def propose(quorum: Quorum, text: str) -> int:
    assert quorum.active_epoch is not None
    return await quorum.propose(text.encode(), epoch=quorum.active_epoch, timeout_s=WAIT_S_MAX)


async def test_every_member_serves_the_same_feed_of_applied_entries(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        leader = await cluster.leader()
        offsets = [await propose(leader, f"e{number}") for number in range(5)]

        def is_everywhere(status: QuorumStatus) -> bool:
            synced = {status.log_synced_offset, *(peer.match_index for peer in status.peers)}
            return synced == {offsets[-1]}

        for quorum in cluster.quorums.values():
            assert await quorum.wait_applied(offsets[-1], WAIT_S_MAX) >= offsets[-1]
            entries = quorum.entries(0, 1 << 20)
            assert entries is not None
            assert [e.payload for e in entries] == [b""] + [b"e%d" % n for n in range(5)]
            assert [e.offset for e in entries] == list(range(2, 8))
            assert quorum.entries(offsets[-1] + 1, 100) == []
            assert quorum.entries(3, 1) == [CommittedEntry(3, leader.term, b"e0")]
            assert await quorum.latest_snapshot() is None
        async with asyncio.timeout(WAIT_S_MAX):
            # A follower may apply an entry before the leader has read its acknowledgement of this entry, and two
            # followers commit an entry that the leader has not synced.
            while not is_everywhere(status := leader.status()):  # noqa: ASYNC110  no event tells of it
                await asyncio.sleep(0.005)
        assert status.role is QuorumRole.LEADER
        assert status.active
        assert status.applied == offsets[-1]
        assert status.sync.count > 0


async def test_a_trimmed_feed_names_the_snapshot_and_goes_on_behind_it(tmp_path: Path) -> None:
    settings = {"snapshot_interval_entries": 20, "snapshot_entries_min": 5}
    async with cluster_of(tmp_path, 1, **settings) as cluster:
        leader = await cluster.leader()
        for number in range(60):
            await propose(leader, f"e{number}")
        async with asyncio.timeout(WAIT_S_MAX):
            while leader.entries(0, 100) is not None:  # noqa: ASYNC110  no event tells of a trim
                await asyncio.sleep(0.005)
            rest = None
            while (
                rest is None
            ):  # the next snapshot may trim behind this one: a reader takes the newer one
                snapshot = await leader.latest_snapshot()
                assert snapshot is not None
                shared = await asyncio.gather(*(leader.latest_snapshot() for _ in range(3)))
                same = [one for one in shared if one and one.offset == snapshot.offset]
                assert {id(one) for one in same} <= {
                    id(snapshot)
                }  # a newer snapshot may exist by now
                rest = leader.entries(snapshot.offset + 1, 1 << 20)
        restored = History()
        restored.restore(snapshot.offset, snapshot.epoch, snapshot.data)()
        texts = [payload for *_, payload in restored.entries] + [entry.payload for entry in rest]
        assert texts == [b"e%d" % number for number in range(60)]


async def test_leadership_moves_in_order_and_proposals_wait_for_it(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        leader = await cluster.leader()
        epoch = leader.active_epoch
        assert epoch is not None
        await propose(leader, "before")
        async with asyncio.TaskGroup() as tasks:
            moving = tasks.create_task(leader.transfer_leadership(WAIT_S_MAX))
            await asyncio.sleep(0)
            during = tasks.create_task(
                asyncio.wait_for(_refused(leader, b"during", epoch), WAIT_S_MAX), name="during"
            )
        assert moving.result()
        assert during.result()
        assert ("resigned", leader.status().node_id, epoch) in cluster.events
        successor = await cluster.leader()
        assert successor is not leader
        assert successor.term > epoch
        await propose(successor, "after")


async def _refused(quorum: Quorum, payload: bytes, epoch: int) -> bool:
    try:
        await quorum.propose(payload, epoch=epoch, timeout_s=WAIT_S_MAX)
    except NotLeader:
        return True
    return False


async def test_proposals_held_by_a_transfer_that_fails_are_appended_in_order(
    tmp_path: Path,
) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        leader = await cluster.leader()
        epoch = leader.active_epoch
        assert epoch is not None
        leader._voter.node.best_successor = lambda: None  # type: ignore[method-assign]
        async with asyncio.TaskGroup() as tasks:
            moving = tasks.create_task(leader.transfer_leadership(0.2))
            await asyncio.sleep(0)
            proposals = [
                tasks.create_task(
                    leader.propose(b"p%d" % number, epoch=epoch, timeout_s=WAIT_S_MAX)
                )
                for number in range(5)
            ]
        assert not moving.result()
        offsets = [task.result() for task in proposals]
        assert offsets == list(range(offsets[0], offsets[0] + 5))
        assert leader.active_epoch == epoch


async def test_without_a_majority_a_proposal_ends_as_unknown(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        leader = await cluster.leader()
        epoch = leader.active_epoch
        assert epoch is not None
        others = [node_id for node_id, quorum in cluster.quorums.items() if quorum is not leader]
        for node_id in others:
            await cluster.stop(node_id)
        with pytest.raises(OutcomeUnknown):
            await leader.propose(b"p", epoch=epoch, timeout_s=0.2)
        with pytest.raises(OutcomeUnknown, match="is no longer the leader"):
            await leader.propose(b"p", epoch=epoch, timeout_s=5)
        with pytest.raises(NotLeader):
            await leader.propose(b"p", epoch=epoch, timeout_s=5)
        assert cluster.events[-1][0] == "resigned"
        for node_id in others:
            await cluster.start(node_id)
        await propose(await cluster.leader(), "again")


async def test_what_waits_is_bounded(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1, pending_proposals_max=10) as cluster:
        leader = await cluster.leader()
        results = await asyncio.gather(
            *(propose(leader, f"p{number}") for number in range(15)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, QuorumOverloaded)]
        assert len(refused) == 5
        with pytest.raises(ValueError, match="empty"):
            await leader.propose(b"", epoch=1, timeout_s=1)


async def test_a_restart_restores_the_state_and_a_second_process_is_refused(tmp_path: Path) -> None:
    settings = {"snapshot_interval_entries": 20, "snapshot_entries_min": 5}
    async with cluster_of(tmp_path, 1, **settings) as cluster:
        leader = await cluster.leader()
        for number in range(50):
            await propose(leader, f"e{number}")
        with pytest.raises(StorageMismatch, match="locked"):
            await cluster.start(1)
        cluster.quorums[1] = leader
        await cluster.stop(1)
        await cluster.start(1)
        again = await cluster.leader()
        assert again is not leader
        assert [payload for *_, payload in cluster.machines[1].entries] == [
            b"e%d" % number for number in range(50)
        ]
        await propose(again, "more")

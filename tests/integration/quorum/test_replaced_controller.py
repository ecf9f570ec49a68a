"""A controller that lost its disk or host is replaced by an empty one with the same id, as
docs/operations.md describes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from odradek.embedded import free_ports
from odradek_metadata_quorum.raft.shell import QuorumRole
from odradek_metadata_quorum.storage.data_directory import format_storage
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin
from tests.integration.quorum.controllers import (
    CLUSTER_ID,
    Controllers,
    controllers,
    start_broker,
    until,
)


async def create(found: Controllers, name: str) -> None:
    heart = await start_broker(found)
    answer = await found.admin(await found.active()).CreateTopics(
        admin.CreateTopicsRequest(
            topics=[admin.NewTopic(name=name, partition_count=1, replication_factor=1)]
        )
    )
    assert answer.topics[0].error_code == 0, answer
    heart.close()


def role(found: Controllers, node: int) -> QuorumRole:
    return found.processes[node]._quorum.role


def connected(found: Controllers, one: int, other: int) -> bool:
    peers = found.processes[one]._quorum.status().peers
    return next(peer.connected for peer in peers if peer.node_id == other)


def elections_tried(found: Controllers, node: int) -> int:
    """Return how many rounds of pre-votes a node has sent to the other voters."""
    return found.processes[node]._quorum._voter.node.elections.pre_vote.round


async def test_a_controller_that_lost_its_host_votes_again_once_it_has_caught_up(
    tmp_path: Path,
) -> None:
    async with controllers(tmp_path, 3) as found:
        await create(found, "before")
        await until(lambda: all(found.image(node).topic("before") for node in range(3)))
        active = await found.active()
        lost = next(node for node in range(3) if node != active)
        others = [node for node in range(3) if node != lost]

        await found.stop(lost)
        shutil.rmtree(tmp_path / str(lost))
        [found.raft_ports[lost]], [found.rpc_ports[lost]] = free_ports(1), free_ports(1)
        for node in others:  # restarted with the new address, one after the other
            await found.stop(node)
            found.start(node)
            await found.active()

        # With one of the others away and no leader there, the empty one makes no majority: it may
        # have voted for anybody before.
        kept, away = others
        await found.stop(away)
        await found.stop(kept)
        found.start(kept)
        format_storage(tmp_path / str(lost), cluster_id=CLUSTER_ID, node_id=lost, voters=range(3))
        found.start(lost, **{"storage.format.if.empty": "false"})
        await until(lambda: found.processes[lost].ports.get("RAFT"))
        await until(lambda: connected(found, kept, lost))
        rounds = elections_tried(found, kept)
        await until(lambda: elections_tried(found, kept) >= rounds + 3)
        assert role(found, lost) is QuorumRole.JOINING
        assert role(found, kept) is not QuorumRole.LEADER
        assert "may not vote" in found.processes[lost]._why_not_ready()

        found.start(away)
        await found.active()
        await until(lambda: role(found, lost) is not QuorumRole.JOINING)
        await until(lambda: found.image(lost).topic("before") is not None)

        await found.stop(away)
        await create(found, "after")
        await until(lambda: found.image(lost).topic("after") is not None)
        assert found.image(lost).topic("before") is not None

"""Makes a leader that was cut off and whose log is too far behind, and snapshots for it."""

from __future__ import annotations

import zlib

from odradek_metadata_quorum.network.wire import Message
from tests.sim.quorum.oracle import DigestMachine
from tests.sim.quorum.simulated_node import SimulatedNode
from tests.sim.quorum.world import World

SNAPSHOT_DATA = b"s" * (16 + DigestMachine.PADDING // 16 * 16)


def snapshot_chunk(offset: int, epoch: int, *, term: int, data: bytes = SNAPSHOT_DATA) -> Message:
    """Return a snapshot in one chunk."""
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
    """Return a leader that was cut off with uncommitted entries while the other voters trimmed
    their logs past its end.
    """
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
    assert new.raft.log.first_index > old.raft.log.last_index
    return world, old

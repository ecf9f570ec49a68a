"""Who leads now, told along with an error (KIP-951): tagged fields that Produce and Fetch share."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from odradek_protocol.primitives import write_compact_string, write_uvarint

_LEADER: Final = struct.Struct(">iib")
_INT32: Final = struct.Struct(">i")


class CurrentLeader(NamedTuple):
    """Of one partition; -1 when there is none."""

    broker_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """Where a leader that was named listens, on the listener that the client came by."""

    broker_id: int
    host: str
    port: int
    rack: str | None


def write_current_leader(out: bytearray, tag: int, leader: CurrentLeader) -> None:
    """One tagged field: tag, size, and the struct with no tags of its own."""
    write_uvarint(out, tag)
    out.append(_LEADER.size)
    out += _LEADER.pack(leader.broker_id, leader.leader_epoch, 0)


def write_node_endpoints(out: bytearray, tag: int, endpoints: Sequence[NodeEndpoint]) -> None:
    """One tagged field: tag, size, and the array."""
    array = bytearray()
    write_uvarint(array, len(endpoints) + 1)
    for one in endpoints:
        array += _INT32.pack(one.broker_id)
        write_compact_string(array, one.host)
        array += _INT32.pack(one.port)
        write_compact_string(array, one.rack)
        array.append(0)
    write_uvarint(out, tag)
    write_uvarint(out, len(array))
    out += array

"""Encoders of the tagged fields in which Produce and Fetch responses name the current leader after an error
(KIP-951).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from odradek_protocol.primitives import write_compact_string, write_uvarint

_LEADER: Final = struct.Struct(">iib")
_INT32: Final = struct.Struct(">i")


class CurrentLeader(NamedTuple):
    """The current leader of a partition. `broker_id` is -1 if the partition has no leader."""

    broker_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """The address of a leader: that of the leader's listener with the same name as the listener to which the client is
    connected.
    """

    broker_id: int
    host: str
    port: int
    rack: str | None


def write_current_leader(out: bytearray, tag: int, leader: CurrentLeader) -> None:
    """Append a tagged field with the current leader: the tag, the size, and the struct, which has no tagged fields."""
    write_uvarint(out, tag)
    out.append(_LEADER.size)
    out += _LEADER.pack(leader.broker_id, leader.leader_epoch, 0)


def write_node_endpoints(out: bytearray, tag: int, endpoints: Sequence[NodeEndpoint]) -> None:
    """Append a tagged field with the addresses of leaders: the tag, the size, and the array of endpoints."""
    array = bytearray()
    write_uvarint(array, len(endpoints) + 1)
    for endpoint in endpoints:
        array += _INT32.pack(endpoint.broker_id)
        write_compact_string(array, endpoint.host)
        array += _INT32.pack(endpoint.port)
        write_compact_string(array, endpoint.rack)
        array.append(0)
    write_uvarint(out, tag)
    write_uvarint(out, len(array))
    out += array

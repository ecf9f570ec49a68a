"""Current leaders in responses with an error (KIP-951): tagged fields that Produce and Fetch share."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from odradek_protocol.primitives import write_compact_string, write_uvarint

_LEADER: Final = struct.Struct(">iib")
_INT32: Final = struct.Struct(">i")


class CurrentLeader(NamedTuple):
    """The current leader of a partition; -1 if there is none."""

    broker_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """The address of a leader on the listener that the client uses."""

    broker_id: int
    host: str
    port: int
    rack: str | None


def write_current_leader(out: bytearray, tag: int, leader: CurrentLeader) -> None:
    """Append a tagged field with the current leader: tag, size, and the struct without tagged fields in it."""
    write_uvarint(out, tag)
    out.append(_LEADER.size)
    out += _LEADER.pack(leader.broker_id, leader.leader_epoch, 0)


def write_node_endpoints(out: bytearray, tag: int, endpoints: Sequence[NodeEndpoint]) -> None:
    """Append a tagged field with the leaders' endpoints: tag, size, and the array."""
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

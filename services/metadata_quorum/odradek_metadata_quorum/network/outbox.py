"""Outgoing messages: each waits until the state that it reports is on disk, and for nothing else.

What a message reports, and therefore waits for:

    append_entries            term and vote; the log up to its last entry, or to the entry that it names
    next_node_idx             term and vote; the log up to what it acknowledges, nothing if it refuses
    snapshot_reply            term and vote; the log up to the snapshot, once that is installed
    request_vote, pre_vote_reply, response_vote, install_snapshot, timeout_now
                              term and vote (a snapshot is on disk before it is sent)
    pre_vote                  nothing: it asks about a term that no voter is in yet
    join_query, join_reply    everything noted so far: `joining.py` relies on their order

A heartbeat thus leaves at once while entries wait for a slow disk, and so does its response: leadership
does not depend on how long a write takes. Messages that wait for the same write keep their order; one
that waits for less may overtake them, which Raft tolerates, as it tolerates repeated messages.

Messages are encoded at once, because the engine may change their entries later. After the barrier the link to the
peer takes the frame, or drops it if the link is down or its queue is full; Raft repeats the messages that matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.wire import Message, encode
from odradek_metadata_quorum.storage.write_barrier import WriteBarrier

SendFrame = Callable[[int, bytes], None]


class Outbox:
    """The queue of all messages from the Raft engine to the network."""

    def __init__(self, barrier: WriteBarrier, send_frame: SendFrame, *, bytes_max: int) -> None:
        self._barrier = barrier
        self._send_frame = send_frame
        self._bytes_max = bytes_max
        # (the value that the barrier's `durable` must reach first, peer, frame).
        self._waiting: deque[tuple[int, int, bytes]] = deque()
        self._waiting_bytes: dict[int, int] = {}

    def waiting_bytes(self, peer_id: int) -> int:
        """Return how many bytes for one peer wait for a write to the disk."""
        return self._waiting_bytes.get(peer_id, 0)

    def send(self, peer_id: int, message: Message) -> bool:
        """Send or queue a message. Returns False if it was dropped because the peer's part of the queue is full."""
        needed = self._needed(message)
        if self._may_leave(needed):
            self._send_frame(peer_id, encode(message))
            return True
        waiting = self._waiting_bytes.get(peer_id, 0)
        if waiting > self._bytes_max:
            return False
        frame = encode(message)
        self._waiting.append((needed, peer_id, frame))
        self._waiting_bytes[peer_id] = waiting + len(frame)
        return True

    def flush(self) -> None:
        """Send the messages whose state is now on disk."""
        waiting, self._waiting = self._waiting, deque()
        for needed, peer_id, frame in waiting:
            if self._may_leave(needed):
                self._waiting_bytes[peer_id] -= len(frame)
                self._send_frame(peer_id, frame)
            else:
                self._waiting.append((needed, peer_id, frame))

    def _needed(self, message: Message) -> int:
        """Return the value that the write barrier's `durable` must reach before the message may be sent. The docstring
        of the module lists what each type of message waits for.
        """
        barrier = self._barrier
        kind = message["type"]
        if kind == wire.PRE_VOTE:
            return 0
        if kind in (wire.JOIN_QUERY, wire.JOIN_REPLY):
            return barrier.noted
        return max(barrier.needed_for_vote(), barrier.needed_for_index(_named_index(message)))

    def _may_leave(self, needed: int) -> bool:
        return self._barrier.durable >= needed


def _named_index(message: Message) -> int:
    """Return the index of the last log entry that the sender has according to the message; 0 if the message has no
    index.
    """
    kind = message["type"]
    if kind == wire.APPEND_ENTRIES:
        return int(message["prevLogIdx"]) + len(message["entries"])
    if kind == wire.NEXT_NODE_IDX and message["success"]:
        return int(message["next_node_idx"]) - 1
    if kind == wire.SNAPSHOT_REPLY and message["installed"]:
        return int(message["offset"])
    return 0

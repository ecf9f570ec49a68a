"""The queue of outgoing messages. A message waits until the state that it reports is on disk, and for nothing else.

The state that must be on disk before a message is sent:

    append_entries            term and vote; the log up to the last entry of the message or, without entries,
                              up to prevLogIdx
    next_node_idx             term and vote; the log up to the acknowledged entry, if it acknowledges one
    snapshot_reply            term and vote; the log up to the snapshot's offset, if it reports an installation
    request_vote, pre_vote_reply, response_vote, install_snapshot, timeout_now
                              term and vote (a snapshot is always on disk before it is sent)
    pre_vote                  nothing, because a pre-vote changes no voter's term or vote
    join_query, join_reply    all changes so far, so that they are sent after all earlier messages

So a heartbeat and its response are sent at once while entries wait for a slow disk: keeping the leadership does not
depend on the duration of a write. Messages that wait for the same write keep their order. A message that need not wait
may overtake them, which Raft tolerates, as it tolerates repeated messages.

A message is encoded at once, because the engine may change its entries later. When the state is on disk, the message is
passed to the connection. If the peer is not connected or its queue is full, the message is dropped. Raft repeats all
messages that matter.
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
        # (position, peer, frame): the frame may be sent once the barrier's `durable` reaches the position.
        self._waiting: deque[tuple[int, int, bytes]] = deque()
        self._waiting_bytes: dict[int, int] = {}

    def waiting_bytes(self, peer_id: int) -> int:
        """Return the size in bytes of the messages to a peer that wait for a disk write."""
        return self._waiting_bytes.get(peer_id, 0)

    def send(self, peer_id: int, message: Message) -> bool:
        """Send or queue a message. Return False if it was dropped, because too many bytes for this peer are queued."""
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
        """Send the queued messages whose state is on disk now."""
        waiting, self._waiting = self._waiting, deque()
        for needed, peer_id, frame in waiting:
            if self._may_leave(needed):
                self._waiting_bytes[peer_id] -= len(frame)
                self._send_frame(peer_id, frame)
            else:
                self._waiting.append((needed, peer_id, frame))

    def _needed(self, message: Message) -> int:
        """Return the value of the write barrier's `durable` at which the message may be sent.

        The docstring of the module lists the state that each type of message waits for.
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
    """Return the index up to which the sender has the log according to the message; 0 if the message states no
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

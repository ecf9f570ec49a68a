"""Messages that wait for the write barrier, in order, and leave once it has passed.

Encoded at once, because the engine goes on changing what a message was made of. In front of the
barrier there is one queue for all peers: order between two messages to a peer never changes. Behind
it the link to the peer takes the frame or, when its own queue is full or it is down, drops it; Raft
sends again what matters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from odradek_metadata_quorum.quorum.network.wire import Message, encode
from odradek_metadata_quorum.quorum.storage.write_barrier import WriteBarrier

SendFrame = Callable[[int, bytes], None]


class Outbox:
    """The only way from the engine to the network."""

    def __init__(self, barrier: WriteBarrier, send_frame: SendFrame, *, bytes_max: int) -> None:
        self._barrier = barrier
        self._send_frame = send_frame
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, int, bytes]] = deque()  # (needs durable, peer, frame)
        self._waiting_bytes: dict[int, int] = {}

    def waiting_bytes(self, peer_id: int) -> int:
        """Bytes for one peer that the barrier still holds back."""
        return self._waiting_bytes.get(peer_id, 0)

    def send(self, peer_id: int, message: Message) -> bool:
        """Queue it; False if it was dropped because the peer's share of the queue is full."""
        waiting = self._waiting_bytes.get(peer_id, 0)
        if waiting > self._bytes_max:
            return False
        frame = encode(message)
        if not self._waiting and self._may_leave(self._barrier.noted):
            self._send_frame(peer_id, frame)
            return True
        self._waiting.append((self._barrier.noted, peer_id, frame))
        self._waiting_bytes[peer_id] = waiting + len(frame)
        return True

    def flush(self) -> None:
        """Let go of what has become durable."""
        waiting = self._waiting
        while waiting and self._may_leave(waiting[0][0]):
            _, peer_id, frame = waiting.popleft()
            self._waiting_bytes[peer_id] -= len(frame)
            self._send_frame(peer_id, frame)

    def _may_leave(self, needed: int) -> bool:
        return self._barrier.durable >= needed

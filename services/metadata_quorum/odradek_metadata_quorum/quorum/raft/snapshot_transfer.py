"""InstallSnapshot: how a leader's snapshot reaches a voter whose next entry is trimmed.

Every chunk says which snapshot it is of (offset, epoch, total size, CRC) and where it belongs. The
receiver writes it to a file of its own and answers with the position it wants next; a chunk from
anywhere else changes nothing. The sender has one chunk in flight: it sends the next when an answer
moves the wanted position, and the wanted one again when no answer moved it for `resend_s`. Without
anything to send it sends an empty chunk, which is a leader's heartbeat.

A chunk proves nothing about the log: it moves no commit index and acknowledges no entry. Only the
whole snapshot, checked against its CRC and newer than what is applied, replaces the state; then the
answer says `installed`, which acknowledges exactly the entries up to its offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from odradek_metadata_quorum.quorum.network.wire import INSTALL_SNAPSHOT, Message
from odradek_metadata_quorum.quorum.storage.disk_queue import DiskQueue
from odradek_metadata_quorum.quorum.storage.snapshot_store import (
    OpenSnapshot,
    SnapshotId,
    SnapshotNotWritten,
    SnapshotStore,
)

Decoded = Callable[[], None]
"""Puts a snapshot that was decoded in place, on the loop."""


@dataclass(slots=True)
class _InFlight:
    position: int
    sent_s: float


class SnapshotSender:
    """One transfer to one voter; lives on the leader, for one term."""

    def __init__(self, opened: OpenSnapshot, *, chunk_bytes: int, resend_s: float) -> None:
        self._opened = opened
        self._chunk_bytes = chunk_bytes
        self._resend_s = resend_s
        self._wanted = 0
        self._in_flight: _InFlight | None = None

    @property
    def snapshot(self) -> SnapshotId:
        """What is being sent."""
        return self._opened.snapshot

    def next_message(self, term: int, now_s: float) -> Message:
        """The chunk that is due, or an empty one, which is but a heartbeat."""
        flight = self._in_flight
        due = (
            flight is None
            or flight.position != self._wanted
            or now_s - flight.sent_s >= self._resend_s
        )
        data = self._opened.chunk(self._wanted, self._chunk_bytes) if due else b""
        if due:
            self._in_flight = _InFlight(self._wanted, now_s)
        return {
            "type": INSTALL_SNAPSHOT,
            "term": term,
            "offset": self.snapshot.offset,
            "epoch": self.snapshot.epoch,
            "total": self.snapshot.size,
            "crc": self.snapshot.crc,
            "position": self._wanted,
            "data": data,
        }

    def answered(self, position: int) -> bool:
        """The receiver wants this position next; True if it moved, so that a chunk is due."""
        if not 0 <= position <= self.snapshot.size or position == self._wanted:
            return False
        self._wanted = position
        return True

    def close(self) -> None:
        """Release the file."""
        self._opened.close()


class SnapshotReceiver:
    """What arrives, one snapshot at a time; writes, and decodes, on the snapshots' disk queue."""

    def __init__(
        self,
        store: SnapshotStore,
        queue: DiskQueue,
        decode: Callable[[SnapshotId, bytes], Decoded],
        *,
        bytes_max: int,
    ) -> None:
        self._store = store
        self._queue = queue
        self._decode = decode
        self._bytes_max = bytes_max
        self._snapshot: SnapshotId | None = None
        self._position = 0  # written or being written
        self._busy = False

    def wanted(self, snapshot: SnapshotId) -> int:
        """The position that is wanted next of this snapshot."""
        return self._position if snapshot == self._snapshot else 0

    def receive(
        self,
        snapshot: SnapshotId,
        position: int,
        data: bytes,
        *,
        on_stored: Callable[[], None],
        on_whole: Callable[[SnapshotId, Decoded], None],
        on_damaged: Callable[[SnapshotId], None],
        on_no_room: Callable[[OSError], None],
    ) -> None:
        """Take a chunk if it is the wanted one; then one of the calls follows, on the loop.

        Without room on the disk nothing is answered: the leader begins again after its pause.
        """
        is_heartbeat = not data and snapshot.size > 0
        if self._busy or is_heartbeat or snapshot.size > self._bytes_max:
            on_stored()
            return
        begins = snapshot != self._snapshot
        wanted = 0 if begins else self._position
        if position != wanted or position + len(data) > snapshot.size:
            on_stored()  # says where to begin, or to go on
            return
        self._snapshot, self._position = snapshot, position
        self._busy = True
        whole = position + len(data) == snapshot.size

        def write() -> Decoded | SnapshotNotWritten | None:
            try:
                if begins:
                    self._store.begin_receiving(snapshot)
                self._store.receive(position, data)
                received = self._store.finish_receiving(snapshot) if whole else None
            except SnapshotNotWritten as error:
                return error
            return None if received is None else self._decode(snapshot, received)

        def written(result: Decoded | SnapshotNotWritten | None) -> None:
            self._busy = False
            if isinstance(result, SnapshotNotWritten):
                self._snapshot, self._position = None, 0
                on_no_room(result)
                return
            self._position = position + len(data)
            if not whole:
                on_stored()
                return
            self._snapshot, self._position = None, 0
            if result is None:
                on_damaged(snapshot)
            else:
                on_whole(snapshot, result)

        self._queue.submit(write, written)

"""InstallSnapshot: the transfer of the leader's snapshot to a follower whose next entry was trimmed from the log.

Each chunk has the identity of its snapshot (offset, epoch, total size, CRC) and its position. The follower writes the
chunk to a file, and responds with the position that it needs next. A chunk at any other position has no effect. The
leader sends one chunk at a time: it sends the next chunk when a response has another needed position, and repeats a
chunk if the needed position has not changed for `resend_s`. If no chunk is due, the leader sends an empty one as a
heartbeat.

A chunk proves nothing about the log, so it does not raise the commit index and its response acknowledges no entry. The
state is replaced only by a complete snapshot that is checked against its CRC, durable, and newer than the applied
state. Then the response has `installed`, which acknowledges the entries up to the snapshot's offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.wire import INSTALL_SNAPSHOT, Message
from odradek_metadata_quorum.raft.engine import Engine
from odradek_metadata_quorum.raft.log_matching import LogMatching
from odradek_metadata_quorum.raft.replicated_state import ReplicatedState
from odradek_metadata_quorum.raft.shell import RaftEvents
from odradek_metadata_quorum.storage.disk import DiskQueue
from odradek_metadata_quorum.storage.snapshot_store import (
    OpenSnapshot,
    SnapshotId,
    SnapshotNotWritten,
    SnapshotStore,
)

SNAPSHOT_RESEND_S: Final = 1.0

Decoded = Callable[[], None]
"""A function that replaces the state by a decoded snapshot. It must be called on the event loop."""


@dataclass(slots=True)
class _InFlight:
    position: int
    sent_s: float


class SnapshotSender:
    """The leader's side of the transfer of one snapshot to one follower."""

    def __init__(self, opened: OpenSnapshot, *, chunk_bytes: int, resend_s: float) -> None:
        self._opened = opened
        self._chunk_bytes = chunk_bytes
        self._resend_s = resend_s
        self._wanted = 0
        self._in_flight: _InFlight | None = None

    @property
    def snapshot(self) -> SnapshotId:
        """The snapshot that is being sent."""
        return self._opened.snapshot

    def next_message(self, term: int, now_s: float) -> Message:
        """Return an install_snapshot message with the chunk that is due. If none is due, the message has an empty chunk
        and is only a heartbeat.
        """
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

    def wants(self, position: int) -> bool:
        """Record the position from which the follower needs bytes next. Return whether it changed, so that a chunk is
        due.
        """
        if not 0 <= position <= self.snapshot.size or position == self._wanted:
            return False
        self._wanted = position
        return True

    def close(self) -> None:
        """Close the snapshot's file."""
        self._opened.close()


class SnapshotSending:
    """The snapshot transfers of one leader, at most one to each follower."""

    def __init__(self, engine: Engine, store: SnapshotStore, *, chunk_bytes: int) -> None:
        self._engine = engine
        self._store = store
        self._chunk_bytes = chunk_bytes
        self._senders: dict[int, SnapshotSender] = {}

    def is_sending_to(self, peer_id: int) -> bool:
        """Return whether a snapshot is being sent to a follower."""
        return peer_id in self._senders

    def send(self, peer_id: int) -> None:
        """Begin or continue the transfer to a follower: send the next message. If no snapshot can be opened now, send
        nothing.
        """
        sender = self._senders.get(peer_id)
        if sender is None:
            opened = self._store.open_current()
            if opened is None:
                return
            sender = self._senders[peer_id] = SnapshotSender(
                opened, chunk_bytes=self._chunk_bytes, resend_s=SNAPSHOT_RESEND_S
            )
        self._engine.tell(peer_id, sender.next_message(self._engine.term, self._engine.now_s()))

    def on_wanted(self, peer_id: int, message: Message) -> None:
        """Handle a follower's report of the position from which it needs bytes next."""
        sender = self._senders.get(peer_id)
        if sender is None or (sender.snapshot.offset, sender.snapshot.epoch) != (
            message["offset"],
            message["epoch"],
        ):
            return
        if sender.wants(message["position"]):
            self.send(peer_id)

    def end(self, peer_id: int) -> None:
        """End the transfer to a follower, if there is one."""
        sender = self._senders.pop(peer_id, None)
        if sender is not None:
            sender.close()

    def end_all(self) -> None:
        """End all transfers, because the leadership has ended."""
        for peer_id in list(self._senders):
            self.end(peer_id)


class SnapshotReceiver:
    """Receives one snapshot at a time, and writes and decodes it on the disk queue for snapshots."""

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
        self._position = 0  # the position up to which the snapshot is written, or at which a write is in progress
        self._busy = False

    def wanted(self, snapshot: SnapshotId) -> int:
        """Return the position from which bytes of this snapshot are needed next."""
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
        """Write a chunk if it is the next one that is needed.

        Exactly one callback is called on the event loop. After the last chunk it is `on_whole`, or `on_damaged` if the
        snapshot's CRC is wrong. It is `on_no_room` if the disk is full, and otherwise `on_stored`, even if the chunk
        was not needed and not written. If the disk is full, the leader gets no response. It repeats the chunk later,
        and the response to that asks for the snapshot from its start.
        """
        is_heartbeat = not data and snapshot.size > 0
        if self._busy or is_heartbeat or snapshot.size > self._bytes_max:
            on_stored()
            return
        begins = snapshot != self._snapshot
        wanted = 0 if begins else self._position
        if position != wanted or position + len(data) > snapshot.size:
            on_stored()  # the response has the position that is needed
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


class SnapshotReceiving:
    """The part of a follower that handles install_snapshot."""

    def __init__(
        self,
        engine: Engine,
        log_matching: LogMatching,
        state: ReplicatedState,
        store: SnapshotStore,
        queue: DiskQueue,
        *,
        bytes_max: int,
        events: RaftEvents,
    ) -> None:
        self._engine = engine
        self._log_matching = log_matching
        self._state = state
        self._bytes_max = bytes_max
        self._events = events
        self._receiver = SnapshotReceiver(store, queue, state.decode, bytes_max=bytes_max)

    def on_install_snapshot(self, leader_id: int, message: Message) -> None:
        """Handle install_snapshot: store the chunk, and install the snapshot when it is complete."""
        if not self._log_matching.hear_leader(leader_id, message["term"]):
            return
        self._log_matching.hear_heartbeat(
            leader_id, message["term"], commit_index=self._commit_of_chunk(message)
        )
        snapshot = SnapshotId(message["offset"], message["epoch"], message["total"], message["crc"])
        if self._state.is_stale(snapshot):
            self._respond(leader_id, snapshot, installed=True)
            return
        if snapshot.size > self._bytes_max:
            self._events.snapshot_refused(leader_id, snapshot.size, self._bytes_max)
        self._receiver.receive(
            snapshot,
            message["position"],
            message["data"],
            on_stored=lambda: self._respond(leader_id, snapshot),
            on_whole=lambda whole, replace_state: self._install(leader_id, whole, replace_state),
            on_damaged=lambda damaged: self._respond(leader_id, damaged),
            on_no_room=lambda failure: self._events.snapshot_found_no_room(
                leader_id, snapshot.size, failure
            ),
        )

    @staticmethod
    def _commit_of_chunk(message: Message) -> int:
        return 0

    def _install(self, leader_id: int, snapshot: SnapshotId, replace_state: Decoded) -> None:
        if self._engine.halted:
            return
        if not self._state.is_stale(snapshot):
            self._state.install(snapshot, replace_state)
        self._respond(leader_id, snapshot, installed=True)
        self._events.wake(0.0)

    def _respond(self, leader_id: int, snapshot: SnapshotId, *, installed: bool = False) -> None:
        self._engine.tell(
            leader_id,
            {
                "type": wire.SNAPSHOT_REPLY,
                "term": self._engine.term,
                "offset": snapshot.offset,
                "epoch": snapshot.epoch,
                "position": self._receiver.wanted(snapshot),
                "installed": installed,
            },
        )

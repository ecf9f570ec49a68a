"""The leader's side of log replication: which entries, heartbeats and snapshots it sends to its followers.

pysyncobj has a next index for each follower and sends entries from that index on. `Replication` adds these rules:

- A follower whose next entry was trimmed from the log gets a snapshot instead of entries.
- At most a *window* of entries is sent to a follower and not acknowledged. Entries that were sent need memory at the
  follower until they are on its disk, and a follower whose disk hangs acknowledges nothing. So an entry counts until it
  is acknowledged, and not only until it is sent.
- While new entries wait for this voter's disk, all followers get heartbeats that name an earlier entry, which is on
  disk. Otherwise followers could not distinguish a leader with a slow disk from a dead one.
- An acknowledgement counts only if it was given in the present term and this node is the leader of this term.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.raft.engine import Engine
from odradek_metadata_quorum.raft.shell import RaftEvents
from odradek_metadata_quorum.raft.snapshots import SnapshotSending
from odradek_metadata_quorum.storage.log_recovery import Entry

# If no new entries follow, a new commit index is sent to followers after this time.
COMMIT_NOTICE_S: Final = 0.002


class SendWindow:
    """Counts the bytes of entries that were sent to one follower and that the follower has not acknowledged.

    The count is cleared when the connection ends, or when the follower asks to continue at another entry. In both cases
    the sent entries are lost or will be sent again.
    """

    def __init__(self) -> None:
        # (index of the last entry, bytes of all entries) of each unacknowledged message
        self._sent: deque[tuple[int, int]] = deque()
        self.bytes = 0

    def sent(self, entries: list[Entry]) -> None:
        """Count the entries of a message that was sent."""
        size = sum(len(command) for command, _, _ in entries)
        self._sent.append((entries[-1][1], size))
        self.bytes += size

    def acknowledged(self, index: int) -> None:
        """Remove the entries up to `index`, because the follower has acknowledged them."""
        while self._sent and self._sent[0][0] <= index:
            self.bytes -= self._sent.popleft()[1]

    def clear(self) -> None:
        """Remove all entries."""
        self._sent.clear()
        self.bytes = 0


class Replication:
    """The part of a leader that sends append_entries.

    `queued_bytes(peer_id)` returns the number of bytes that the network has buffered for a peer.
    """

    def __init__(
        self,
        engine: Engine,
        snapshots: SnapshotSending,
        *,
        queued_bytes: Callable[[int], int],
        window_bytes_max: int,
        heartbeat_s: float,
        events: RaftEvents,
    ) -> None:
        self._engine = engine
        self._snapshots = snapshots
        self._queued_bytes = queued_bytes
        self._window_bytes_max = window_bytes_max
        self._heartbeat_s = heartbeat_s
        self._events = events
        self._windows = {peer_id: SendWindow() for peer_id in engine.peer_ids}
        self._sent_last_index = 0
        self._sent_commit_index = 0
        self._commit_notice_s: float | None = None
        self._resend = False
        self._probe_due_s = 0.0
        self._beat_due_s = 0.0

    # Sending.

    def before_leading(self) -> None:
        """Reset the state of all followers, because this node was elected leader."""
        for window in self._windows.values():
            window.clear()
        self._sent_last_index = self._sent_commit_index = 0
        self._beat_due_s = 0.0

    def send_due(self) -> None:
        """Send new entries at once. If only the commit index is new, send it after COMMIT_NOTICE_S, because new entries
        usually follow soon, and their message has the commit index, too.
        """
        engine = self._engine
        if not engine.barrier.clean:
            self._beat()
        if engine.log.last_index > self._sent_last_index or self._resend:
            self.replicate()
        elif engine.commit_index > self._sent_commit_index:
            now_s = engine.now_s()
            if self._commit_notice_s is None:
                self._commit_notice_s = now_s + COMMIT_NOTICE_S
                self._events.wake(COMMIT_NOTICE_S)
            elif now_s >= self._commit_notice_s:
                self.replicate()

    def replicate(self) -> None:
        """Send entries or a heartbeat to each connected follower. A follower whose next entry was trimmed gets a chunk
        of a snapshot. A follower whose window is full gets a heartbeat.
        """
        engine = self._engine
        self._resend = False
        self._sent_last_index = engine.log.last_index
        self._sent_commit_index = engine.commit_index
        self._commit_notice_s = None
        first_index = engine.log.first_index
        behind, full = [], []
        for peer_id in engine.peer_ids:
            if not engine.is_connected(peer_id):
                continue
            if engine.next_index(peer_id) <= first_index:
                behind.append(peer_id)
            elif self.is_full(peer_id):
                full.append(peer_id)
        engine.send_appends({*behind, *full})
        for peer_id in behind:
            self._snapshots.send(peer_id)
        self._probe(full)

    def send(self, peer_id: int, message: Message) -> bool:
        """Send a message of the engine to a peer. Return False if the peer's window is full now."""
        if message["type"] == wire.APPEND_ENTRIES:
            entries = message["entries"]
            if entries:
                self._engine.tell(peer_id, message)
                self._windows[peer_id].sent(entries)
                if self.is_full(peer_id):
                    self._resend = True
                    return False
                return True
            if self._engine.barrier.needed_for_index(message["prevLogIdx"]):
                message = self._heartbeat(peer_id)
        self._engine.tell(peer_id, message)
        return True

    def is_full(self, peer_id: int) -> bool:
        """Return whether a peer's window is full, so that it gets no entries until it has acknowledged some."""
        waiting = self._engine.outbox.waiting_bytes(peer_id) + self._queued_bytes(peer_id)
        window_max = self._window_bytes_max
        return waiting > window_max or self._windows[peer_id].bytes > window_max

    def _probe(self, peer_ids: list[int]) -> None:
        """Send heartbeats to followers whose windows are full. A second heartbeat names the last entry that was sent,
        so that the follower's response shows whether that entry has arrived.
        """
        engine = self._engine
        now_s = engine.now_s()
        if not peer_ids or now_s < self._probe_due_s:
            return
        self._probe_due_s = now_s + self._heartbeat_s
        for peer_id in peer_ids:
            heartbeat = self._heartbeat(peer_id)
            engine.tell(peer_id, heartbeat)
            last_sent = engine.next_index(peer_id) - 1
            if last_sent > heartbeat["prevLogIdx"]:
                term = engine.log.term_at(last_sent)
                engine.tell(peer_id, {**heartbeat, "prevLogIdx": last_sent, "prevLogTerm": term})

    def _beat(self) -> None:
        """Send additional heartbeats, because the engine's own messages may all wait for the disk with new entries."""
        engine = self._engine
        now_s = engine.now_s()
        if now_s < self._beat_due_s:
            return
        self._beat_due_s = now_s + self._heartbeat_s
        for peer_id in engine.peer_ids:
            if engine.next_index(peer_id) > engine.log.first_index:
                engine.tell(peer_id, self._heartbeat(peer_id))

    def _heartbeat(self, peer_id: int) -> Message:
        """Return an append_entries message without entries. Its prevLogIdx is an entry that is on this node's disk and
        that, as far as this node knows, the peer also has.
        """
        engine = self._engine
        first, match = engine.log.first_index, engine.match_index(peer_id)
        if match < first:
            match = engine.next_index(peer_id) - 1
        index = max(first, min(match, engine.log.synced_index))
        return {
            "type": wire.APPEND_ENTRIES,
            "term": engine.term,
            "commit_index": engine.commit_index,
            "entries": [],
            "prevLogIdx": index,
            "prevLogTerm": engine.log.term_at(index),
        }

    # Responses.

    def on_next_node_idx(self, peer_id: int, message: Message) -> None:
        """Handle a follower's response to append_entries: an acknowledgement, or the index at which to continue."""
        if not self._is_current(message):
            return
        engine = self._engine
        was_full = self.is_full(peer_id)
        next_index, last = message["next_node_idx"], engine.log.last_index
        if message["success"] and next_index - 1 > last:
            engine.halt(
                f"voter {peer_id} acknowledges entry {next_index - 1}, but this leader's log ends at entry {last}"
            )
            return
        if message["reset"]:
            message["next_node_idx"] = max(1, min(next_index, last + 1))
        sent_next_index = engine.next_index(peer_id)
        engine.receive(peer_id, message)
        window = self._windows[peer_id]
        if message["reset"]:
            window.clear()
        elif message["success"]:
            window.acknowledged(next_index - 1)
        if message["success"] and engine.next_index(peer_id) < sent_next_index:
            # The library would otherwise send entries again that were sent and are not acknowledged yet.
            engine.set_next_index(peer_id, sent_next_index)
        if message["reset"] or (was_full and not self.is_full(peer_id)):
            # Send the next entries at once, instead of with the next heartbeat.
            self._resend = True
        if engine.next_index(peer_id) > engine.log.first_index:
            self._snapshots.end(peer_id)

    def on_snapshot_reply(self, peer_id: int, message: Message) -> None:
        """Handle a follower's response to a chunk of a snapshot: the position that it needs next, or the report that it
        has installed the snapshot.
        """
        if not self._is_current(message):
            return
        engine = self._engine
        engine.note_response(peer_id, engine.now_s())
        if not message["installed"]:
            self._snapshots.on_wanted(peer_id, message)
            return
        offset = message["offset"]
        if engine.log.first_index <= offset <= engine.log.last_index:
            engine.set_match_index(peer_id, max(engine.match_index(peer_id), offset))
            engine.set_next_index(peer_id, max(engine.next_index(peer_id), offset + 1))
            self._resend = True
        self._snapshots.end(peer_id)

    def _is_current(self, message: Message) -> bool:
        """Return whether a response has this node's term and this node is the leader. Follow a higher term."""
        engine = self._engine
        if message["term"] > engine.term:
            engine.follow_term(message["term"])
            return False
        return engine.is_leader and bool(message["term"] == engine.term)

    def peer_disconnected(self, peer_id: int) -> None:
        """Clear the window of a peer, because entries that were sent may be lost with the connection."""
        self._windows[peer_id].clear()

    def best_successor(self) -> int | None:
        """Return a peer that has acknowledged the whole log, so that leadership can be handed over to it, or None."""
        last_index = self._engine.log.last_index
        for peer_id in self._engine.peer_ids:
            if self._engine.match_index(peer_id) == last_index:
                return peer_id
        return None

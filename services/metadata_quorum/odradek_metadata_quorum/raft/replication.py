"""How the leader sends entries to its followers.

pysyncobj keeps a next index for each follower and sends entries from there on. `Replication` adds:

- A follower whose next entry was trimmed from the log gets a snapshot instead of entries.
- A follower has at most a *window* of entries in flight. Entries that have left this node's queues take memory at the
  follower until they are on its disk, and a follower whose disk hangs acknowledges nothing. So an entry counts until
  it is acknowledged, not until it leaves the queue.
- While entries wait for this voter's disk, all followers get heartbeats that name an earlier entry, which is on the
  disk. So a leader with a slow disk is not taken for a silent one.
- An acknowledgement counts only in the term in which it was given, and only for that term's leader.
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

# Followers learn of a commit with the next entries, or after this time.
COMMIT_NOTICE_S: Final = 0.002


class SendWindow:
    """Counts the bytes of entries that were sent to one follower and that it has not acknowledged.

    It is cleared when the connection ends, or when the follower asks to continue at another entry: then the entries
    that were sent are lost, or will be sent again.
    """

    def __init__(self) -> None:
        # (last index, bytes) of each unacknowledged message.
        self._sent: deque[tuple[int, int]] = deque()
        self.bytes = 0

    def sent(self, entries: list[Entry]) -> None:
        """Count the entries of a message that was sent."""
        size = sum(len(command) for command, _, _ in entries)
        self._sent.append((entries[-1][1], size))
        self.bytes += size

    def acknowledged(self, index: int) -> None:
        """Remove the entries up to `index`, which the follower has on its disk."""
        while self._sent and self._sent[0][0] <= index:
            self.bytes -= self._sent.popleft()[1]

    def clear(self) -> None:
        """Forget all sent entries."""
        self._sent.clear()
        self.bytes = 0


class Replication:
    """The part of a leader that sends append_entries.

    `queued_bytes(peer_id)` returns how many bytes the network has not sent yet to a peer.
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
        """Reset the state of all followers when a leadership begins."""
        for window in self._windows.values():
            window.clear()
        self._sent_last_index = self._sent_commit_index = 0
        self._beat_due_s = 0.0

    def send_due(self) -> None:
        """Send new entries at once. If only the commit index is new, send it a little later, because entries usually
        follow soon, and their message contains the commit index.
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
        """Send entries or a heartbeat to all followers. Those that cannot receive entries get a chunk of a snapshot, or
        a heartbeat.
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
        """Send a message of the engine. Returns False if it filled the peer's window."""
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
        """Return whether a peer gets no entries until it has acknowledged some."""
        waiting = self._engine.outbox.waiting_bytes(peer_id) + self._queued_bytes(peer_id)
        window_max = self._window_bytes_max
        return waiting > window_max or self._windows[peer_id].bytes > window_max

    def _probe(self, peer_ids: list[int]) -> None:
        """Send a heartbeat instead of entries, which also asks whether the last entry that was sent has arrived."""
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
        """Send additional heartbeats, because those of the engine may all wait behind new entries."""
        engine = self._engine
        now_s = engine.now_s()
        if now_s < self._beat_due_s:
            return
        self._beat_due_s = now_s + self._heartbeat_s
        for peer_id in engine.peer_ids:
            if engine.next_index(peer_id) > engine.log.first_index:
                engine.tell(peer_id, self._heartbeat(peer_id))

    def _heartbeat(self, peer_id: int) -> Message:
        """Return an append_entries message without entries. It names an entry that both ends have, as far as this node
        knows.
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
        """Handle a follower's acknowledgement, or its refusal with the entry from which to continue."""
        if not self._is_current(message):
            return
        engine = self._engine
        was_full = self.is_full(peer_id)
        next_index, last = message["next_node_idx"], engine.log.last_index
        if message["success"] and next_index - 1 > last:
            engine.halt(f"voter {peer_id} acknowledges entry {next_index - 1} > {last}")
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
            # The library would otherwise send the entries after the acknowledged one again, which are in flight.
            engine.set_next_index(peer_id, sent_next_index)
        if message["reset"] or (was_full and not self.is_full(peer_id)):
            # Continue from there at once, without waiting for the next heartbeat.
            self._resend = True
        if engine.next_index(peer_id) > engine.log.first_index:
            self._snapshots.end(peer_id)

    def on_snapshot_reply(self, peer_id: int, message: Message) -> None:
        """Handle a follower's request for the next chunk of a snapshot, or its report that it has installed the
        snapshot.
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
        """Return whether a response was given in this node's term, to this node as the leader of that term."""
        engine = self._engine
        if message["term"] > engine.term:
            engine.follow_term(message["term"])
            return False
        return engine.is_leader and bool(message["term"] == engine.term)

    def peer_disconnected(self, peer_id: int) -> None:
        """Forget the entries that were sent to a peer, because the connection is lost."""
        self._windows[peer_id].clear()

    def best_successor(self) -> int | None:
        """Return the peer to which leadership can be handed over, because it has the whole log; None if there
        is none.
        """
        last_index = self._engine.log.last_index
        for peer_id in self._engine.peer_ids:
            if self._engine.match_index(peer_id) == last_index:
                return peer_id
        return None

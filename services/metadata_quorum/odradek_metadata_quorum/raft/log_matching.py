"""The rules by which a follower makes its log match the leader's log.

pysyncobj appends the entries of append_entries messages. `LogMatching` handles these messages first, and adds rules:

- *Terms*: after a message with a higher term, this node follows that term. A message with a lower term is dropped, and
  the response has the current term.
- *Prefix match before truncation*: entries that the log already has are skipped. Only a real conflict truncates the
  log. If a committed or applied entry would be truncated, the process ends.
- *Commit index*: a message raises the commit index at most to `prevLogIdx + len(entries)`, the last entry for which it
  proves that both logs are equal. Later entries in this log may be those of another leader.
- *Slow disk*: while too many bytes of entries wait for the disk, no more entries are appended.
"""

from __future__ import annotations

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.raft.elections import Elections
from odradek_metadata_quorum.raft.engine import Engine


class LogMatching:
    """The part of a follower that handles append_entries."""

    def __init__(self, engine: Engine, elections: Elections, *, window_bytes_max: int) -> None:
        self._engine = engine
        self._elections = elections
        self._window_bytes_max = window_bytes_max
        # Whether the message being handled has no new entries, so that nothing may be truncated.
        self._matched_all = False

    def on_append_entries(self, leader_id: int, message: Message) -> None:
        """Handle append_entries: append the new entries, unless too many bytes wait for the disk."""
        log = self._engine.log
        if message["entries"] and log.unsynced_bytes > self._unsynced_bytes_max():
            message["entries"] = []
            if log.term_at(message["prevLogIdx"]) is None:
                # A refusal would make the leader send all entries again at once. So the message counts only as a
                # heartbeat, and the leader gets the refusal as the response to a later message.
                if self.hear_leader(leader_id, message["term"]):
                    self.hear_heartbeat(leader_id, message["term"], commit_index=0)
                return
        if not self.hear_leader(leader_id, message["term"]):
            return
        if log.term_at(message["prevLogIdx"]) == message["prevLogTerm"]:
            self._skip_matching(message)
        try:
            self._engine.receive(leader_id, message)
        finally:
            self._matched_all = False

    def hear_leader(self, leader_id: int, term: int) -> bool:
        """Check the term of a leader's message. Return whether the message is from the present leader, and if so,
        record the time of the message for the election timer.
        """
        engine = self._engine
        if term < engine.term:
            self._tell_next_index(leader_id, 0, reset=False, success=False)
            return False
        if term == engine.term and engine.is_leader:
            engine.halt(f"voter {leader_id} claims to lead term {term}, which this node leads")
            return False
        self._elections.heard_leader()
        return True

    def hear_heartbeat(self, leader_id: int, term: int, *, commit_index: int) -> None:
        """Handle a message that only shows that the leader lives, and not that this log matches the leader's log."""
        self._engine.receive(
            leader_id, {"type": wire.APPEND_ENTRIES, "term": term, "commit_index": commit_index}
        )

    def _unsynced_bytes_max(self) -> int:
        return 4 * self._window_bytes_max

    def _skip_matching(self, message: Message) -> None:
        """Remove from a message the entries that the log already has, and limit its commit index to the last entry for
        which the message proves that both logs are equal.
        """
        entries = message["entries"]
        term_at = self._engine.log.term_at
        first = message["prevLogIdx"] + 1
        count = 0
        while count < len(entries) and term_at(first + count) == entries[count][2]:
            count += 1
        message["commit_index"] = self._proven_commit(message)
        if count:
            message["prevLogIdx"], message["prevLogTerm"] = entries[count - 1][1:]
            message["entries"] = entries[count:]
        self._matched_all = not message["entries"]

    @staticmethod
    def _proven_commit(message: Message) -> int:
        proven: int = message["prevLogIdx"] + len(message["entries"])
        return min(int(message["commit_index"]), proven)

    def truncate_from(self, index: int) -> None:
        """Remove the entries from `index` on, which conflict with the leader's. If one of them is committed or applied,
        end the process instead. If the message has no new entries, there is no conflict: do nothing.
        """
        if self._matched_all:
            return
        if index <= max(self._engine.commit_index, self._engine.applied):
            self._engine.halt(f"entry {index} is committed, but the leader sent another entry")
            return
        self._engine.log.truncate_from(index)

    def respond_to_append(
        self, leader_id: int, next_index: int | None, *, reset: bool, success: bool
    ) -> None:
        """Respond to append_entries with the index at which the leader must continue.

        After a conflict the response skips all entries of the conflicting term, so that not every one of them needs a
        round trip.
        """
        if next_index is None:
            next_index = self._engine.log.last_index + 1
        elif reset:
            next_index = self._before_conflict(next_index)
        self._tell_next_index(leader_id, next_index, reset=reset, success=success)

    def _before_conflict(self, index: int) -> int:
        """Return the index of the first entry that has the same term as the conflicting entry at `index`, or of the
        first entry that is not committed, if that is higher.
        """
        log = self._engine.log
        floor = max(self._engine.commit_index, log.first_index) + 1
        if index < floor:
            self._engine.halt(f"entry {index} is committed, but the leader has another entry")
            return index
        position = index - log.first_index
        term = log.entries[position][2]
        while index > floor and log.entries[position - 1][2] == term:
            position -= 1
            index -= 1
        return index

    def _tell_next_index(
        self, leader_id: int, next_index: int, *, reset: bool, success: bool
    ) -> None:
        self._engine.tell(
            leader_id,
            {
                "type": wire.NEXT_NODE_IDX,
                "term": self._engine.term,
                "next_node_idx": next_index,
                "reset": reset,
                "success": success,
            },
        )

"""The rules by which a follower makes its log match the leader's.

pysyncobj appends the entries of append_entries. `LogMatching` stands in front of it and adds these rules:

- *Every message carries its term*: after a message of a higher term this node follows that term. A message of a lower
  term is dropped, and its sender is told the current term.
- *Prefix match before truncation*: entries that are in the log already are skipped. Only a real conflict
  truncates the log, and truncating at or below what is committed or applied ends the process.
- *A message raises the commit index to the last entry whose prefix it proved*, no further:
  `prevLogIdx + len(entries)`. Later entries in this log may be of another leader.
- *A slow disk limits what is accepted*: while more than a few windows of entries wait for the disk, no more entries
  are appended.
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
        # Whether this append_entries has no new entries, so that nothing is truncated.
        self._matched_all = False

    def on_append_entries(self, leader_id: int, message: Message) -> None:
        """Append the new entries, unless too many bytes wait for the disk."""
        log = self._engine.log
        if message["entries"] and log.unsynced_bytes > self._unsynced_bytes_max():
            message["entries"] = []
            if log.term_at(message["prevLogIdx"]) is None:
                # After a refusal, the leader would send all entries again at once. The next heartbeat asks again.
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
        """Check the term of a leader's message. Returns whether it is from the present leader."""
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
        """Treat a message as a heartbeat, which proves nothing about the log."""
        self._engine.receive(
            leader_id, {"type": wire.APPEND_ENTRIES, "term": term, "commit_index": commit_index}
        )

    def _unsynced_bytes_max(self) -> int:
        return 4 * self._window_bytes_max

    def _skip_matching(self, message: Message) -> None:
        """Remove from the message the entries that the log already has, and lower its commit index to what the message
        proves.
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
        """Remove the entries from `index` on, which are of another leader and were never committed."""
        if self._matched_all:
            return
        if index <= max(self._engine.commit_index, self._engine.applied):
            self._engine.halt(f"entry {index} is committed and another leader replaces it")
            return
        self._engine.log.truncate_from(index)

    def respond_to_append(
        self, leader_id: int, next_index: int | None, *, reset: bool, success: bool
    ) -> None:
        """Tell the leader from which entry to continue.

        After a conflict this is the entry before all those with the conflicting term.
        """
        if next_index is None:
            next_index = self._engine.log.last_index + 1
        elif reset:
            next_index = self._before_conflict(next_index)
        self._tell_next_index(leader_id, next_index, reset=reset, success=success)

    def _before_conflict(self, index: int) -> int:
        """Return the index of the last entry before those that have the term of the conflicting entry at `index`."""
        log = self._engine.log
        floor = max(self._engine.commit_index, log.first_index) + 1
        if index < floor:
            self._engine.halt(f"entry {index} is committed and the leader's is another")
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

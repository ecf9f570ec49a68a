"""The engine's log matching, with the holes of pysyncobj 0.3.17 closed; every message by its term.

pysyncobj decides what to append and what is committed, `ElectingEngine` who leads. The rules that
this class adds:

- *Every message carries its term* and is judged by it: a higher one makes us follow, a lower one is
  dropped (a stale leader is told). An acknowledgement of an older term counts for nothing.
- *Prefix match before truncation*: entries we have already are skipped; only a real conflict cuts
  the log, and a cut at or below what is committed or applied ends the process.
- *A message raises the commit index to the last entry whose prefix it proved*, no further:
  `prevLogIdx + len(entries)`. What else is in our log is hearsay.
"""

from __future__ import annotations

from typing import Any, Final

from odradek_metadata_quorum.quorum.network import wire
from odradek_metadata_quorum.quorum.network.wire import Message
from odradek_metadata_quorum.quorum.raft.electing_engine import ElectingEngine
from odradek_metadata_quorum.quorum.raft.engine import ENGINE_CLOCK


class HardenedEngine(ElectingEngine):
    """Log matching on top of elections. Not for use by itself: see `RaftNode`."""

    _matched_all = False  # this append_entries holds nothing new: no truncation

    # Overrides: the log.

    def _SyncObj__deleteEntriesFrom(self, index: int) -> None:
        if self._matched_all:
            return
        if index <= max(self.commit_index, self.applied):
            self.halt(f"entry {index} is committed and another leader replaces it")
            return
        self._log.truncate_from(index)

    def _SyncObj__sendNextNodeIdx(
        self,
        node: Any,
        reset: bool = False,
        nextNodeIdx: int | None = None,
        success: bool = False,
    ) -> None:
        """The engine's answer to append_entries, with a term and a better place to go on from."""
        if nextNodeIdx is None:
            nextNodeIdx = self._log.last_index + 1
        elif reset:
            nextNodeIdx = self._before_conflict(nextNodeIdx)
        self.tell(
            node.id,
            {
                "type": wire.NEXT_NODE_IDX,
                "term": self.term,
                "next_node_idx": nextNodeIdx,
                "reset": reset,
                "success": success,
            },
        )

    def _before_conflict(self, index: int) -> int:
        """Our entry at `index` is of another term than the leader's: skip all of that term."""
        entries = self._log.entries
        floor = max(self.commit_index, self._log.first_index) + 1
        if index < floor:
            self.halt(f"entry {index} is committed and the leader's is another")
            return index
        position = index - self._log.first_index
        term = entries[position][2]
        while index > floor and entries[position - 1][2] == term:
            position -= 1
            index -= 1
        return index

    def _SyncObj__tryLogCompaction(self) -> None:
        """Ours: `RaftNode` snapshots and trims."""

    def _checkCommandsToApply(self) -> None:
        """Ours: proposals are appended or refused at once, nothing is queued or forwarded."""

    # Messages.

    def receive(self, peer_id: int, message: Message) -> None:
        """One message of a voter. `step` must follow, soon."""
        node = self._peers.get(peer_id)
        if node is None or self.halted:
            return
        handler = _HANDLERS.get(message["type"])
        if handler is not None:
            handler(self, node, message)

    def _on_append_entries(self, node: Any, message: Message) -> None:
        if not self._hear_leader(node, message["term"]):
            return
        previous_index = message["prevLogIdx"]
        if self._log.term_at(previous_index) == message["prevLogTerm"]:
            self._skip_matching(message)
        try:
            self._to_engine(node, message)
        finally:
            self._matched_all = False

    def _skip_matching(self, message: Message) -> None:
        """Leave of the message what is new; clip its commit index to what it proves."""
        entries = message["entries"]
        first = message["prevLogIdx"] + 1
        count = 0
        while count < len(entries) and self._log.term_at(first + count) == entries[count][2]:
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

    def _hear_leader(self, node: Any, term: int) -> bool:
        """Judge a leader's message by its term; True if it is the current leader's."""
        if term < self.term:
            self.tell(
                node.id,
                {
                    "type": wire.NEXT_NODE_IDX,
                    "term": self.term,
                    "next_node_idx": 0,
                    "reset": False,
                    "success": False,
                },
            )
            return False
        if term == self.term and self.is_leader:
            self.halt(f"voter {node.id} claims to lead term {term}, which this node leads")
            return False
        self._heard_s = ENGINE_CLOCK.read()
        self._pre_vote.clear()
        return True

    def _on_next_node_idx(self, node: Any, message: Message) -> None:
        if not self._is_answer_to_us(message):
            return
        last = self._log.last_index
        if message["success"] and message["next_node_idx"] - 1 > last:
            self.halt(f"voter {node.id} acknowledges entry {message['next_node_idx'] - 1} > {last}")
            return
        if message["reset"]:
            message["next_node_idx"] = max(1, min(message["next_node_idx"], last + 1))
        sent = self._SyncObj__raftNextIndex[node]
        self._to_engine(node, message)
        if message["success"]:  # to the engine what is under way behind the acknowledged is lost
            self._SyncObj__raftNextIndex[node] = max(sent, self._SyncObj__raftNextIndex[node])

    def _is_answer_to_us(self, message: Message) -> bool:
        """An answer counts in the term it was given in, and only for that term's leader."""
        if message["term"] > self.term:
            self._follow(message["term"])
            return False
        return self.is_leader and bool(message["term"] == self.term)

    def _on_install_snapshot(self, node: Any, message: Message) -> None:
        raise NotImplementedError

    def _on_snapshot_reply(self, node: Any, message: Message) -> None:
        raise NotImplementedError

    def _on_join_query(self, node: Any, message: Message) -> None:
        raise NotImplementedError

    def _on_join_reply(self, node: Any, message: Message) -> None:
        raise NotImplementedError


_HANDLERS: Final = {
    wire.APPEND_ENTRIES: lambda self, node, message: self._on_append_entries(node, message),
    wire.NEXT_NODE_IDX: lambda self, node, message: self._on_next_node_idx(node, message),
    wire.REQUEST_VOTE: lambda self, node, message: self._on_request_vote(node, message),
    wire.RESPONSE_VOTE: lambda self, node, message: self._on_response_vote(node, message),
    wire.PRE_VOTE: lambda self, node, message: self._on_pre_vote(node, message),
    wire.PRE_VOTE_REPLY: lambda self, node, message: self._on_pre_vote_reply(node, message),
    wire.TIMEOUT_NOW: lambda self, node, message: self._on_timeout_now(node, message),
    wire.INSTALL_SNAPSHOT: lambda self, node, message: self._on_install_snapshot(node, message),
    wire.SNAPSHOT_REPLY: lambda self, node, message: self._on_snapshot_reply(node, message),
    wire.JOIN_QUERY: lambda self, node, message: self._on_join_query(node, message),
    wire.JOIN_REPLY: lambda self, node, message: self._on_join_reply(node, message),
}

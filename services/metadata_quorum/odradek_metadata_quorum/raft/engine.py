"""A typed adapter for the Raft library pysyncobj 0.3.17. No other file imports the library or uses its private names.

The library does a part of the work: it decides when to start an election, counts votes, sends entries by next index,
and has the commit rule. `Engine` gives the library's private fields typed names, and replaces rules that are too weak
by hooks (`EngineHooks`). Other modules of this folder (elections, log_matching, replication, replicated_state,
snapshots, joining) implement the hooks and use the `Engine`. `RaftNode` combines them.

`Engine` overrides name-mangled private methods, which works with exactly one version of the library. So every other
version is refused. Some globals of the library's module are replaced:

- `pickle` raises an error, so bytes from a socket or file are never unpickled. The code of the library that would
  unpickle is not used; if it were, the error would show that.
- The poller does nothing, because asyncio polls sockets.
- The journal factory returns the journal that it is given, which is the durable log.
- The clock is that of the engine, so that a simulator can control it.

One log line of the library is dropped. It warns of a truncation before `truncate_from` has checked whether entries must
be truncated, and would appear for every repeated append_entries.
"""

from __future__ import annotations

import _socket
import logging
import math
import socket
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

import pysyncobj.syncobj as _library
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.journal import Journal
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from odradek_metadata_quorum.network.outbox import Outbox
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.storage.disk import Fatal
from odradek_metadata_quorum.storage.write_barrier import WriteBarrier

REQUIRED_VERSION: Final = "0.3.17"

if VERSION != REQUIRED_VERSION:
    raise ImportError(
        f"pysyncobj {VERSION} is installed, but a controller needs exactly version {REQUIRED_VERSION}:"
        f" pip install pysyncobj=={REQUIRED_VERSION}"
    )

COMMAND_REGULAR: Final = b"\x00"
COMMAND_NO_OP: Final = b"\x01"
# The batch size is larger than the largest command, because the library pickles a command that it must divide.
APPEND_BATCH_BYTES: Final = (1 << 20) + 4096

_FOLLOWER: Final[int] = _library._RAFT_STATE.FOLLOWER
_CANDIDATE: Final[int] = _library._RAFT_STATE.CANDIDATE
_LEADER: Final[int] = _library._RAFT_STATE.LEADER


class _NoPickle:
    """Replaces the module `pickle` in the library. Its functions raise an error."""

    @staticmethod
    def _refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("pysyncobj tried to use pickle, which the quorum never does")

    dumps = loads = dump = load = _refuse

    @staticmethod
    def to_bytes(data: bytes) -> bytes:
        return data


class _NullPoller:
    """Replaces the library's poller of sockets. It does nothing, because asyncio polls sockets."""

    def poll(self, timeout: float) -> None: ...

    def subscribe(self, *_: object) -> None: ...

    def unsubscribe(self, *_: object) -> None: ...


def _is_no_false_alarm(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("truncating already-applied log entries")


# The import of the library replaces `socket.inet_ntop` by a version for Windows, on every system. The next line
# restores the original function.
socket.inet_ntop = _socket.inet_ntop
_library.logger.addFilter(_is_no_false_alarm)
_library.pickle = _NoPickle()
_library.createPoller = lambda _kind: _NullPoller()
_library.createJournal = lambda journal: journal


class _Peer(int, Node):  # type: ignore[misc]  # pysyncobj has no types
    """Another voter as an object of the library's class Node. The object equals its id, so that the library's dicts can
    be used with ids as keys.
    """

    def __new__(cls, peer_id: int) -> _Peer:
        return int.__new__(cls, peer_id)


class _BarrierJournal(Journal):  # type: ignore[misc]  # pysyncobj has no types
    """The log and the vote as an object of the library's class Journal. Changes are only made in memory; the write
    barrier makes them durable later.
    """

    def __init__(self, barrier: WriteBarrier) -> None:
        self._barrier = barrier
        self._log = barrier.log

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._log.append(command, idx, term)

    def deleteEntriesFrom(self, entryFrom: int) -> NoReturn:
        raise AssertionError(
            "pysyncobj tried to truncate the log, which only the hook `truncate_from` may do"
        )

    def clear(self) -> NoReturn:
        raise AssertionError(
            "pysyncobj tried to clear the log, which only `reset` for a snapshot may do"
        )

    def deleteEntriesTo(self, entryTo: int) -> NoReturn:
        raise AssertionError(
            "pysyncobj tried to trim the log, which only `trim_to` after a snapshot may do"
        )

    def __getitem__(self, item: Any) -> Any:
        return self._log.entries[item]

    def __len__(self) -> int:
        return len(self._log.entries)

    def _destroy(self) -> None: ...

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Do nothing. In Raft the commit index need not be durable: a restarted voter learns it from the leader."""

    def getRaftCommitIndex(self) -> int:
        return self._log.first_index

    def setCurrentTerm(self, term: int, vote: int | None) -> None:
        self._barrier.note_vote(term, vote)

    def getCurrentTerm(self) -> int:
        return self._barrier.term

    def getVotedForNodeId(self) -> int | None:
        return self._barrier.vote


class _EngineTransport(Transport):  # type: ignore[misc]  # pysyncobj has no types
    """The network, as an implementation of pysyncobj's Transport. pysyncobj uses it only to send messages."""

    def __init__(self, send: Callable[[_Peer, Message], None]) -> None:
        super().__init__(None, None, [])
        self._send = send

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: _Peer, message: Message) -> bool:
        self._send(node, message)
        return True

    def destroy(self) -> None: ...


class RespondToAppend(Protocol):
    """A function that responds to append_entries. A `next_index` of None means the index after the last entry."""

    def __call__(
        self, leader_id: int, next_index: int | None, *, reset: bool, success: bool
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHooks:
    """Functions that the engine calls for decisions that the library does not make, or for which its rules are too
    weak.
    """

    # Sends a message of the library. Returns False if the present `send_appends` must send the peer no more entries.
    send: Callable[[int, Message], bool]
    # Called when entries or heartbeats to all peers are due; `Engine.send_appends` sends them.
    replicate: Callable[[], None]
    # Returns a new election timeout: how long to wait for a leader from now on.
    election_timeout_s: Callable[[], float]
    # Called when the election timer has ended. Returns whether to start an election in the next term now.
    may_campaign: Callable[[], bool]
    # Called with the new values before the term and the vote change.
    before_term: Callable[[int, int | None], None]
    # Called when this node was elected, before its no-op entry is appended.
    before_leading: Callable[[], None]
    # Called when this node has stopped being the leader.
    lost_leadership: Callable[[], None]
    # Called for each append_entries whose prevLogIdx is below the last entry, with the index after prevLogIdx.
    # Truncates the log from this index on if the leader's entries differ.
    truncate_from: Callable[[int], None]
    respond_to_append: RespondToAppend
    # Applies entries that are committed and not applied yet, if there are any.
    apply_committed: Callable[[], None]


class Engine(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """The Raft state of one voter (term, role, commit index, progress of its peers), and functions that send messages
    and that end the process.
    """

    def __init__(
        self,
        *,
        node_id: int,
        voters: Iterable[int],
        barrier: WriteBarrier,
        outbox: Outbox,
        heartbeat_s: float,
        clock: Callable[[], float],
        fatal: Fatal,
    ) -> None:
        """Create the engine. The caller must call `attach` before any other method."""
        self.node_id = node_id
        self.peer_ids: Final = tuple(sorted(set(voters) - {node_id}))
        self.barrier: Final = barrier
        self.log: Final = barrier.log
        self.outbox: Final = outbox
        self.now_s: Final = clock
        self.halted = False
        self._fatal = fatal
        self._peers = {peer_id: _Peer(peer_id) for peer_id in self.peer_ids}
        self._round_ended: set[int] = set()
        self._hooks: EngineHooks
        _library.monotonicTime = clock
        super().__init__(
            _Peer(node_id),
            list(self._peers.values()),
            conf=SyncObjConf(
                autoTick=False,
                journalFile=_BarrierJournal(barrier),
                appendEntriesUseBatch=True,
                appendEntriesBatchSizeBytes=APPEND_BATCH_BYTES,
                appendEntriesPeriod=heartbeat_s,
                # `Elections` checks by itself whether a majority responds. The library's own check is off, because with
                # that check a leader may step down although it has responses that it has not read yet.
                leaderFallbackTimeout=math.inf,
                commandsWaitLeader=False,
                dynamicMembershipChange=False,
                useFork=False,
            ),
            nodeClass=_Peer,
            transport=_EngineTransport(self._send),
        )
        self._SyncObj__needLoadDumpFile = False

    def attach(self, hooks: EngineHooks) -> None:
        """Set the hooks."""
        self._hooks = hooks

    # Calls that drive the library.

    def tick(self) -> None:
        """Do all work that is due: start an election, advance the commit index, apply entries, send heartbeats."""
        _library.monotonicTime = self.now_s
        self._onTick(0.0)

    def receive(self, peer_id: int, message: Message) -> None:
        """Pass a message of a peer to the library. The caller must have checked the message by the rules of this
        package.
        """
        _library.monotonicTime = self.now_s
        self._SyncObj__onMessageReceived(self._peers[peer_id], message)

    def send_appends(self, skipped: Set[int]) -> None:
        """Send entries, or a heartbeat if there are no new entries, to all connected peers except `skipped`."""
        connected: set[int] = self._SyncObj__connectedNodes
        self._round_ended = connected.intersection(skipped)
        connected -= self._round_ended
        super()._SyncObj__sendAppendEntries()
        connected |= self._round_ended

    def tell(self, peer_id: int, message: Message) -> None:
        """Send a message to a peer as soon as the state that it reports is on disk. A halted node sends nothing."""
        if not self.halted:
            self.outbox.send(peer_id, message)

    def halt(self, reason: str, error: BaseException | None = None) -> None:
        """Stop sending and end the process, because continuing could lose or replace data."""
        self.halted = True
        self._fatal(reason, error)

    # Term and role.

    @property
    def term(self) -> int:
        """Raft's current term."""
        term: int = self._SyncObj__raftCurrentTerm
        return term

    @property
    def vote(self) -> int | None:
        """The candidate for which this node voted in the current term; None if it has not voted."""
        vote: int | None = self._SyncObj__votedForNodeId
        return vote

    def set_term(self, term: int, vote: int | None) -> None:
        """Set the current term and the vote in this term. The next disk write makes both durable."""
        self._SyncObj__setCurrentTerm(term, vote)

    @property
    def is_leader(self) -> bool:
        """Whether this node is the leader, as far as it knows."""
        return bool(self._SyncObj__raftState == _LEADER)

    @property
    def is_candidate(self) -> bool:
        """Whether this node is a candidate."""
        return bool(self._SyncObj__raftState == _CANDIDATE)

    @property
    def leader_id(self) -> int | None:
        """The id of the leader, as far as this node knows; None during an election."""
        leader = self._SyncObj__raftLeader
        return None if leader is None else int(leader)

    def forget_leader(self) -> None:
        """Set the known leader to none."""
        self._SyncObj__raftLeader = None

    def step_down(self) -> None:
        """Become a follower in the same term, without a known leader."""
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__raftLeader = None

    def follow_term(self, term: int) -> None:
        """Become a follower in a higher term, without a known leader."""
        self.set_term(term, None)
        self.step_down()

    @property
    def election_deadline_s(self) -> float:
        """The time at which the election timer ends, on the clock of `now_s`. 0: it ends with the next tick."""
        deadline_s: float = self._SyncObj__raftElectionDeadline
        return deadline_s

    @election_deadline_s.setter
    def election_deadline_s(self, deadline_s: float) -> None:
        self._SyncObj__raftElectionDeadline = deadline_s

    # Commit index and state.

    @property
    def commit_index(self) -> int:
        """The index of the last entry that is known to be committed."""
        index: int = self._SyncObj__raftCommitIndex
        return index

    @property
    def applied(self) -> int:
        """The index of the last entry that was applied to the state machine."""
        index: int = self._SyncObj__raftLastApplied
        return index

    @applied.setter
    def applied(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    def restored(self, index: int) -> None:
        """Record that a restored snapshot includes all entries up to `index`, so they count as applied
        and committed.
        """
        self._SyncObj__raftLastApplied = index
        self._SyncObj__raftCommitIndex = max(self.commit_index, index)

    @property
    def no_op_index(self) -> int:
        """The index of the entry that this node appended when it was last elected."""
        index: int = self._SyncObj__noopIDx
        return index

    # Peers.

    def connect(self, peer_id: int) -> None:
        """Record that the network is connected to a peer."""
        self._SyncObj__connectedNodes.add(peer_id)

    def disconnect(self, peer_id: int) -> None:
        """Record that the network is no longer connected to a peer."""
        self._SyncObj__connectedNodes.discard(peer_id)

    def is_connected(self, peer_id: int) -> bool:
        """Return whether the network is connected to a peer."""
        return peer_id in self._SyncObj__connectedNodes

    def match_index(self, peer_id: int) -> int:
        """The index of the last entry that a peer has acknowledged to this leader; 0 if this node was
        never the leader.
        """
        index: int = self._SyncObj__raftMatchIndex.get(peer_id, 0)
        return index

    def set_match_index(self, peer_id: int, index: int) -> None:
        """Set the index of the last entry that a peer has acknowledged."""
        self._SyncObj__raftMatchIndex[peer_id] = index

    def next_index(self, peer_id: int) -> int:
        """The index of the next entry to send to a peer; 0 if this node was never the leader."""
        index: int = self._SyncObj__raftNextIndex.get(peer_id, 0)
        return index

    def set_next_index(self, peer_id: int, index: int) -> None:
        """Set the index of the next entry to send to a peer."""
        self._SyncObj__raftNextIndex[peer_id] = index

    def responded_s(self, peer_id: int) -> float | None:
        """The time of the clock `now_s` at which a peer last responded to this leader; None if this node was never the
        leader.
        """
        responded_s: float | None = self._SyncObj__lastResponseTime.get(peer_id)
        return responded_s

    def note_response(self, peer_id: int, responded_s: float) -> None:
        """Set the time at which a peer last responded to this leader."""
        self._SyncObj__lastResponseTime[peer_id] = responded_s

    # Overrides of the library's methods; each calls a hook.

    def _send(self, node: _Peer, message: Message) -> None:
        if not self._hooks.send(node, message):
            # The peer counts as disconnected until `send_appends` ends, so that the library sends it no more entries.
            self._round_ended.add(node)
            self._SyncObj__connectedNodes.discard(node)

    def _SyncObj__generateRaftTimeout(self) -> float:
        # The library calls this once before the hooks are attached. `Elections` sets the deadline later.
        return self._hooks.election_timeout_s() if hasattr(self, "_hooks") else 0.0

    def _SyncObj__connectedToAnyone(self) -> bool:
        # The library calls this only when its election timer has ended.
        return self._hooks.may_campaign()

    def _SyncObj__setCurrentTerm(self, term: int, vote: int | None) -> None:
        assert term >= self.term, (term, self.term)
        self._hooks.before_term(term, vote)
        super()._SyncObj__setCurrentTerm(term, vote)

    def _SyncObj__onBecomeLeader(self) -> None:
        self._hooks.before_leading()
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__setState(self, state: int) -> None:
        was_leader = self.is_leader
        super()._SyncObj__setState(state)
        if was_leader and state != _LEADER:
            self._hooks.lost_leadership()

    def _SyncObj__sendAppendEntries(self) -> None:
        self._hooks.replicate()

    def _SyncObj__deleteEntriesFrom(self, index: int) -> None:
        self._hooks.truncate_from(index)

    def _SyncObj__sendNextNodeIdx(
        self,
        node: _Peer,
        reset: bool = False,
        nextNodeIdx: int | None = None,
        success: bool = False,
    ) -> None:
        self._hooks.respond_to_append(node, nextNodeIdx, reset=reset, success=success)

    def _SyncObj__applyLogEntries(self) -> bool:
        self._hooks.apply_committed()
        return False

    def _SyncObj__tryLogCompaction(self) -> None:
        """Do nothing, because `ReplicatedState` takes snapshots and trims the log."""

    def _checkCommandsToApply(self) -> None:
        """Do nothing, because proposals are appended or refused at once, and never queued or forwarded."""

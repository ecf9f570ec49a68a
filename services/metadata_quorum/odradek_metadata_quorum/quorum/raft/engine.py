"""pysyncobj with its teeth drawn: what must be true of the library before anything uses it.

`raft_node.py` overrides name-mangled private methods, so exactly the version it was written against
is accepted. Then the module's globals are replaced: pickle by something that raises (no byte of
socket or file is ever unpickled; the paths that would are unreachable, this proves it), the poller
by nothing (asyncio polls), the journal factory by the identity (ours is passed in), and the clock
by one that a simulator can set. One of its log lines is dropped: it warns of a truncation before
`HardenedEngine` is asked whether there is anything to truncate, at every repeated message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

import pysyncobj.syncobj as _engine
from pysyncobj.journal import Journal
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from odradek_metadata_quorum.quorum.storage.write_barrier import WriteBarrier

REQUIRED_VERSION: Final = "0.3.17"

if VERSION != REQUIRED_VERSION:
    raise ImportError(
        f"pysyncobj {VERSION} is installed, the quorum needs exactly {REQUIRED_VERSION}:"
        f" pip install pysyncobj=={REQUIRED_VERSION}"
    )

COMMAND_REGULAR: Final = b"\x00"
COMMAND_NO_OP: Final = b"\x01"

FOLLOWER: Final[int] = _engine._RAFT_STATE.FOLLOWER
CANDIDATE: Final[int] = _engine._RAFT_STATE.CANDIDATE
LEADER: Final[int] = _engine._RAFT_STATE.LEADER


class _NoPickle:
    """Stands where the engine would look for pickle."""

    @staticmethod
    def _refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the quorum never pickles")

    dumps = loads = dump = load = _refuse

    @staticmethod
    def to_bytes(data: bytes) -> bytes:
        return data


class _NullPoller:
    """asyncio polls; the engine must not."""

    def poll(self, timeout: float) -> None: ...

    def subscribe(self, *_: object) -> None: ...

    def unsubscribe(self, *_: object) -> None: ...


class _Clock:
    """The engine's only clock: seconds, monotonic. One a process; the last node built set it."""

    def __init__(self) -> None:
        self.read: Callable[[], float] = time.monotonic


ENGINE_CLOCK: Final = _Clock()


def _is_no_false_alarm(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("truncating already-applied log entries")


_engine.logger.addFilter(_is_no_false_alarm)
_engine.pickle = _NoPickle()
_engine.createPoller = lambda _kind: _NullPoller()
_engine.createJournal = lambda journal: journal
_engine.monotonicTime = lambda: ENGINE_CLOCK.read()


class BarrierJournal(Journal):  # type: ignore[misc]  # pysyncobj has no types
    """The engine's view of the durable log and vote: changes are noted, the barrier writes them."""

    def __init__(self, barrier: WriteBarrier) -> None:
        self._barrier = barrier
        self._log = barrier.log

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._log.append(command, idx, term)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        self._log.truncate_from(self._log.first_index + entryFrom)

    def clear(self) -> NoReturn:
        raise AssertionError("only a snapshot empties the log, by reset")

    def deleteEntriesTo(self, entryTo: int) -> NoReturn:
        raise AssertionError("the log is trimmed behind a snapshot, by trim_to")

    def __getitem__(self, item: Any) -> Any:
        return self._log.entries[item]

    def __len__(self) -> int:
        return len(self._log.entries)

    def _destroy(self) -> None: ...

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Volatile in Raft: it is learned from the leader again."""

    def getRaftCommitIndex(self) -> int:
        return self._log.first_index

    def setCurrentTerm(self, term: int, vote: int | None) -> None:
        self._barrier.note_vote(term, vote)

    def getCurrentTerm(self) -> int:
        return self._barrier.term

    def getVotedForNodeId(self) -> int | None:
        return self._barrier.vote


class EngineTransport(Transport):  # type: ignore[misc]  # pysyncobj has no types
    """What the engine believes to be its network: `send` is all it is asked for."""

    def __init__(self, send: Callable[[Any, dict[str, Any]], bool]) -> None:
        super().__init__(None, None, [])
        self._send = send

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        return self._send(node, message)

    def destroy(self) -> None: ...


__all__ = [
    "CANDIDATE",
    "COMMAND_NO_OP",
    "COMMAND_REGULAR",
    "ENGINE_CLOCK",
    "FOLLOWER",
    "LEADER",
    "BarrierJournal",
    "EngineTransport",
    "Node",
]

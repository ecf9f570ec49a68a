"""The replicated state machine that the quorum drives, as the quorum sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class StateMachine(Protocol):
    """Replays committed entries. Every method but `restore` runs on the event loop and must not wait.

    The same entries give the same state on every node, so nothing here may read the clock, draw
    random numbers or touch a file. An exception is a bug that would make this node diverge: the
    process ends with status 70.
    """

    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        """Replay one committed entry; offsets only rise, by one, save for the leaders' no-ops."""

    def snapshot(self) -> Callable[[], bytes]:
        """Capture the state, cheaply; the returned callable encodes it on another thread."""

    def restore(self, offset: int, epoch: int, data: bytes) -> Callable[[], None]:
        """Decode a snapshot that covers every entry up to `offset`, included, on any thread.

        That changes nothing; the returned callable replaces the whole state, cheaply, on the loop.
        """


@dataclass(frozen=True, slots=True)
class CommittedEntry:
    """One committed entry of the log; an empty payload is a leader's no-op."""

    offset: int
    epoch: int
    payload: bytes


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StateSnapshot:
    """The state machine's state after the entry at `offset`, as its own `snapshot()` encoded it."""

    offset: int
    epoch: int
    data: bytes

"""What the quorum hands out of its log and its snapshots."""

from __future__ import annotations

from dataclasses import dataclass


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

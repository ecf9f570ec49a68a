"""Which leader epoch wrote which stretch of a log: the lineage that KIP-101 compares.

An entry (epoch, start offset) means: from this offset on, up to the next entry's start, records
bear this epoch. Both columns rise strictly. An entry at the log end has no records yet: a leader
enters its epoch when it begins (R1), perhaps to write nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from odradek_protocol.identity import NO_LEADER_EPOCH, LeaderEpoch, Offset


class EpochCache:
    """The epochs of one log, oldest first."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[LeaderEpoch, Offset]] = ()) -> None:
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []
        for epoch, start in entries:
            self.enter(epoch, start)

    def __repr__(self) -> str:
        return f"EpochCache({self.entries()})"

    def entries(self) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """All of it, for tests and messages."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> LeaderEpoch:
        """Of the last entry, records or not; NO_LEADER_EPOCH without any."""
        return self._epochs[-1] if self._epochs else NO_LEADER_EPOCH

    def enter(self, epoch: LeaderEpoch, start: Offset) -> None:
        """Records from `start` on bear `epoch`; entries that had no records there are forgotten."""
        if epoch == self.latest:
            return
        assert epoch > self.latest, f"epoch {epoch} at {start} after {self}"
        while self._starts and self._starts[-1] >= start:
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(start)

    def last_with_records(self, log_end: Offset) -> LeaderEpoch:
        """The epoch of the record before `log_end`; NO_LEADER_EPOCH if there is none."""
        index = len(self._starts) - 1
        while index >= 0 and self._starts[index] >= log_end:
            index -= 1
        return self._epochs[index] if index >= 0 else NO_LEADER_EPOCH

    def end_of(self, epoch: LeaderEpoch, log_end: Offset) -> tuple[LeaderEpoch, Offset] | None:
        """The largest epoch <= `epoch` and its exclusive end; None when all are larger."""
        index = bisect_right(self._epochs, epoch) - 1
        if index < 0:
            return None
        following = index + 1
        end = self._starts[following] if following < len(self._starts) else log_end
        return self._epochs[index], end

    def cut(self, end: Offset) -> None:
        """Forget what begins at or above `end`."""
        while self._starts and self._starts[-1] >= end:
            self._starts.pop()
            self._epochs.pop()

    def advance_start(self, log_start: Offset) -> None:
        """Forget what ended at or below `log_start`; the entry that covers it begins there now."""
        covering = bisect_right(self._starts, log_start) - 1
        if covering < 0:
            return
        del self._epochs[:covering]
        del self._starts[:covering]
        self._starts[0] = log_start

    def clear(self) -> None:
        """The log was dropped."""
        self._epochs.clear()
        self._starts.clear()

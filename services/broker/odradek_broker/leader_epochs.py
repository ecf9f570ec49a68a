"""The history of leader epochs of a log: which epoch wrote which range of offsets (KIP-101).

An entry (epoch, start offset) means that the records from this offset up to the start of the next entry have this
epoch. Epochs rise strictly, and start offsets never fall. The last entry may have no records yet, because a leader
adds its epoch when it begins to lead (rule R1 of partition/README.md), even if it then writes nothing.

The replica (`partition`) and the log on disk (`log`) each keep a `LeaderEpochs` for a partition: the replica makes its
decisions with its own object, and the log applies those decisions to its own object when it writes or truncates bytes.
The log also writes its entries to `leader-epoch-checkpoint`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from odradek_protocol.identity import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset


class LeaderEpochs:
    """The leader epochs of one log, oldest first."""

    __slots__ = ("_epochs", "_starts", "changes")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        # Tuples take less memory than lists. Entries change rarely, and a broker has two of these objects for each
        # partition.
        self._epochs: tuple[LeaderEpoch, ...] = ()
        self._starts: tuple[Offset, ...] = ()
        self.changes = 0
        """How many times the entries have changed. A checkpoint that was written at a lower count is outdated."""
        for epoch, start_offset in entries:
            self.enter(LeaderEpoch(epoch), Offset(start_offset))

    def __repr__(self) -> str:
        return f"LeaderEpochs({self.entries()})"

    def entries(self) -> list[tuple[LeaderEpoch, Offset]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def earliest(self) -> LeaderEpoch:
        """The epoch of the first entry; NO_LEADER_EPOCH if there are none."""
        return self._epochs[0] if self._epochs else NO_LEADER_EPOCH

    @property
    def latest(self) -> LeaderEpoch:
        """The epoch of the last entry, with or without records; NO_LEADER_EPOCH if there are none."""
        return self._epochs[-1] if self._epochs else NO_LEADER_EPOCH

    def enter(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """Record that `epoch` begins at `start_offset`. Entries that begin at or above `start_offset` have no records
        and are removed. A call with the latest epoch changes nothing."""
        if epoch == self.latest:
            return
        assert epoch > self.latest, (
            f"epoch {epoch} after {self.latest}, at {start_offset} of {self}"
        )
        self.truncate_from_end(start_offset)
        self._epochs = (*self._epochs, epoch)
        self._starts = (*self._starts, start_offset)
        self.changes += 1

    def end_of(self, epoch: LeaderEpoch, log_end: Offset) -> tuple[LeaderEpoch, Offset]:
        """Return the greatest known epoch that is not above `epoch`, and its end offset, which is exclusive.

        The result is that of Kafka's LeaderEpochFileCache.endOffsetFor. If `epoch` is below all entries, its records
        were deleted, and the result is (`epoch`, the first start offset). The result is (NO_LEADER_EPOCH, NO_OFFSET)
        for NO_LEADER_EPOCH, for an epoch above the latest one, and if there are no entries.
        """
        if epoch == NO_LEADER_EPOCH or epoch > self.latest:
            return NO_LEADER_EPOCH, NO_OFFSET
        following = bisect_right(self._epochs, epoch)
        if following == 0:
            return epoch, self._starts[0]
        end = self._starts[following] if following < len(self._starts) else log_end
        return self._epochs[following - 1], end

    def at(self, offset: int) -> LeaderEpoch:
        """Return the epoch in which `offset` was or will be written; NO_LEADER_EPOCH if it is not known."""
        following = bisect_right(self._starts, offset)
        return self._epochs[following - 1] if following else NO_LEADER_EPOCH

    def truncate_from_end(self, end_offset: Offset) -> None:
        """Remove the entries that begin at or above `end_offset`."""
        kept = bisect_left(self._starts, end_offset)
        self.changes += len(self._starts) - kept
        self._epochs, self._starts = self._epochs[:kept], self._starts[:kept]

    def truncate_from_start(self, start_offset: Offset) -> None:
        """Remove the entries that end at or below `start_offset`. The entry that contains `start_offset` begins at
        that offset from now on.
        """
        following = bisect_right(self._starts, start_offset)
        if following == 0 or (following == 1 and self._starts[0] == start_offset):
            return
        self._epochs = self._epochs[following - 1 :]
        self._starts = (start_offset, *self._starts[following:])
        self.changes += 1

    def clear(self) -> None:
        """Remove all entries, because the log that they describe is emptied."""
        self._epochs = self._starts = ()
        self.changes += 1

"""Which leader epoch each offset was written under: (epoch, start offset) pairs (KIP-101).

    epochs rise, start offsets never fall; the end of an epoch is the start of the next one, or the
    log's end. Two logs agree up to the smaller end of the last epoch that both have.

The entries are a digest of the batch headers, plus those of epochs in which nothing was written
(a leader enters its epoch before its first append). They can be made again from the headers, so
the file is written with the next full sync, before the recovery point passes their batches.

    leader-epoch-checkpoint    0            version
                               <count>
                               <epoch> <start offset>      a line each
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from odradek_protocol.identity import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset


class LeaderEpochs:
    """The epoch cache of one partition."""

    __slots__ = ("_epochs", "_starts", "changes")

    def __init__(self) -> None:
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []
        self.changes = 0  # counts modifications: the file is stale when it lags behind

    @property
    def last(self) -> LeaderEpoch:
        return self._epochs[-1] if self._epochs else NO_LEADER_EPOCH

    def entries(self) -> list[tuple[LeaderEpoch, Offset]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def enter(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """Begin an epoch; entries that it contradicts (a start at or past its own) vanish."""
        assert epoch > self.last, f"epoch {epoch} after {self.last}"
        self.cut_end(start_offset)
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.changes += 1

    def end_of(self, epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch <= `epoch`, and its end offset.

        Without entries (NO_LEADER_EPOCH, NO_OFFSET); below the first entry (epoch, its start).
        """
        number = bisect_right(self._epochs, epoch)
        if not self._epochs:
            return NO_LEADER_EPOCH, NO_OFFSET
        if number == 0:
            return epoch, self._starts[0]
        end = self._starts[number] if number < len(self._starts) else log_end_offset
        return self._epochs[number - 1], end

    def at(self, offset: Offset) -> LeaderEpoch:
        """The epoch under which `offset` was or will be written."""
        number = bisect_right(self._starts, offset)
        return self._epochs[number - 1] if number else NO_LEADER_EPOCH

    def cut_end(self, end_offset: Offset) -> None:
        """Forget epochs that began at or past `end_offset`."""
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            self.changes += 1

    def cut_start(self, start_offset: Offset) -> None:
        """Forget epochs that ended at or below `start_offset`; the one there begins there now."""
        number = bisect_right(self._starts, start_offset)
        if number == 0 or (self._starts[number - 1] == start_offset and number == 1):
            return
        del self._epochs[: number - 1]
        del self._starts[: number - 1]
        self._starts[0] = start_offset
        self.changes += 1

    def to_text(self) -> bytes:
        lines = ["0", str(len(self._epochs))]
        lines += [f"{epoch} {start}" for epoch, start in self.entries()]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def from_text(cls, text: bytes) -> LeaderEpochs:
        """Read the checkpoint; ValueError if it is torn, empty or not one."""
        lines = text.decode("ascii").split("\n")
        if len(lines) < 2 or lines[0] != "0" or lines[-1] != "":
            raise ValueError("no leader epoch checkpoint of version 0")
        if int(lines[1]) != len(lines) - 3:
            raise ValueError(f"{len(lines) - 3} entries where {lines[1]} were counted")
        epochs = cls()
        for line in lines[2:-1]:
            epoch, start = (int(part) for part in line.split(" "))
            if epoch <= epochs.last or start < 0 or (epochs._starts and start < epochs._starts[-1]):
                raise ValueError(f"entry {line!r} does not rise")
            epochs._epochs.append(LeaderEpoch(epoch))
            epochs._starts.append(Offset(start))
        return epochs

    @classmethod
    def from_entries(cls, entries: Iterable[tuple[int, int]]) -> LeaderEpochs:
        """Rising pairs, as read from batch headers."""
        epochs = cls()
        for epoch, start in entries:
            epochs._epochs.append(LeaderEpoch(epoch))
            epochs._starts.append(Offset(start))
        epochs.changes = 1
        return epochs

"""How long the turns of this voter's loop are, and what it may conclude from silence.

A message that has come and is not read yet looks like silence. So silence is judged up to the last
moment at which everything that had come was read: now, while turns are short; after a *long* turn,
its beginning, until the next turn has read what came meanwhile.

The whole machine may have stood still, the others as well; then nobody was silent. The length of a
long turn is therefore forgiven, that is, added to all deadlines, but only where none was for
`forgiven_interval_s`. In a process that is slow all the time nearly every turn is long: if each was
forgiven, deadlines would recede nearly as fast as time passes.
"""

from __future__ import annotations


class LoopTurns:
    """The steps of one voter; no clock."""

    def __init__(self, now_s: float, *, long_s: float, forgiven_interval_s: float) -> None:
        self._long_s = long_s
        self._forgiven_interval_s = forgiven_interval_s
        self._stepped_s = now_s
        self._read_s = now_s
        self._forgiven_s: float | None = None

    def step(self, now_s: float) -> float:
        """A step begins; the seconds to add to all deadlines, 0 nearly always."""
        began_s = self._stepped_s
        if now_s <= began_s:
            return 0.0
        self._stepped_s = now_s
        if now_s - began_s <= self._long_s:
            self._read_s = now_s
            return 0.0
        self._read_s = began_s
        if not self._may_forgive(began_s):
            return 0.0
        self._forgiven_s = now_s
        return now_s - began_s

    def read_until_s(self, now_s: float) -> float:
        """The time up to which everything that came has been read."""
        return self._stepped_s if now_s - self._stepped_s > self._long_s else self._read_s

    def _may_forgive(self, began_s: float) -> bool:
        forgiven_s = self._forgiven_s
        return forgiven_s is None or began_s - forgiven_s >= self._forgiven_interval_s

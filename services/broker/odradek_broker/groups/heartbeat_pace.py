"""How often the members of a consumer group shall send heartbeats.

A member learns what it must give up, or may take, from the answer to its next heartbeat. So a rebalance lasts about as
many intervals as there are turns in it. While a group is calm the interval is long; it is short

- from a change of the group's epoch until all are reconciled, and for two long intervals at least, since members
  tend to come and go together;
- when a member has been silent so long that its session ends soon: the others then learn of it at once.

In large groups the short interval is longer, so that a group sends some 200 heartbeats a second at most. Soft state: a
coordinator that has just loaded the group takes it for restless.
"""

from __future__ import annotations

from dataclasses import dataclass

_MS_A_MEMBER = 5


@dataclass(slots=True, kw_only=True)
class HeartbeatPace:
    """`look` a few times a second. Times are ms of the monotonic clock."""

    calm_interval_ms: int
    restless_interval_ms: int
    _epoch: int = -1
    _changed_ms: int = 0
    is_calm: bool = False

    def epoch_is(self, epoch: int, *, now_ms: int) -> None:
        """A new epoch begins a rebalance."""
        if epoch != self._epoch:
            self._epoch, self._changed_ms, self.is_calm = epoch, now_ms, False

    def look(self, *, is_stable: bool, session_ends_ms: int | None, now_ms: int) -> None:
        """`session_ends_ms`: of the member that was silent for longest."""
        soon_ms = now_ms + 2 * self.calm_interval_ms
        is_quiet = now_ms - self._changed_ms >= 2 * self.calm_interval_ms
        all_show = session_ends_ms is None or session_ends_ms > soon_ms
        self.is_calm = is_stable and is_quiet and all_show

    def interval_ms(self, members: int) -> int:
        """To tell the next member that asks."""
        if self.is_calm:
            return self.calm_interval_ms
        return min(self.calm_interval_ms, max(self.restless_interval_ms, _MS_A_MEMBER * members))

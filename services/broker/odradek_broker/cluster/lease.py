"""How long this broker may speak as a leader without hearing from the active controller.

The lease begins at the *send* time of the last heartbeat that the active controller answered, so a
slow answer shortens it. It bounds how stale an answer can be, nothing more: safety rests on epochs
and the maximal ISR, and a new leader may begin while the old one's lease still runs. Times are
CLOCK_BOOTTIME ms, which goes on while the machine is suspended.
"""

from __future__ import annotations


class Lease:
    """Written by the heartbeat's threads, read by the event loop: one attribute, whole at once."""

    __slots__ = ("_length_ms", "until_ms")

    def __init__(self, length_ms: int) -> None:
        self._length_ms = length_ms
        self.until_ms = 0

    def renew(self, sent_at_ms: int) -> None:
        """The active controller answered the heartbeat sent at `sent_at_ms`."""
        self.until_ms = max(self.until_ms, sent_at_ms + self._length_ms)

    def end(self) -> None:
        """Nothing may be answered any more (the broker is fenced, or stops)."""
        self.until_ms = 0

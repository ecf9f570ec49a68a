"""How long this broker may respond as a leader without a response from the active controller.

The lease begins at the *send* time of the last heartbeat to which the active controller responded, so a slow
response shortens it. It only bounds how stale a response to a client can be: safety rests on epochs and the maximal
ISR, and a new leader may begin while the lease of the old one still runs. Times are CLOCK_BOOTTIME ms, a clock
that goes on while the machine is suspended.
"""

from __future__ import annotations


class Lease:
    """Written by the heartbeat threads and read by the event loop, without a lock: one attribute, set atomically."""

    __slots__ = ("_length_ms", "until_ms")

    def __init__(self, length_ms: int) -> None:
        self._length_ms = length_ms
        self.until_ms = 0

    def renew(self, sent_at_ms: int) -> None:
        """Extend the lease: the active controller responded to the heartbeat that was sent at `sent_at_ms`."""
        self.until_ms = max(self.until_ms, sent_at_ms + self._length_ms)

    def end(self) -> None:
        """End the lease: the broker is fenced or stops, and must not respond as a leader any more."""
        self.until_ms = 0

"""Time limits of a Kafka connection (login, frames, unsent responses, idling), in ms of the loop's clock."""

from __future__ import annotations

from typing import Final

FIRST_FRAME_MS_MAX: Final = 10_000
STALLED_FRAME_MS_MAX: Final = 30_000
STALLED_WRITE_MS_MAX: Final = 30_000
CLOSING_MS_MAX: Final = 5_000
FRAME_BYTES_MIN: Final = 64 * 1024
"""The minimum number of bytes of an unfinished frame that must arrive within `STALLED_FRAME_MS_MAX`."""


class ConnectionTimes:
    """The times of a connection's last activity, last write and login, and the progress of its unfinished frame."""

    __slots__ = (
        "_checked_at_ms",
        "_frame",
        "_frame_bytes",
        "_frame_ms",
        "active_at_ms",
        "login_began_ms",
        "unwritten_bytes",
        "written_at_ms",
    )

    def __init__(self, now_ms: int) -> None:
        self.login_began_ms = self.active_at_ms = self.written_at_ms = now_ms
        self.unwritten_bytes = 0
        self._checked_at_ms = now_ms
        self._frame = 0
        self._frame_bytes = 0
        self._frame_ms = 0

    def closes_too_slowly(self, now_ms: int) -> bool:
        """Return whether a closing connection has waited too long for its client to read the last responses."""
        return now_ms - self.active_at_ms > CLOSING_MS_MAX

    def takes_nothing(self, unwritten_bytes: int, now_ms: int) -> bool:
        """Return whether the client has read nothing for too long, although there are unsent bytes."""
        if unwritten_bytes != self.unwritten_bytes:
            self.unwritten_bytes, self.written_at_ms = unwritten_bytes, now_ms
            return False
        return now_ms - self.written_at_ms > STALLED_WRITE_MS_MAX

    def begins_too_slowly(self, now_ms: int) -> bool:
        """Return whether the client takes too long to send its first request or to complete its login."""
        return now_ms - self.login_began_ms > FIRST_FRAME_MS_MAX

    def frame_is_slow(self, frame: int, held_bytes: int, now_ms: int, *, is_read: bool) -> bool:
        """Return whether fewer than `FRAME_BYTES_MIN` bytes of the frame arrived within `STALLED_FRAME_MS_MAX`.

        `frame` is the number of the frame, of which `held_bytes` have arrived (0: there is no unfinished frame). Time
        in which the broker did not read is not counted, and also extends the time limit of the login. The connection
        calls this every second.
        """
        passed_ms = now_ms - self._checked_at_ms
        self._checked_at_ms = now_ms
        if not is_read:
            self.login_began_ms += passed_ms
            return False
        is_same = held_bytes > 0 and frame == self._frame
        if not is_same or held_bytes - self._frame_bytes >= FRAME_BYTES_MIN:
            self._frame, self._frame_bytes, self._frame_ms = frame, held_bytes, 0
            return False
        self._frame_ms += passed_ms
        return self._frame_ms > STALLED_FRAME_MS_MAX

    def rests(self, idle_ms_max: int, now_ms: int) -> bool:
        """Return whether the client has neither sent nor received anything for `idle_ms_max`."""
        return now_ms - self.active_at_ms > idle_ms_max

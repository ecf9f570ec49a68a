"""Limits on refused requests: failed logins are delayed, and the number of audit log lines is limited.

The response to a failed login is delayed. The delay grows with the number of recent failures from the same address.
The first failures are delayed as in Kafka (`connection.failed.authentication.delay.ms`, 100 ms), so a user who
mistypes a password hardly notices. An address is never locked out: a correct password is accepted at once, however
often other clients behind the same address failed.

Refusals are written to the audit log at a limited rate for each owner (`shares.owner_of`). So a client that causes a
thousand refusals at once cannot fill the disk. It cannot conceal one refusal among the others either, because the next
line that is written says how many refusals were left out.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

DELAY_MS: Final = 100
DELAY_MS_MAX: Final = 5_000
FREE_FAILURES: Final = 5
FORGOTTEN_AFTER_S: Final = 60.0
ADDRESSES_MAX: Final = 10_000


class FailedLogins:
    """Counts failed logins for each address. The count starts again after a minute without a failure."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}

    def failed(self, address: str, now_s: float) -> int:
        """Count a failed login and return the delay of its response in ms.

        The delay doubles with each failure from the sixth on, up to `DELAY_MS_MAX`.
        """
        count, at_s = self._failures.pop(address, (0, now_s))
        if now_s - at_s > FORGOTTEN_AFTER_S:
            count = 0
        if len(self._failures) >= ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        count += 1
        self._failures[address] = (count, now_s)
        doublings = min(max(0, count - FREE_FAILURES), 16)
        return min(DELAY_MS << doublings, DELAY_MS_MAX)


TEXT_CHARACTERS_MAX: Final = 256
LINES_BURST: Final = 100
LINES_PER_S: Final = 10.0
REPEATED_AFTER_S: Final = 60.0
OWNERS_MAX: Final = 4096


def shortened(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Return the text, cut to a length that is allowed in a log line or a dict key. A text that was cut ends with its
    original length.
    """
    if len(text) <= characters_max:
        return text
    return f"{text[:characters_max]}... ({len(text)} characters)"


class _Lines:
    __slots__ = ("at_s", "entries", "tokens", "unwritten")

    def __init__(self, now_s: float) -> None:
        self.at_s = now_s
        self.tokens: float = LINES_BURST
        self.unwritten = 0
        # The time at which each refusal was logged last, by the hash of the refusal.
        self.entries: dict[int, float] = {}


class RefusalLines:
    """Decides which refusals are written to the audit log, separately for each owner (`shares.owner_of`).

    Memory is limited, because only hashes of refusals are stored: at most `LINES_BURST` hashes for each of at most
    `OWNERS_MAX` owners.
    """

    def __init__(self) -> None:
        self._owners: dict[str, _Lines] = {}

    def admit(self, owner: str, entry: Hashable, now_s: float) -> int | None:
        """Decide whether the caller must log one refusal.

        If so, return the number of earlier refusals that were left out of the log. Otherwise return None. A refusal
        that repeats a logged one within a minute is not logged, and does not count as left out.
        """
        owner = shortened(owner)
        lines = self._owners.get(owner)
        if lines is None:
            if len(self._owners) >= OWNERS_MAX:
                del self._owners[next(iter(self._owners))]
            lines = self._owners[owner] = _Lines(now_s)
        key = hash(entry)
        written_at_s = lines.entries.get(key)
        if written_at_s is not None and now_s - written_at_s < REPEATED_AFTER_S:
            return None
        lines.tokens = min(LINES_BURST, lines.tokens + (now_s - lines.at_s) * LINES_PER_S)
        lines.at_s = now_s
        if lines.tokens < 1:
            lines.unwritten += 1
            return None
        lines.tokens -= 1
        lines.entries.pop(key, None)
        if len(lines.entries) >= LINES_BURST:
            del lines.entries[next(iter(lines.entries))]
        lines.entries[key] = now_s
        unwritten, lines.unwritten = lines.unwritten, 0
        return unwritten

    def take_unwritten(self, now_s: float) -> list[tuple[str, int]]:
        """Return each owner whose refusals were left out of the log, with their number, and reset that number to 0.

        An owner is returned only when its rate limit allows `LINES_PER_S` more lines. So a client that keeps causing
        refusals at a high rate is not returned; instead, the next line that `admit` allows has the number of its
        refusals that were left out.
        """
        due = [
            (owner, lines.unwritten)
            for owner, lines in self._owners.items()
            if lines.unwritten and lines.tokens + (now_s - lines.at_s) * LINES_PER_S >= LINES_PER_S
        ]
        for owner, _ in due:
            self._owners[owner].unwritten = 0
        return due

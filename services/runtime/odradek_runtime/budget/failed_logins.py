"""How long who failed to log in waits for the answer: the more often an address failed lately, the longer.

The first failures wait as long as Kafka's (`connection.failed.authentication.delay.ms`, 100 ms), so
a typing error costs nobody anything. An address is never locked: a right password gets in at once,
however often others behind the same address failed.
"""

from __future__ import annotations

from typing import Final

DELAY_MS: Final = 100
DELAY_MS_MAX: Final = 5_000
FREE_FAILURES: Final = 5
FORGOTTEN_AFTER_S: Final = 60.0
ADDRESSES_MAX: Final = 10_000


class FailedLogins:
    """Failures by address; each is forgotten after a minute without another one."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}

    def failed(self, address: str, now_s: float) -> int:
        """Count a failure; how many ms its answer waits. Doubles from the sixth failure on."""
        count, at_s = self._failures.pop(address, (0, now_s))
        if now_s - at_s > FORGOTTEN_AFTER_S:
            count = 0
        if len(self._failures) >= ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        count += 1
        self._failures[address] = (count, now_s)
        doublings = min(max(0, count - FREE_FAILURES), 16)
        return min(DELAY_MS << doublings, DELAY_MS_MAX)

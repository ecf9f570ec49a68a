"""Token buckets by name: how many requests, or failures, somebody may make in a time.

A bucket fills at `per_second` and holds at most `burst`. `take` refuses when there is less than one
token, and says in how many whole seconds there is one. Buckets that are full again are forgotten, and
there are never more than NAMES_MAX: the one that was used longest ago goes.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

NAMES_MAX: Final = 10_000


class RateLimits:
    """For the event loop."""

    def __init__(
        self,
        *,
        per_second: float,
        burst: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock_s = clock_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, at

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str) -> int:
        """Take one; 0, or the seconds to wait and nothing taken."""
        wait_s = self.wait_s(name)
        if wait_s:
            return wait_s
        now_s = self._clock_s()
        self._buckets[name] = (self._tokens(name, now_s) - 1, now_s)
        self._buckets.move_to_end(name)
        self._forget(now_s)
        return 0

    def wait_s(self, name: str) -> int:
        """The seconds until there is one; takes nothing."""
        missing = 1 - self._tokens(name, self._clock_s())
        return math.ceil(missing / self._per_second) if missing > 0 else 0

    def _tokens(self, name: str, now_s: float) -> float:
        tokens, at_s = self._buckets.get(name, (self._burst, now_s))
        return min(self._burst, tokens + (now_s - at_s) * self._per_second)

    def _forget(self, now_s: float) -> None:
        while self._buckets:
            name = next(iter(self._buckets))
            if len(self._buckets) <= NAMES_MAX and self._tokens(name, now_s) < self._burst:
                return
            del self._buckets[name]

"""The wait before a retry. It doubles up to a maximum, with jitter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits between `first_ms` and `most_ms`. Each wait is shortened at random by up to the share `jitter`, so that
    clients do not retry at the same moment.
    """

    first_ms: int = 50
    most_ms: int = 1_000
    jitter: float = 0.2

    def after(self, failures: int, draw: float) -> int:
        """Return how many ms to wait after this many consecutive failures. `failures` is at least 1, and `draw` is a
        random number in [0, 1).
        """
        assert failures >= 1, failures
        wait_ms = min(self.most_ms, self.first_ms << min(failures - 1, 20))
        return int(wait_ms * (1.0 - self.jitter * draw))

"""The wait before the next attempt: it doubles up to a bound, with jitter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits from `first_ms` to `most_ms`, shortened at random by up to the share `jitter` so that clients spread."""

    first_ms: int = 50
    most_ms: int = 1_000
    jitter: float = 0.2

    def after(self, failures: int, draw: float) -> int:
        """Ms to wait after this many consecutive failures, at least 1; `draw` is a random number from [0, 1)."""
        assert failures >= 1, failures
        wait_ms = min(self.most_ms, self.first_ms << min(failures - 1, 20))
        return int(wait_ms * (1.0 - self.jitter * draw))

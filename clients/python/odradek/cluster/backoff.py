"""How long to wait before the next attempt: doubling, with jitter, up to a bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """From `first_ms` to `most_ms`; a random draw takes up to `jitter` of it off, so that herds part."""

    first_ms: int = 50
    most_ms: int = 1_000
    jitter: float = 0.2

    def after(self, failures: int, draw: float) -> int:
        """Ms to wait after so many failures in a row (1: the first); `draw` is from [0, 1)."""
        assert failures >= 1, failures
        wait_ms = min(self.most_ms, self.first_ms << min(failures - 1, 20))
        return int(wait_ms * (1.0 - self.jitter * draw))

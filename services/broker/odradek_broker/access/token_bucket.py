"""A rate that may be exceeded for a moment and is paid for with a delay.

A bucket holds at most `rate * burst` tokens and fills at `rate` a second. Taking more than it holds
is never refused: it goes below zero, and the debt divided by the rate is how long its owner has to
wait before it may ask again (KIP-13: throttling by delay, not by error).
"""

from __future__ import annotations


class TokenBucket:
    """Times are monotonic seconds; tokens are bytes, ms or whatever the rate counts."""

    __slots__ = ("_at_s", "_burst_s", "_rate", "_tokens")

    def __init__(self, *, rate: float, burst_s: float, now_s: float) -> None:
        self._rate = rate
        self._burst_s = burst_s
        self._tokens = rate * burst_s
        self._at_s = now_s

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self._rate

    def set_rate(self, rate: float, now_s: float) -> None:
        """Change the rate; what was saved up is kept as far as it fits."""
        self._fill(now_s)
        self._rate = rate
        self._tokens = min(self._tokens, rate * self._burst_s)

    def take(self, tokens: float, now_s: float) -> float:
        """Take them; the seconds that the owner has to wait, 0 when it need not."""
        self._fill(now_s)
        self._tokens -= tokens
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate

    def debt_s(self, now_s: float) -> float:
        """The wait left, without taking anything."""
        self._fill(now_s)
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate

    def is_full(self, now_s: float) -> bool:
        """Whether its owner asked for nothing lately: the bucket may be forgotten."""
        self._fill(now_s)
        return self._tokens >= self._rate * self._burst_s

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            filled = self._tokens + (now_s - self._at_s) * self._rate
            self._tokens = min(filled, self._rate * self._burst_s)
            self._at_s = now_s

"""Client quotas: how much each client may use, and how long a client that exceeds its quota waits (KIP-13, 124, 546).

A quota in the metadata image belongs to an entity: a user, a client id, a user with a client id (each by name, or the
default entity), or an IP address. If several quotas match a request, the most specific one applies, in Kafka's order.
Usage is counted for each user, each client id, each pair of user and client id, or each IP address, depending on the
entity.

A client that exceeds its quota gets the wait as throttle time in the response, and the broker begins no request on that
connection for that time. The wait is at most `WAIT_MS_MAX`. There are at most `BUCKETS_MAX` token buckets; full buckets
are removed first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from odradek_protocol.metadata.image import QuotaEntity


class TokenBucket:
    """A token bucket. A client that exceeds its rate is delayed, not refused (KIP-13).

    A bucket holds at most `rate * burst_s` tokens, and `rate` tokens are added each second. The client may take more
    tokens than there are: the number of tokens becomes negative, and the client has to wait until the number is zero
    again. Times are monotonic seconds. Tokens are bytes, ms or another unit that a quota counts.
    """

    __slots__ = ("_at_s", "_burst_s", "_rate", "_tokens")

    def __init__(self, *, rate: float, burst_s: float, now_s: float) -> None:
        self._rate = rate
        self._burst_s = burst_s
        self._tokens = rate * burst_s
        self._at_s = now_s

    @property
    def rate(self) -> float:
        """The number of tokens that are added in a second."""
        return self._rate

    def set_rate(self, rate: float, now_s: float) -> None:
        """Change the rate. The tokens in the bucket are kept, up to the new maximum."""
        self._fill(now_s)
        self._rate = rate
        self._tokens = min(self._tokens, rate * self._burst_s)

    def take(self, tokens: float, now_s: float) -> float:
        """Take tokens, even if the number left becomes negative. Return how many seconds the client has to wait until
        it is 0 again.
        """
        self._fill(now_s)
        self._tokens -= tokens
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate

    def debt_s(self, now_s: float) -> float:
        """Return how many seconds the client still has to wait, without taking tokens."""
        self._fill(now_s)
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate

    def is_full(self, now_s: float) -> bool:
        """Return whether the bucket is full. A full bucket can be removed, because a new bucket is full, too."""
        self._fill(now_s)
        return self._tokens >= self._rate * self._burst_s

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            filled = self._tokens + (now_s - self._at_s) * self._rate
            self._tokens = min(filled, self._rate * self._burst_s)
            self._at_s = now_s


PRODUCE_RATE: Final = "producer_byte_rate"
FETCH_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_RATE: Final = "connection_creation_rate"
BURST_S: Final = 10.0  # as in Kafka: its window has 10 complete samples of 1 s and the current one
WAIT_MS_MAX: Final = 30_000
BUCKETS_MAX: Final = 20_000

_NOTHING: Final[Mapping[str, float]] = {}


class Quotas:
    """The client quotas of one broker, used only on the event loop."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.is_empty = True
        # Whether there is any request_percentage quota; most clusters have none.
        self.counts_time = False
        self._buckets: dict[tuple[str, QuotaEntity], TokenBucket] = {}

    def quotas_changed(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Apply the quotas of a new metadata image."""
        self._quotas = {tuple(sorted(entity)): dict(rates) for entity, rates in quotas.items()}
        self.is_empty = not self._quotas
        self.counts_time = any(REQUEST_PERCENTAGE in rates for rates in self._quotas.values())
        self._buckets.clear()

    def throttle_ms(self, key: str, principal: str, client_id: str | None, amount: float) -> int:
        """Count `amount` against the quota `key` of a client, and return how many ms the client has to wait."""
        if self.is_empty:
            return 0
        quota = self._find(key, principal.removeprefix("User:"), client_id or "")
        if quota is None:
            return 0
        owner, rate = quota
        return self._take(key, owner, rate, amount)

    def connection_throttle_ms(self, host: str) -> int:
        """Count a new connection from an address, and return how many ms its first request has to wait."""
        if self.is_empty:
            return 0
        for entity in ((("ip", host),), (("ip", None),)):
            rate = self._quotas.get(entity, _NOTHING).get(CONNECTION_RATE)
            if rate is not None:
                return self._take(CONNECTION_RATE, (("ip", host),), rate, 1)
        return 0

    def _take(self, key: str, owner: QuotaEntity, rate: float, amount: float) -> int:
        now_s = self._clock_s()
        bucket = self._buckets.get((key, owner))
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._drop_buckets(now_s)
            burst_s = 1.0 if key == REQUEST_PERCENTAGE else BURST_S
            bucket = TokenBucket(rate=max(rate, 1e-9), burst_s=burst_s, now_s=now_s)
            self._buckets[key, owner] = bucket
        wait_s = bucket.take(amount, now_s)
        return min(int(wait_s * 1000), WAIT_MS_MAX)

    def _find(self, key: str, user: str, client_id: str) -> tuple[QuotaEntity, float] | None:
        """Return the entity for which usage is counted, and the rate of the most specific quota that matches.

        The quotas have the same order as in Kafka's ClientQuotaManager. None: no quota matches.
        """
        both: QuotaEntity = (("client-id", client_id), ("user", user))
        as_user: QuotaEntity = (("user", user),)
        as_client: QuotaEntity = (("client-id", client_id),)
        for entity, owner in (
            (both, both),
            ((("client-id", None), ("user", user)), both),
            (as_user, as_user),
            ((("client-id", client_id), ("user", None)), both),
            ((("client-id", None), ("user", None)), both),
            ((("user", None),), as_user),
            (as_client, as_client),
            ((("client-id", None),), as_client),
        ):
            rate = self._quotas.get(entity, _NOTHING).get(key)
            if rate is not None:
                return owner, rate
        return None

    def _drop_buckets(self, now_s: float) -> None:
        for name in [name for name, bucket in self._buckets.items() if bucket.is_full(now_s)]:
            del self._buckets[name]
        # If no bucket was full, the oldest one is removed.
        while len(self._buckets) >= BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]

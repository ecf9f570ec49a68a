"""Which client may use how much, and who has to wait: Kafka's client quotas (KIP-13, 124, 546).

The image has quotas of entities: a user, a client id, a user with a client id, each by name or as
the default of its kind, or an ip. Of those that fit a request the most specific one counts, in
Kafka's order; users' and client ids' usage is then counted per the names that the quota names.

`throttle_ms` is what a request's answer tells and its connection obeys; at most `WAIT_MS_MAX`. The
buckets of clients that pay nothing are forgotten, and there are never more than `BUCKETS_MAX`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from odradek_broker.access.token_bucket import TokenBucket
from odradek_protocol.metadata.image import QuotaEntity

PRODUCE_RATE: Final = "producer_byte_rate"
FETCH_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_RATE: Final = "connection_creation_rate"
BURST_S: Final = 10.0  # Kafka's window: 11 samples of a second
WAIT_MS_MAX: Final = 30_000
BUCKETS_MAX: Final = 20_000

_NOTHING: Final[Mapping[str, float]] = {}


class Quotas:
    """Quotas of one broker. All methods are for the event loop."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self._is_empty = True
        self.counts_time = False  # whether there is any quota of time: most clusters have none
        self._buckets: dict[tuple[str, QuotaEntity], TokenBucket] = {}

    def quotas_changed(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """The image has these now."""
        self._quotas = {tuple(sorted(entity)): dict(one) for entity, one in quotas.items()}
        self._is_empty = not self._quotas
        self.counts_time = any(REQUEST_PERCENTAGE in one for one in self._quotas.values())
        self._buckets.clear()

    def throttle_ms(self, key: str, principal: str, client_id: str | None, amount: float) -> int:
        """Count `amount` against the quota `key` of a client; the ms that it has to wait."""
        if self._is_empty:
            return 0
        found = self._find(key, principal.removeprefix("User:"), client_id or "")
        if found is None:
            return 0
        who, rate = found
        return self._take(key, who, rate, amount)

    def connection_throttle_ms(self, host: str) -> int:
        """Count a connection from an address; the ms that it has to wait."""
        if self._is_empty:
            return 0
        for entity in ((("ip", host),), (("ip", None),)):
            rate = self._quotas.get(entity, _NOTHING).get(CONNECTION_RATE)
            if rate is not None:
                return self._take(CONNECTION_RATE, (("ip", host),), rate, 1)
        return 0

    def _take(self, key: str, who: QuotaEntity, rate: float, amount: float) -> int:
        now_s = self._clock_s()
        bucket = self._buckets.get((key, who))
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._forget(now_s)
            burst_s = 1.0 if key == REQUEST_PERCENTAGE else BURST_S
            bucket = TokenBucket(rate=max(rate, 1e-9), burst_s=burst_s, now_s=now_s)
            self._buckets[key, who] = bucket
        wait_s = bucket.take(amount, now_s)
        return min(int(wait_s * 1000), WAIT_MS_MAX)

    def _find(self, key: str, user: str, client_id: str) -> tuple[QuotaEntity, float] | None:
        """The quota that counts, most specific first (ClientQuotaManager.java), and for whom."""
        both: QuotaEntity = (("client-id", client_id), ("user", user))
        as_user: QuotaEntity = (("user", user),)
        as_client: QuotaEntity = (("client-id", client_id),)
        for entity, who in (
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
                return who, rate
        return None

    def _forget(self, now_s: float) -> None:
        for name in [name for name, one in self._buckets.items() if one.is_full(now_s)]:
            del self._buckets[name]
        while len(self._buckets) >= BUCKETS_MAX:  # all in debt: the oldest is forgiven
            del self._buckets[next(iter(self._buckets))]

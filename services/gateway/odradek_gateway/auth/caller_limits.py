"""Limits for each caller: how many requests and how many bytes of bodies it may have at once, and its request rate.

`RequestShares` counts a request for its client address until its caller is authenticated, and then for the caller's
principal. One principal (or one address, if callers are not authenticated) may use at most half of the requests and
a quarter of the bytes, so that other callers are still served. The application calls `begin`, `identified` and `end`
for each request. The ASGI scope of a request records for which owner it is counted, and how many bytes its body has.

`RateLimits` has one token bucket for each name. A bucket fills at `per_second` and has at most `burst` tokens. If a
bucket has less than one token, `take` takes nothing and returns the whole seconds until it has one. Full buckets are
deleted. There are never more than NAMES_MAX buckets: the least recently used one is deleted first.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from odradek_runtime.budget.shares import Shares, owner_of

Scope = MutableMapping[str, Any]
_OWNER: Final = "odradek.owner"
_BODY_BYTES: Final = "odradek.body_bytes"


class RequestShares:
    """Counts the running requests and the bytes of their bodies for each owner (a principal or an address), and refuses
    more than an owner's share. Used only on the event loop.
    """

    def __init__(self, *, requests_max: int, body_bytes_max: int, bodies_bytes_max: int) -> None:
        """`body_bytes_max` limits one body, `bodies_bytes_max` all bodies together. An owner's share of
        `bodies_bytes_max` is never below `body_bytes_max`.
        """
        self.requests = Shares(total_max=requests_max, owner_max=max(1, requests_max // 2))
        self.bodies = Shares(
            total_max=bodies_bytes_max, owner_max=max(body_bytes_max, bodies_bytes_max // 4)
        )

    def begin(self, scope: Scope) -> str | None:
        """Count a request for its client address and return None. If the address has too many running requests, return
        the reason for a refusal and count nothing.
        """
        client = scope.get("client")
        return self._take_request(scope, owner_of("", str(client[0]) if client else ""))

    def identified(self, scope: Scope, principal: str) -> str | None:
        """Count the request for its caller's principal instead of its address, and return None. If the caller has too
        many running requests, return the reason for a refusal.
        """
        owner = scope.pop(_OWNER, None)
        if owner is not None:
            self.requests.give_back(owner, 1)
        return self._take_request(scope, principal)

    def take_body(self, scope: Scope, size_bytes: int) -> str | None:
        """Count bytes of the request's body and return None. If the caller, or all callers together, have too many
        bytes of bodies, return the reason for a refusal.
        """
        owner = scope[_OWNER]
        refusal = self.bodies.refusal(owner, size_bytes, "bytes of bodies")
        if refusal is None:
            self.bodies.take(owner, size_bytes)
            scope[_BODY_BYTES] = scope.get(_BODY_BYTES, 0) + size_bytes
        return refusal

    def end(self, scope: Scope) -> None:
        """Stop counting the request and its body. It may also be called for a request that was refused."""
        owner = scope.pop(_OWNER, None)
        if owner is not None:
            self.requests.give_back(owner, 1)
            self.bodies.give_back(owner, scope.pop(_BODY_BYTES, 0))

    def _take_request(self, scope: Scope, owner: str) -> str | None:
        refusal = self.requests.refusal(owner, 1, "running requests")
        if refusal is None:
            self.requests.take(owner, 1)
            scope[_OWNER] = owner
        return refusal


NAMES_MAX: Final = 10_000


class RateLimits:
    """Rate limits by token buckets, one for each name (a principal, or an address). Used only on the event loop."""

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
        # By name: the tokens of a bucket, and the time of its last use.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str) -> int:
        """Take a token and return 0. If there is none, take nothing and return the whole seconds until there is one."""
        wait_s = self.wait_s(name)
        if wait_s:
            return wait_s
        now_s = self._clock_s()
        self._buckets[name] = (self._tokens(name, now_s) - 1, now_s)
        self._buckets.move_to_end(name)
        self._delete_full_buckets(now_s)
        return 0

    def wait_s(self, name: str) -> int:
        """Return the whole seconds until there is a token, without taking one."""
        missing = 1 - self._tokens(name, self._clock_s())
        return math.ceil(missing / self._per_second) if missing > 0 else 0

    def _tokens(self, name: str, now_s: float) -> float:
        tokens, at_s = self._buckets.get(name, (self._burst, now_s))
        return min(self._burst, tokens + (now_s - at_s) * self._per_second)

    def _delete_full_buckets(self, now_s: float) -> None:
        while self._buckets:
            name = next(iter(self._buckets))
            if len(self._buckets) <= NAMES_MAX and self._tokens(name, now_s) < self._burst:
                return
            del self._buckets[name]

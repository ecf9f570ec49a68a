"""Limits for each caller: how many requests and how many bytes of bodies it may have at once, and its request rate.

`RequestShares`: a request belongs to its address until its caller is known, then to the caller's principal. One
caller, or one address where callers are not authenticated, has at most half of the requests and a quarter of the
bytes, so others are served beside it. The application calls `begin`, `identified` and `end` for each request, and the
request's scope holds what it has taken.

`RateLimits`: token buckets by name. A bucket fills at `per_second` and holds at most `burst`. `take` refuses when
less than one token is left, and returns the whole seconds until there is one. Full buckets are deleted. There are
never more than NAMES_MAX buckets: the least recently used one is deleted first.
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
    """Counts the requests and the bytes of bodies in progress by owner, and refuses more than an owner's share. It is
    used only on the event loop.
    """

    def __init__(self, *, requests_max: int, body_bytes_max: int, bodies_bytes_max: int) -> None:
        """`body_bytes_max` limits one body, which any caller may send; `bodies_bytes_max` limits all
        bodies together.
        """
        self.requests = Shares(total_max=requests_max, owner_max=max(1, requests_max // 2))
        self.bodies = Shares(
            total_max=bodies_bytes_max, owner_max=max(body_bytes_max, bodies_bytes_max // 4)
        )

    def begin(self, scope: Scope) -> str | None:
        """Charge a request to its address. If the address has too many, return the reason and charge nothing."""
        client = scope.get("client")
        return self._take_request(scope, owner_of("", str(client[0]) if client else ""))

    def identified(self, scope: Scope, principal: str) -> str | None:
        """Move the request from its address to its caller's principal. Return a reason if the caller has too many."""
        owner = scope.pop(_OWNER, None)
        if owner is not None:
            self.requests.give_back(owner, 1)
        return self._take_request(scope, principal)

    def take_body(self, scope: Scope, size_bytes: int) -> str | None:
        """Count bytes of the request's body. Return a reason if the caller, or all callers together, have too many."""
        owner = scope[_OWNER]
        refusal = self.bodies.refusal(owner, size_bytes, "bytes of bodies")
        if refusal is None:
            self.bodies.take(owner, size_bytes)
            scope[_BODY_BYTES] = scope.get(_BODY_BYTES, 0) + size_bytes
        return refusal

    def end(self, scope: Scope) -> None:
        """Free the shares that the request holds. It may also be called for a request that was refused."""
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
    """Rate limits: a token bucket for each caller, by its name or address. Used only on the event loop."""

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
        self._buckets: OrderedDict[str, tuple[float, float]] = (
            OrderedDict()
        )  # (tokens, time of the last use)

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str) -> int:
        """Take a token and return 0, or take nothing and return the whole seconds to wait for one."""
        wait_s = self.wait_s(name)
        if wait_s:
            return wait_s
        now_s = self._clock_s()
        self._buckets[name] = (self._tokens(name, now_s) - 1, now_s)
        self._buckets.move_to_end(name)
        self._forget(now_s)
        return 0

    def wait_s(self, name: str) -> int:
        """Return the whole seconds until there is a token, without taking one."""
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

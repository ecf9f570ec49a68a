"""What one caller may take of a gateway: requests at work and bytes of bodies in memory.

A request belongs to its address until its caller is known, then to the caller's principal. One caller, or one
address where nobody is asked, has at most half of the requests and a quarter of the bytes, so that others
are served beside it. `begin`, `identified` and `end` follow a request through the application, in its scope.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from odradek_runtime.budget.shares import Shares, owner_of

Scope = MutableMapping[str, Any]
_OWNER: Final = "odradek.owner"
_BODY_BYTES: Final = "odradek.body_bytes"


class RequestShares:
    """The shares of one gateway. For the event loop."""

    def __init__(self, *, requests_max: int, body_bytes_max: int, bodies_bytes_max: int) -> None:
        """`body_bytes_max` of one body, which a caller may always send; `bodies_bytes_max` of all together."""
        self.requests = Shares(total_max=requests_max, owner_max=max(1, requests_max // 2))
        self.bodies = Shares(
            total_max=bodies_bytes_max, owner_max=max(body_bytes_max, bodies_bytes_max // 4)
        )

    def begin(self, scope: Scope) -> str | None:
        """Count a request. Returns why it must be refused, then it is not counted."""
        client = scope.get("client")
        return self._take_request(scope, owner_of("", str(client[0]) if client else ""))

    def identified(self, scope: Scope, principal: str) -> str | None:
        """The caller is known: the request is the principal's from now on. Returns why it must be refused."""
        owner = scope.pop(_OWNER, None)
        if owner is not None:
            self.requests.give_back(owner, 1)
        return self._take_request(scope, principal)

    def take_body(self, scope: Scope, size_bytes: int) -> str | None:
        """Count bytes of the request's body. Returns why they must be refused."""
        owner = scope[_OWNER]
        refusal = self.bodies.refusal(owner, size_bytes, "bytes of bodies")
        if refusal is None:
            self.bodies.take(owner, size_bytes)
            scope[_BODY_BYTES] = scope.get(_BODY_BYTES, 0) + size_bytes
        return refusal

    def end(self, scope: Scope) -> None:
        """The request is over. May be called for one that was refused."""
        owner = scope.pop(_OWNER, None)
        if owner is not None:
            self.requests.give_back(owner, 1)
            self.bodies.give_back(owner, scope.pop(_BODY_BYTES, 0))

    def _take_request(self, scope: Scope, owner: str) -> str | None:
        refusal = self.requests.refusal(owner, 1, "requests at work")
        if refusal is None:
            self.requests.take(owner, 1)
            scope[_OWNER] = owner
        return refusal

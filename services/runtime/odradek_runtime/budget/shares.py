"""Shares of resources that all clients use together: bytes in memory, connections, password checks.

What a client uses is charged to its *owner*: its principal once that is known, its address before that and
without authentication. Many clients behind one address (NAT, a gateway) with principals of their own
therefore have shares of their own, and one principal has one share however many addresses it uses.

A `Shares` is a pool of one resource. An owner may hold up to `owner_max` of it, all owners together up
to `total_max`. The code that uses the pool decides what an amount means, and what happens to a client that gets none:
it waits, is refused, or is disconnected.
"""

from __future__ import annotations

from typing import Final

from odradek_runtime.tls import ANONYMOUS

_NO_PRINCIPAL: Final = frozenset({"", ANONYMOUS})


def owner_of(principal: str, address: str) -> str:
    """Return the owner of a client: its principal, or its address (`host 10.0.0.1`) without one."""
    return f"host {address}" if principal in _NO_PRINCIPAL else principal


class Shares:
    """One pool of a resource, with the amount that each owner holds. Owners that hold nothing are forgotten."""

    __slots__ = ("_held", "owner_max", "total", "total_max")

    def __init__(self, *, total_max: int, owner_max: int) -> None:
        assert 0 < owner_max <= total_max, (owner_max, total_max)
        self.total_max = total_max
        self.owner_max = owner_max
        self.total = 0
        self._held: dict[str, int] = {}

    def of(self, owner: str) -> int:
        """Return the amount that an owner holds."""
        return self._held.get(owner, 0)

    @property
    def owners(self) -> int:
        """The number of owners that hold something."""
        return len(self._held)

    def has_room(self, owner: str, amount: int) -> bool:
        """Whether the owner may take this amount in addition.

        An owner that holds nothing may take more than `owner_max` at once while the pool has room
        for it, so that a single large request is not refused for ever.
        """
        held = self._held.get(owner, 0)
        if self.total + amount > self.total_max:
            return False
        return held + amount <= self.owner_max or not held

    def refusal(self, owner: str, amount: int, what: str) -> str | None:
        """Return, as a text for errors, why the owner may not take this amount in addition; None if it may."""
        if self.has_room(owner, amount):
            return None
        held = self.of(owner)
        if held and held + amount > self.owner_max:
            return f"{owner} holds {held} of {self.owner_max} {what}: finish or close some first"
        return f"{self.total} of {self.total_max} {what} are taken by all clients: try again later"

    def take(self, owner: str, amount: int) -> None:
        """Count an amount. Callers that must respect the bounds call `has_room` before."""
        assert amount >= 0, amount
        if amount:
            self._held[owner] = self._held.get(owner, 0) + amount
            self.total += amount

    def give_back(self, owner: str, amount: int) -> None:
        """Free an amount that was taken."""
        if not amount:
            return
        rest = self._held.get(owner, 0) - amount
        assert rest >= 0, (owner, rest, amount)
        self.total -= amount
        if rest:
            self._held[owner] = rest
        else:
            del self._held[owner]

"""Shares of resources that all clients use together: bytes in memory, connections, password checks.

The resources that a client uses are charged to its *owner*. The owner is the client's principal; before a login, or
without authentication, it is the client's address. Therefore clients behind one address (NAT, a gateway) have separate
shares if they have separate principals. One principal has one share, however many addresses it uses.

A `Shares` is a pool of one resource. An owner may use up to `owner_max` of the resource, all owners together up to
`total_max`. The caller decides what a unit of the resource is, and whether a client for which too little is free
waits, is refused, or is disconnected.
"""

from __future__ import annotations

from typing import Final

from odradek_runtime.tls import ANONYMOUS

_NO_PRINCIPAL: Final = frozenset({"", ANONYMOUS})


def owner_of(principal: str, address: str) -> str:
    """Return the owner of a client: its principal, or `host 10.0.0.1` for a client without a principal."""
    return f"host {address}" if principal in _NO_PRINCIPAL else principal


class Shares:
    """A pool of one resource, with the amount that each owner uses. An owner that uses nothing takes no memory."""

    __slots__ = ("_held", "owner_max", "total", "total_max")

    def __init__(self, *, total_max: int, owner_max: int) -> None:
        assert 0 < owner_max <= total_max, (owner_max, total_max)
        self.total_max = total_max
        self.owner_max = owner_max
        self.total = 0
        self._held: dict[str, int] = {}

    def of(self, owner: str) -> int:
        """Return the amount that an owner uses now."""
        return self._held.get(owner, 0)

    @property
    def owners(self) -> int:
        """The number of owners that use some of the resource now."""
        return len(self._held)

    def has_room(self, owner: str, amount: int) -> bool:
        """Whether the owner may take this amount in addition to what it already uses.

        An owner that uses nothing may take more than `owner_max` at once if the pool has that much free. Otherwise
        a single large request would be refused for ever.
        """
        used = self._held.get(owner, 0)
        if self.total + amount > self.total_max:
            return False
        return used + amount <= self.owner_max or not used

    def refusal(self, owner: str, amount: int, what: str) -> str | None:
        """Return an error text if the owner may not take this amount in addition, otherwise None.

        `what` is the name of the resource in the text, in plural, such as "connections".
        """
        if self.has_room(owner, amount):
            return None
        used = self.of(owner)
        if used and used + amount > self.owner_max:
            return f"{owner} holds {used} of {self.owner_max} {what}: finish or close some first"
        return f"{self.total} of {self.total_max} {what} are taken by all clients: try again later"

    def take(self, owner: str, amount: int) -> None:
        """Charge an amount to the owner. The limits are not checked: the caller calls `has_room` before."""
        assert amount >= 0, amount
        if amount:
            self._held[owner] = self._held.get(owner, 0) + amount
            self.total += amount

    def give_back(self, owner: str, amount: int) -> None:
        """Return to the pool an amount that the owner took."""
        if not amount:
            return
        remaining = self._held.get(owner, 0) - amount
        assert remaining >= 0, (owner, remaining, amount)
        self.total -= amount
        if remaining:
            self._held[owner] = remaining
        else:
            del self._held[owner]

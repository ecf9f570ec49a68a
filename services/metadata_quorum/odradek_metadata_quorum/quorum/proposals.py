"""Proposals that are appended and not yet applied, and how each of them ends.

Exactly one of three ways, whatever happens around them: *applied* (the entry at its offset has its
term), *unknown* (leadership ended, or the caller's time ran out, or a snapshot jumped over it), or
*cancelled* by the caller. A future that nobody waits for any more is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from odradek_metadata_quorum.quorum.errors import NotLeader, OutcomeUnknown


@dataclass(frozen=True, slots=True)
class HeldProposal:
    """One that came while leadership was being handed over; not appended yet."""

    payload: bytes
    epoch: int
    admitted: asyncio.Future[tuple[int, asyncio.Future[int]]]

    def admit(self, append: Callable[[bytes, int], tuple[int, asyncio.Future[int]]]) -> None:
        """Append it now, unless its caller has gone; `NotLeader` goes to the caller."""
        if self.admitted.done():
            return
        try:
            self.admitted.set_result(append(self.payload, self.epoch))
        except NotLeader as error:
            self.admitted.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Pending:
    epoch: int
    payload_bytes: int
    future: asyncio.Future[int]


class PendingProposals:
    """Bounded by the caller through `count` and `payload_bytes`."""

    def __init__(self) -> None:
        self._by_offset: dict[int, _Pending] = {}
        self.payload_bytes = 0

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._by_offset)

    def add(self, offset: int, epoch: int, payload_bytes: int) -> asyncio.Future[int]:
        """One more; the future gives its offset once applied."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        assert offset not in self._by_offset, offset
        self._by_offset[offset] = _Pending(epoch, payload_bytes, future)
        self.payload_bytes += payload_bytes
        return future

    def applied(self, offset: int, epoch: int) -> None:
        """The entry at `offset`, of term `epoch`, is applied."""
        pending = self._remove(offset)
        if pending is None or pending.future.done():
            return
        if pending.epoch == epoch:
            pending.future.set_result(offset)
        else:
            pending.future.set_exception(_unknown(offset, "another leader's entry took its place"))

    def restored(self, offset: int) -> None:
        """A snapshot replaced everything up to `offset`."""
        for waiting in [waiting for waiting in self._by_offset if waiting <= offset]:
            self._fail(waiting, "a snapshot took its place")

    def fail_all(self, reason: str) -> None:
        """None of them can be answered any more."""
        for offset in list(self._by_offset):
            self._fail(offset, reason)

    def forget(self, offset: int, epoch: int) -> None:
        """The caller does not wait any more."""
        pending = self._by_offset.get(offset)
        if pending is not None and pending.epoch == epoch:
            self._remove(offset)

    def _fail(self, offset: int, reason: str) -> None:
        pending = self._remove(offset)
        if pending is not None and not pending.future.done():
            pending.future.set_exception(_unknown(offset, reason))

    def _remove(self, offset: int) -> _Pending | None:
        pending = self._by_offset.pop(offset, None)
        if pending is not None:
            self.payload_bytes -= pending.payload_bytes
        return pending


def _unknown(offset: int, reason: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"whether entry {offset} is committed is not known: {reason}")

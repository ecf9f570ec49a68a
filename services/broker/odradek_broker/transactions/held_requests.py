"""Requests that wait for the completion of a transaction, so that clients need not poll (Init, Add, End).

They are decided in the order of their arrival when every partition of the transaction has its marker. Each waits
until its deadline at most. The number of requests is bounded for each transactional id, so that one id with many
callers leaves room for others, and for the shard.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

from odradek_broker.coordinator_step import RequestId
from odradek_broker.transactions.messages import HoldableRequest
from odradek_broker.transactions.transaction import TransactionalId


class HeldRequest(NamedTuple):
    """A request that has been neither decided nor refused yet."""

    request_id: RequestId
    request: HoldableRequest


@dataclass(slots=True, kw_only=True)
class HeldRequests:
    """The requests that wait in one shard, by transactional id."""

    of_id_max: int
    total_max: int
    _by_id: dict[TransactionalId, dict[RequestId, HeldRequest]] = field(default_factory=dict)
    _deadlines: list[tuple[int, RequestId, TransactionalId]] = field(default_factory=list)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, held: HeldRequest, *, deadline_ms: int) -> bool:
        """Let a request wait; return False if too many wait already."""
        transactional_id = held.request.transactional_id
        waiting = self._by_id.setdefault(transactional_id, {})
        if len(waiting) >= self.of_id_max or self._count >= self.total_max:
            if not waiting:
                del self._by_id[transactional_id]
            return False
        waiting[held.request_id] = held
        self._count += 1
        heapq.heappush(self._deadlines, (deadline_ms, held.request_id, transactional_id))
        return True

    def take(self, transactional_id: TransactionalId) -> list[HeldRequest]:
        """Remove and return the requests of this id, in the order of their arrival."""
        taken = list(self._by_id.pop(transactional_id, {}).values())
        self._count -= len(taken)
        if not self._count:
            self._deadlines.clear()
        return taken

    def take_expired(self, now_ms: int) -> list[HeldRequest]:
        """Remove and return the requests whose deadline has passed."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, request_id, transactional_id = heapq.heappop(self._deadlines)
            waiting = self._by_id.get(transactional_id, {})
            held = waiting.pop(request_id, None)
            if held is None:
                continue
            expired.append(held)
            self._count -= 1
            if not waiting:
                del self._by_id[transactional_id]
        return expired

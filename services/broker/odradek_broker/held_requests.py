"""Requests that a coordinator's state machine holds until an event that they wait for, or until a deadline.

So clients need not poll. The requests of one key are taken in the order of their arrival. Their number is bounded for
each key, so that a key with many callers leaves room for others, and in total.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from odradek_broker.coordinator_step import RequestId

K = TypeVar("K", bound=Hashable)
Q = TypeVar("Q")


class HeldRequest(NamedTuple, Generic[Q]):
    """A request that has been neither decided nor refused yet."""

    request_id: RequestId
    request: Q


@dataclass(slots=True, kw_only=True)
class HeldRequests(Generic[K, Q]):
    """The requests that wait in one shard, by key."""

    of_key_max: int
    total_max: int
    _by_key: dict[K, dict[RequestId, HeldRequest[Q]]] = field(default_factory=dict)
    _deadlines: list[tuple[int, RequestId, K]] = field(default_factory=list)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, key: K, held: HeldRequest[Q], *, deadline_ms: int) -> bool:
        """Let a request wait; return False if too many wait already."""
        waiting = self._by_key.get(key, {})
        if len(waiting) >= self.of_key_max or self._count >= self.total_max:
            return False
        self._by_key.setdefault(key, waiting)[held.request_id] = held
        self._count += 1
        heapq.heappush(self._deadlines, (deadline_ms, held.request_id, key))
        return True

    def take(self, key: K) -> list[HeldRequest[Q]]:
        """Remove and return the requests of this key, in the order of their arrival."""
        taken = list(self._by_key.pop(key, {}).values())
        self._count -= len(taken)
        # The deadlines of requests that were taken out stay in the heap until they pass, or until they are the
        # majority.
        if len(self._deadlines) > 2 * self._count + 1_000:
            self._deadlines = [
                entry for entry in self._deadlines if entry[1] in self._by_key.get(entry[2], {})
            ]
            heapq.heapify(self._deadlines)
        return taken

    def take_expired(self, now_ms: int) -> list[HeldRequest[Q]]:
        """Remove and return the requests whose deadline has passed."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, request_id, key = heapq.heappop(self._deadlines)
            waiting = self._by_key.get(key, {})
            held = waiting.pop(request_id, None)
            if held is None:
                continue
            expired.append(held)
            self._count -= 1
            if not waiting:
                del self._by_key[key]
        return expired

"""Requests that a coordinator's state machine parks until an event happens or a deadline passes, as in a purgatory.

Because requests wait here, clients need not poll. The requests of one key are removed in the order of their arrival.
The number of parked requests is bounded for each key and in total, so that one key with many callers does not crowd out
the requests of other keys.
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
    """A parked request, which has no response yet."""

    request_id: RequestId
    request: Q


@dataclass(slots=True, kw_only=True)
class HeldRequests(Generic[K, Q]):
    """The parked requests of one coordinator shard, by key."""

    of_key_max: int
    total_max: int
    _by_key: dict[K, dict[RequestId, HeldRequest[Q]]] = field(default_factory=dict)
    _deadlines: list[tuple[int, RequestId, K]] = field(default_factory=list)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, key: K, held: HeldRequest[Q], *, deadline_ms: int) -> bool:
        """Park a request until `take` or its deadline. Return False, without parking it, if a bound is reached."""
        waiting = self._by_key.get(key, {})
        if len(waiting) >= self.of_key_max or self._count >= self.total_max:
            return False
        self._by_key.setdefault(key, waiting)[held.request_id] = held
        self._count += 1
        heapq.heappush(self._deadlines, (deadline_ms, held.request_id, key))
        return True

    def take(self, key: K) -> list[HeldRequest[Q]]:
        """Remove and return the parked requests of this key, in the order of their arrival."""
        taken = list(self._by_key.pop(key, {}).values())
        self._count -= len(taken)
        # The deadline of a removed request stays in the heap until it passes. If such deadlines are about half of a
        # large heap, the heap is built again without them.
        if len(self._deadlines) > 2 * self._count + 1_000:
            self._deadlines = [
                entry for entry in self._deadlines if entry[1] in self._by_key.get(entry[2], {})
            ]
            heapq.heapify(self._deadlines)
        return taken

    def take_expired(self, now_ms: int) -> list[HeldRequest[Q]]:
        """Remove and return the parked requests whose deadline has passed."""
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

"""Appends with acks=all that wait for the high watermark, in order of their end offset."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from odradek_broker.partition.effects import AnswerProduce
from odradek_protocol.identity import NO_OFFSET, LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class _Waiter:
    request_id: int
    base_offset: Offset
    deadline_ms: int


class ProduceWaiters:
    """Who waits in one leader epoch; bounded by the requests that the shell lets in."""

    __slots__ = ("_added", "_heap", "_leader_epoch")

    def __init__(self, leader_epoch: LeaderEpoch) -> None:
        self._leader_epoch = leader_epoch
        self._heap: list[tuple[Offset, int, _Waiter]] = []
        self._added = 0  # keeps equal ends in order of arrival

    def __len__(self) -> int:
        return len(self._heap)

    def add(
        self, request_id: int, *, base_offset: Offset, end_offset: Offset, deadline_ms: int
    ) -> None:
        """Wait until the watermark reaches `end_offset`. A repeat may come behind its elders."""
        self._added += 1
        waiter = _Waiter(request_id, base_offset, deadline_ms)
        heappush(self._heap, (end_offset, self._added, waiter))

    def release(self, high_watermark: Offset, error_code: ErrorCode) -> list[AnswerProduce]:
        """Answer all that end at or below the watermark."""
        heap, answers = self._heap, []
        while heap and heap[0][0] <= high_watermark:
            waiter = heappop(heap)[2]
            answers.append(self._answer(waiter, error_code))
        return answers

    def expire(self, now_ms: int, error_code: ErrorCode) -> list[AnswerProduce]:
        """Answer those whose time is up; the append may yet be committed."""
        expired = [entry for entry in self._heap if entry[2].deadline_ms <= now_ms]
        if not expired:
            return []
        self._heap = [entry for entry in self._heap if entry[2].deadline_ms > now_ms]
        heapify(self._heap)
        expired.sort()
        return [self._answer(entry[2], error_code) for entry in expired]

    def fail(self, error_code: ErrorCode) -> list[AnswerProduce]:
        """Answer all: we lead no longer. Whether their records survive is unknown."""
        entries = sorted(self._heap)
        self._heap = []
        return [self._answer(entry[2], error_code) for entry in entries]

    def _answer(self, waiter: _Waiter, error_code: ErrorCode) -> AnswerProduce:
        return AnswerProduce(
            request_id=waiter.request_id,
            error_code=error_code,
            base_offset=waiter.base_offset if error_code is ErrorCode.NONE else NO_OFFSET,
            leader_epoch=self._leader_epoch,
        )

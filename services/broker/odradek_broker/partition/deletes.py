"""Handles DeleteRecords requests at a leader, from the request to the response.

    request --> leader's log start raised --> waits for the low watermark --> response
       |                                          +--> timeout; the followers may still delete the records later
       +--> refused, and nothing is deleted

A request waits for the *low watermark*, the lowest log start offset of the replicas that could lead next. With an
earlier response, a leader that is elected a moment later and has not received the new log start could still serve the
deleted records. (Kafka: DelayedDeleteRecords.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_broker.partition.effects import RespondToDelete
from odradek_broker.partition.events import DeleteRecordsRequested
from odradek_broker.partition.log_positions import LogPositions
from odradek_protocol.identity import NO_OFFSET, LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode

TO_THE_WATERMARK: Final = -1


@dataclass(frozen=True, slots=True)
class _Waiter:
    request_id: int
    before_offset: Offset
    deadline_ms: int


class Deletes:
    """The DeleteRecords requests that wait in one leader epoch. The broker bounds the number of requests that it
    accepts at once, and so the number that wait.
    """

    __slots__ = ("_leader_epoch", "_log", "_waiters")

    def __init__(self, leader_epoch: LeaderEpoch, *, log: LogPositions) -> None:
        self._leader_epoch = leader_epoch
        self._log = log
        self._waiters: list[_Waiter] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def request(self, event: DeleteRecordsRequested) -> RespondToDelete | None:
        """Refuse the request, or raise the log start offset and let the request wait for the other replicas."""
        high_watermark = self._log.high_watermark
        before_offset = event.before_offset
        if before_offset == TO_THE_WATERMARK:
            before_offset = high_watermark
        if not 0 <= before_offset <= high_watermark:
            return self.respond(event.request_id, ErrorCode.OFFSET_OUT_OF_RANGE)
        self._log.advance_start(before_offset)
        self._waiters.append(_Waiter(event.request_id, before_offset, event.deadline_ms))
        return None

    def reached(self, low_watermark: Offset) -> list[RespondToDelete]:
        """Respond to the requests whose `before_offset` is not above the low watermark."""
        done = [waiter for waiter in self._waiters if waiter.before_offset <= low_watermark]
        if done:
            self._waiters = [
                waiter for waiter in self._waiters if waiter.before_offset > low_watermark
            ]
        return [self.respond(waiter.request_id, ErrorCode.NONE, low_watermark) for waiter in done]

    def expire(self, now_ms: int) -> list[RespondToDelete]:
        """Respond to the requests whose deadline has passed."""
        late = [waiter for waiter in self._waiters if waiter.deadline_ms <= now_ms]
        if late:
            self._waiters = [waiter for waiter in self._waiters if waiter.deadline_ms > now_ms]
        return [self.respond(waiter.request_id, ErrorCode.REQUEST_TIMED_OUT) for waiter in late]

    def resign(self, error_code: ErrorCode) -> list[RespondToDelete]:
        """Fail all waiting requests, because the leader epoch is over. The next leader may or may not have the new log
        start.
        """
        waiters, self._waiters = self._waiters, []
        return [self.respond(waiter.request_id, error_code) for waiter in waiters]

    def respond(
        self, request_id: int, error_code: ErrorCode, low_watermark: Offset = NO_OFFSET
    ) -> RespondToDelete:
        return RespondToDelete(
            request_id=request_id,
            error_code=error_code,
            low_watermark=low_watermark,
            leader_epoch=self._leader_epoch,
        )

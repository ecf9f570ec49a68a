"""What clients asked a leader to append, from the request to the answer (R12).

    request --> Append --> appended --> answered at once, acks=0 and 1
       |                          +---> waits, acks=all --> committed, or its time is up
       +--> a repeat: waits like the first one did, or is answered
       +--> refused, and nothing is written

At most one Append is under way, and its end is told before anything else, so that offsets need no
reservation.
"""

from __future__ import annotations

from typing import Final

from odradek_broker.partition.effects import AnswerProduce, Append, Effect
from odradek_broker.partition.events import ProduceRequested
from odradek_broker.partition.leading.produce_waiters import ProduceWaiters
from odradek_broker.partition.leading.producer_sequences import ProducerSequences
from odradek_broker.partition.log_positions import LogPositions
from odradek_protocol.identity import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode

_ALL: Final = -1


class Produces:
    """The produce requests of one leader epoch."""

    __slots__ = ("_appending", "_leader_epoch", "_log", "_producers", "_waiters")

    def __init__(
        self, leader_epoch: LeaderEpoch, *, log: LogPositions, producers: ProducerSequences
    ) -> None:
        self._leader_epoch = leader_epoch
        self._log = log
        self._producers = producers
        self._waiters = ProduceWaiters(leader_epoch)
        self._appending: ProduceRequested | None = None

    def request(self, event: ProduceRequested, *, is_under_min_isr: bool) -> list[Effect]:
        """Refuse, find the repeat, or append."""
        assert self._appending is None, f"{event} in the middle of {self._appending}"
        if event.expected_leader_epoch not in (NO_LEADER_EPOCH, self._leader_epoch):
            return [self._answer(event, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        if event.acks == _ALL and is_under_min_isr:
            return [self._answer(event, ErrorCode.NOT_ENOUGH_REPLICAS)]
        batch = event.producer
        if batch is not None:
            found = self._producers.check(
                batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence
            )
            if not isinstance(found, ErrorCode):
                return self._repeat(event, found.base_offset, Offset(found.last_offset + 1))
            if found is not ErrorCode.NONE:
                return [self._answer(event, found)]
        self._appending = event
        return [
            Append(
                base_offset=self._log.log_end,
                leader_epoch=self._leader_epoch,
                request_id=event.request_id,
            )
        ]

    def appended(self, end_offset: Offset) -> list[Effect]:
        """The batches are in the log."""
        event, log = self._appending, self._log
        assert event is not None, "an append that was not asked for"
        base_offset = log.log_end
        assert end_offset == base_offset + event.record_count, f"{event} at {base_offset}"
        self._appending = None
        log.appended(end_offset)
        return self._answer_or_wait(event, base_offset, end_offset)

    def failed(self) -> list[Effect]:
        """The write failed, or there was no room for it."""
        event, self._appending = self._appending, None
        return [self._answer(event, ErrorCode.KAFKA_STORAGE_ERROR)] if event is not None else []

    def committed(self, high_watermark: Offset) -> list[AnswerProduce]:
        """The watermark moved: answer whose records lie below it."""
        return self._waiters.release(high_watermark, ErrorCode.NONE)

    def expire(self, now_ms: int, *, is_under_min_isr: bool) -> list[Effect]:
        """Answer whose time is up; what they appended may yet be committed."""
        if not self._waiters:
            return []
        code = ErrorCode.REQUEST_TIMED_OUT
        if is_under_min_isr:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return [*self._waiters.expire(now_ms, code)]

    def resign(self, error_code: ErrorCode) -> list[Effect]:
        """The epoch is over (R2): nobody is answered success any more."""
        assert self._appending is None, f"resigning in the middle of {self._appending}"
        return [*self._waiters.fail(error_code)]

    def _repeat(
        self, event: ProduceRequested, base_offset: Offset, end_offset: Offset
    ) -> list[Effect]:
        """A batch that is stored already is answered when the first one would have been."""
        if end_offset <= self._log.high_watermark:
            return [self._answer(event, ErrorCode.NONE, base_offset)]
        return self._answer_or_wait(event, base_offset, end_offset)

    def _answer_or_wait(
        self, event: ProduceRequested, base_offset: Offset, end_offset: Offset
    ) -> list[Effect]:
        if event.acks != _ALL:
            return [self._answer(event, ErrorCode.NONE, base_offset)]
        self._waiters.add(
            event.request_id,
            base_offset=base_offset,
            end_offset=end_offset,
            deadline_ms=event.deadline_ms,
        )
        return []

    def _answer(
        self, event: ProduceRequested, error_code: ErrorCode, base_offset: Offset = NO_OFFSET
    ) -> AnswerProduce:
        return AnswerProduce(
            request_id=event.request_id,
            error_code=error_code,
            base_offset=base_offset,
            leader_epoch=self._leader_epoch,
        )

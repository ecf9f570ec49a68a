"""Handles produce requests at a leader, from the request to the response (rule R12).

    request --> Append --> appended --> acks=0 and 1: response at once
       |                          +---> acks=all: waits until the records are committed or the deadline has passed
       +--> a duplicate: waits for the high watermark like the first copy, or gets its response at once
       +--> refused, and nothing is written

    begin_lone --> appended --> the caller responds

At most one Append is in progress, and the host reports its end before any other event, so offsets need not be reserved.
Requests that arrived together share one Append; each of them is checked and gets a response by itself.

The producer state decides whether a batch is new, a duplicate or out of order. This state belongs to the log
(`odradek_broker.log.producer_state`): every replica records the headers of the batches that it appends, rolls back with
a truncation and rebuilds the state from a snapshot and the log, so a new leader has the same state as the one before.
The response to a duplicate waits for the high watermark like the response to the first copy, because an earlier
response would acknowledge a record that may still be lost.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from odradek_broker.compiled import Value
from odradek_broker.partition.effects import Append, Effect, RespondToProduce
from odradek_broker.partition.events import ProducerBatch, ProduceRequested
from odradek_broker.partition.log_positions import LogPositions
from odradek_protocol.identity import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from odradek_protocol.kafka.error_codes import ErrorCode


class StoredBatch(Protocol):
    """A batch in the log. `last_offset` is inclusive, as in the header of a batch."""

    @property
    def base_offset(self) -> Offset: ...

    @property
    def last_offset(self) -> Offset: ...


class ProducerEntry(Protocol):
    """The state of one producer in the log."""

    @property
    def epoch(self) -> ProducerEpoch: ...

    @property
    def coordinator_epoch(self) -> int:
        """The leader epoch of the transaction coordinator that wrote the producer's last marker; -1 if there is no
        marker.
        """

    @property
    def transaction_first_offset(self) -> int:
        """The first offset of the producer's open transaction; -1 if none is open."""


class EndedTransaction(Protocol):
    """The last transaction of a producer that a marker ended in this partition. `data_epoch` is the producer epoch of
    its batches, `marker_epoch` that of the marker.
    """

    @property
    def data_epoch(self) -> ProducerEpoch: ...

    @property
    def marker_epoch(self) -> ProducerEpoch: ...

    @property
    def is_commit(self) -> bool: ...

    @property
    def is_by_leader(self) -> bool:
        """Whether a leader wrote the marker by itself, because the coordinator's marker was lost."""

    @property
    def first_offset(self) -> Offset: ...

    @property
    def marker_offset(self) -> Offset: ...


class ProducerSequences(Protocol):
    """The state of all producers of one partition, with the last five batches of each."""

    def check(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        last_sequence: int,
        is_transactional: bool = False,
    ) -> StoredBatch | ErrorCode:
        """Return the ErrorCode NONE if the batch may be appended, the StoredBatch of which it is a duplicate, or the
        error for the response.
        """
        ...

    def entry(self, producer_id: ProducerId) -> ProducerEntry | None: ...

    def ended(self, producer_id: ProducerId) -> EndedTransaction | None:
        """Return the producer's last transaction that a marker has ended since the producer states were restored from a
        snapshot; None if there is none.
        """


_ALL: Final = -1
_NONE: Final = ErrorCode.NONE
# The declared type lets compiled code compare this tuple with `is`: compiled tuples of known length have no identity.
_LONE: Final[tuple[ProduceRequested, ...]] = (
    ProduceRequested(request_id=0, record_count=0, acks=1, deadline_ms=0, producer=None),
)
"""A placeholder for the request of `begin_lone`, to which the caller responds."""


class Produces:
    """The produce requests that a leader handles in one leader epoch."""

    __slots__ = ("_appending", "_leader_epoch", "_log", "_producers", "_waiters")

    def __init__(
        self, leader_epoch: LeaderEpoch, *, log: LogPositions, producers: ProducerSequences
    ) -> None:
        self._leader_epoch = leader_epoch
        self._log = log
        self._producers = producers
        self._waiters = ProduceWaiters(leader_epoch)
        self._appending: tuple[ProduceRequested, ...] = ()

    @property
    def is_waiting(self) -> bool:
        """Whether a request with acks=all waits for the high watermark."""
        return len(self._waiters) > 0

    def request(
        self, event: ProduceRequested, *, is_under_min_isr: bool, is_transactional: bool = False
    ) -> list[Effect]:
        """Return the effects of a produce request: refuse it, recognize it as a duplicate, or append its batches. A
        transactional batch has already passed the transaction gate.
        """
        if event.producer is None and event.acks == 1 and event.expected_leader_epoch < 0:
            return [self._append((event,))]  # such a request needs no check
        refused = self._judge(event, is_under_min_isr, is_transactional)
        return [self._append((event,))] if refused is None else refused

    def request_all(
        self, events: tuple[ProduceRequested, ...], *, is_under_min_isr: bool
    ) -> list[Effect]:
        """Return the effects of several produce requests. The batches of all accepted ones are appended together."""
        effects: list[Effect] = []
        accepted: list[ProduceRequested] = []
        for event in events:
            if event.producer is None and event.acks == 1 and event.expected_leader_epoch < 0:
                accepted.append(event)  # such a request needs no check
                continue
            refused = self._judge(event, is_under_min_isr, is_transactional=False)
            if refused is None:
                accepted.append(event)
            else:
                effects.extend(refused)
        if accepted:
            effects.append(self._append(tuple(accepted)))
        return effects

    def begin_lone(
        self, producer: ProducerBatch | None, expected_leader_epoch: int
    ) -> Offset | None:
        """Begin the append of one request that gets its response as soon as its batches are in the log.

        Return the base offset of the batches, or None if the request must be refused or is a duplicate; the host then
        passes the request as an event. The leader does not call this for acks=all while the high watermark cannot
        follow the log end at once.
        """
        if expected_leader_epoch not in (NO_LEADER_EPOCH, self._leader_epoch):
            return None
        if producer is not None and _NONE is not self._producers.check(
            producer.producer_id,
            producer.producer_epoch,
            producer.base_sequence,
            producer.last_sequence,
        ):
            return None
        assert not self._appending, f"a lone append in the middle of {self._appending}"
        self._appending = _LONE
        return self._log.log_end

    def _judge(
        self, event: ProduceRequested, is_under_min_isr: bool, is_transactional: bool
    ) -> list[Effect] | None:
        """Return the effects of a request that is refused or a duplicate; None if its batches may be appended."""
        if event.expected_leader_epoch not in (NO_LEADER_EPOCH, self._leader_epoch):
            return [self._respond(event, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        if event.acks == _ALL and is_under_min_isr:
            return [self._respond(event, ErrorCode.NOT_ENOUGH_REPLICAS)]
        batch = event.producer
        if batch is not None:
            verdict = self._producers.check(
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.last_sequence,
                is_transactional,
            )
            if not isinstance(verdict, ErrorCode):
                return self._repeat(event, verdict.base_offset, Offset(verdict.last_offset + 1))
            if verdict is not ErrorCode.NONE:
                return [self._respond(event, verdict)]
        return None

    def _append(self, events: tuple[ProduceRequested, ...]) -> Append:
        assert not self._appending, f"{events} in the middle of {self._appending}"
        self._appending = events
        first, *further = events
        return Append(
            base_offset=self._log.log_end,
            leader_epoch=self._leader_epoch,
            request_id=first.request_id,
            further_ids=tuple([event.request_id for event in further]) if further else (),
        )

    def appended(self, end_offset: Offset) -> list[Effect]:
        """Respond to the requests of the append, whose batches are in the log now, or let them wait if they have
        acks=all.
        """
        events, log = self._appending, self._log
        if events is _LONE:
            self._appending = ()
            log.appended(end_offset)
            return []
        assert events, "Appended without a preceding Append"
        start = at = log.log_end
        epoch = self._leader_epoch
        self._appending = ()
        log.appended(end_offset)
        effects: list[Effect] = []
        for event in events:
            base_offset, at = at, Offset(at + event.record_count)
            if event.acks == _ALL:
                self._waiters.add(
                    event.request_id,
                    base_offset=base_offset,
                    end_offset=at,
                    deadline_ms=event.deadline_ms,
                )
            else:
                effects.append(
                    RespondToProduce(
                        request_id=event.request_id,
                        error_code=_NONE,
                        base_offset=base_offset,
                        leader_epoch=epoch,
                    )
                )
        assert at == end_offset, f"{events} from {start} to {end_offset}"
        return effects

    def failed(self) -> list[Effect]:
        """Fail the requests of the append in progress, because the write failed or was refused."""
        events, self._appending = self._appending, ()
        if events is _LONE:
            return []
        return [self._respond(event, ErrorCode.KAFKA_STORAGE_ERROR) for event in events]

    def committed(self, high_watermark: Offset) -> list[RespondToProduce]:
        """Respond to the requests whose records are below the high watermark."""
        return self._waiters.release(high_watermark, _NONE) if self._waiters.heap else []

    def expire(self, now_ms: int, *, is_under_min_isr: bool) -> list[Effect]:
        """Respond to requests whose deadline has passed; their records may still be committed."""
        if not self._waiters:
            return []
        code = ErrorCode.REQUEST_TIMED_OUT
        if is_under_min_isr:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return [*self._waiters.expire(now_ms, code)]

    def resign(self, error_code: ErrorCode) -> list[Effect]:
        """Fail all waiting requests, because the leader epoch is over (rule R2)."""
        assert not self._appending, f"resigning in the middle of {self._appending}"
        return [*self._waiters.fail(error_code)]

    def _repeat(
        self, event: ProduceRequested, base_offset: Offset, end_offset: Offset
    ) -> list[Effect]:
        """Respond to a duplicate of a stored batch. With acks=all, wait until the batch is below the high watermark."""
        if end_offset <= self._log.high_watermark:
            return [self._respond(event, ErrorCode.NONE, base_offset)]
        return self._respond_or_wait(event, base_offset, end_offset)

    def _respond_or_wait(
        self, event: ProduceRequested, base_offset: Offset, end_offset: Offset
    ) -> list[Effect]:
        if event.acks != _ALL:
            return [self._respond(event, ErrorCode.NONE, base_offset)]
        self._waiters.add(
            event.request_id,
            base_offset=base_offset,
            end_offset=end_offset,
            deadline_ms=event.deadline_ms,
        )
        return []

    def _respond(
        self, event: ProduceRequested, error_code: ErrorCode, base_offset: Offset = NO_OFFSET
    ) -> RespondToProduce:
        return RespondToProduce(
            request_id=event.request_id,
            error_code=error_code,
            base_offset=base_offset,
            leader_epoch=self._leader_epoch,
        )


class _Waiter(Value, frozen=True):
    request_id: int
    base_offset: Offset
    deadline_ms: int


class ProduceWaiters:
    """Requests with acks=all that wait for the high watermark, in the order of their end offsets.

    The broker bounds the number of requests that it accepts at once, and so the number that wait.
    """

    __slots__ = ("_added", "_leader_epoch", "heap")

    def __init__(self, leader_epoch: LeaderEpoch) -> None:
        self._leader_epoch = leader_epoch
        self.heap: list[tuple[Offset, int, _Waiter]] = []
        self._added = 0
        """The number of requests added so far. As a part of each heap entry, it keeps requests with equal end offsets
        in the order of their arrival.
        """

    def __len__(self) -> int:
        return len(self.heap)

    def add(
        self, request_id: int, *, base_offset: Offset, end_offset: Offset, deadline_ms: int
    ) -> None:
        """Let a request wait until the high watermark reaches `end_offset`. The `end_offset` of a duplicate may be
        lower than that of requests added before.
        """
        self._added += 1
        waiter = _Waiter(request_id, base_offset, deadline_ms)
        heappush(self.heap, (end_offset, self._added, waiter))

    def release(self, high_watermark: Offset, error_code: ErrorCode) -> list[RespondToProduce]:
        """Respond to all requests whose records end at or below the high watermark."""
        heap, responses = self.heap, []
        while heap and heap[0][0] <= high_watermark:
            waiter = heappop(heap)[2]
            responses.append(self._respond(waiter, error_code))
        return responses

    def expire(self, now_ms: int, error_code: ErrorCode) -> list[RespondToProduce]:
        """Respond to requests whose deadline has passed; their records may still be committed."""
        expired = [entry for entry in self.heap if entry[2].deadline_ms <= now_ms]
        if not expired:
            return []
        self.heap = [entry for entry in self.heap if entry[2].deadline_ms > now_ms]
        heapify(self.heap)
        expired.sort()
        return [self._respond(entry[2], error_code) for entry in expired]

    def fail(self, error_code: ErrorCode) -> list[RespondToProduce]:
        """Fail all requests, because this replica is no longer the leader. The next leader may or may not have their
        records.
        """
        entries = sorted(self.heap)
        self.heap = []
        return [self._respond(entry[2], error_code) for entry in entries]

    def _respond(self, waiter: _Waiter, error_code: ErrorCode) -> RespondToProduce:
        return RespondToProduce(
            request_id=waiter.request_id,
            error_code=error_code,
            base_offset=waiter.base_offset if error_code is ErrorCode.NONE else NO_OFFSET,
            leader_epoch=self._leader_epoch,
        )

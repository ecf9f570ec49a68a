"""What a simulated broker says to clients, and the gate that each answer passes when it leaves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odradek_broker.partition import effects as fx
from odradek_broker.partition import events
from odradek_broker.partition.effects import Effect
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_protocol.identity import NO_LEADER_EPOCH, LeaderEpoch, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.sim.disk import Batch
from tests.sim.network import Stream
from tests.sim.scheduler import MS

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess, Hosted

FETCH_BATCHES_MAX = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceCall:
    """A client's batch for one partition."""

    call_id: int
    partition: TopicIdPartition
    batch: Batch
    acks: int
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchCall:
    """A client wants what follows `offset`."""

    call_id: int
    partition: TopicIdPartition
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestCall:
    """A client wants the end of what is readable."""

    call_id: int
    partition: TopicIdPartition
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To any of them. `leader_epoch` is that of the broker's image, for the client to remember."""

    call_id: int
    error_code: ErrorCode
    offset: int = -1
    high_watermark: int = -1
    records: tuple[tuple[int, int], ...] = ()
    log_start: int = -1  # with an error of a fetch
    leader: int = -1
    leader_epoch: int = -1


@dataclass(slots=True)
class _Produce:
    batch: Batch
    answer: Callable[[Hosted, fx.AnswerProduce], None]


class ClientShell:
    """Belongs to one BrokerProcess."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.scheduler = broker.scheduler
        self._request_ids = itertools.count(1)
        self._produces: dict[int, _Produce] = {}

    def accept(self, stream: Stream) -> None:
        """A client's connection."""

        def on_message(call: Any) -> None:
            match call:
                case ProduceCall():
                    self._produce(stream, call)
                case FetchCall():
                    self._fetch(stream, call)
                case LatestCall():
                    self._latest(stream, call)

        stream.on_message[1] = on_message

    def delete_records(self, hosted: Hosted, before_offset: int) -> None:
        """An operator's DeleteRecords."""
        self.broker.step(
            hosted,
            events.DeleteRecordsRequested(
                request_id=next(self._request_ids),
                before_offset=before_offset,
                deadline_ms=self.broker.now_ms() + 10_000,
            ),
        )

    def _deleted(self, hosted: Hosted, effect: fx.AnswerDelete) -> None:
        if effect.error_code is ErrorCode.NONE and self.passes_gate(hosted, effect.leader_epoch):
            self.scheduler.counters["deletes answered"] += 1
            self.broker.cluster.invariants.deleted(
                hosted.partition, effect.low_watermark, effect.leader_epoch
            )

    def batch_of(self, request_id: int) -> Batch:
        return self._produces[request_id].batch

    # --- produce ---------------------------------------------------------------------------------

    def _produce(self, stream: Stream, call: ProduceCall) -> None:
        broker = self.broker
        hosted = broker.hosted.get(call.partition)
        if hosted is None:
            self._send(stream, self._error(call, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return

        def answer(hosted: Hosted, effect: fx.AnswerProduce) -> None:
            told = Answer(
                call_id=call.call_id,
                error_code=effect.error_code,
                offset=effect.base_offset,
                leader=hosted.replica.leader,
                leader_epoch=hosted.replica.leader_epoch,
            )
            self._leave_later(hosted, stream, told, effect.leader_epoch, acks=call.acks)

        self._request(hosted, _Produce(call.batch, answer), call.acks, call.timeout_ms)

    def produce_here(
        self,
        hosted: Hosted,
        batch: Batch,
        *,
        acks: int,
        timeout_ms: int,
        on_done: Callable[[ProduceOutcome], None],
        expected_leader_epoch: LeaderEpoch,
    ) -> None:
        """The broker's own coordinator writes."""

        def answer(_: Hosted, effect: fx.AnswerProduce) -> None:
            on_done(ProduceOutcome(effect.error_code, effect.base_offset))

        self._request(hosted, _Produce(batch, answer), acks, timeout_ms, expected_leader_epoch)

    def _request(
        self,
        hosted: Hosted,
        produce: _Produce,
        acks: int,
        timeout_ms: int,
        expected_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    ) -> None:
        broker, batch = self.broker, produce.batch
        request_id = next(self._request_ids)
        self._produces[request_id] = produce
        broker.step(
            hosted,
            events.ProduceRequested(
                request_id=request_id,
                record_count=len(batch.values),
                acks=acks,
                deadline_ms=broker.now_ms() + timeout_ms,
                expected_leader_epoch=expected_leader_epoch,
                producer=events.ProducerBatch(
                    producer_id=batch.producer_id,
                    producer_epoch=batch.producer_epoch,
                    base_sequence=batch.base_sequence,
                    last_sequence=batch.base_sequence + len(batch.values) - 1,
                )
                if batch.producer_id >= 0
                else None,
            ),
        )

    def carry_out(self, hosted: Hosted, effect: Effect) -> None:
        """Only the answers are left here; a produce's leaves a little later."""
        if isinstance(effect, fx.AnswerDelete):
            self._deleted(hosted, effect)
            return
        assert isinstance(effect, fx.AnswerProduce), effect
        self._produces.pop(effect.request_id).answer(hosted, effect)

    # --- fetch -----------------------------------------------------------------------------------

    def _fetch(self, stream: Stream, call: FetchCall) -> None:
        hosted = self.broker.hosted.get(call.partition)
        if hosted is None:
            self._send(stream, self._error(call, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        bound = hosted.replica.read_bound(
            last_stable_offset=hosted.replica.high_watermark,
            is_committed_only=False,
            client_leader_epoch=call.leader_epoch,
            fetch_offset=call.offset,
        )
        if bound.error_code is not ErrorCode.NONE:
            self._send(stream, self._error(call, bound.error_code, bound.start_offset))
            return
        records: list[tuple[int, int]] = []
        if call.offset < bound.end_offset:
            for batch in hosted.log.read(call.offset, bound.end_offset, FETCH_BATCHES_MAX):
                records += zip(range(batch.base, batch.end), batch.values, strict=True)
        answer = Answer(
            call_id=call.call_id,
            error_code=ErrorCode.NONE,
            offset=call.offset,
            high_watermark=bound.end_offset,
            records=tuple(r for r in records if r[0] >= call.offset),
            leader=hosted.replica.leader,
            leader_epoch=bound.leader_epoch,
        )
        self._leave_later(hosted, stream, answer, bound.leader_epoch)

    def _latest(self, stream: Stream, call: LatestCall) -> None:
        hosted = self.broker.hosted.get(call.partition)
        if hosted is None:
            self._send(stream, self._error(call, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        bound = hosted.replica.latest_offset(
            last_stable_offset=hosted.replica.high_watermark,
            is_committed_only=False,
            client_leader_epoch=call.leader_epoch,
        )
        if bound.error_code is not ErrorCode.NONE:
            self._send(stream, self._error(call, bound.error_code))
            return
        answer = Answer(
            call_id=call.call_id,
            error_code=ErrorCode.NONE,
            offset=bound.end_offset,
            leader=hosted.replica.leader,
            leader_epoch=bound.leader_epoch,
        )
        self._leave_later(hosted, stream, answer, bound.leader_epoch)

    # --- the gate --------------------------------------------------------------------------------

    def _leave_later(
        self, hosted: Hosted, stream: Stream, answer: Answer, leader_epoch: int, *, acks: int = 0
    ) -> None:
        """Reading from a cold disk, or a full socket, takes its time."""
        slow = self.scheduler.chance(0.03)
        delay = self.scheduler.between(10, 80 * MS if slow else 2 * MS)
        is_replicated = acks == -1 and self.broker.cluster.acks_all_without_controller
        self.broker.process.after(
            delay, self._leave, hosted, stream, answer, leader_epoch, is_replicated
        )

    def _leave(
        self,
        hosted: Hosted,
        stream: Stream,
        answer: Answer,
        leader_epoch: int,
        is_replicated: bool,
    ) -> None:
        """R13, where the bytes are handed to the socket."""
        if answer.error_code is ErrorCode.NONE:
            if not self.passes_gate(hosted, leader_epoch, is_replicated=is_replicated):
                self.scheduler.counters["answers stopped at the gate"] += 1
                answer = Answer(
                    call_id=answer.call_id,
                    error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    leader=hosted.replica.leader,
                    leader_epoch=hosted.replica.leader_epoch,
                )
            else:
                self.broker.cluster.invariants.answer_leaves(
                    self.broker, is_replicated=is_replicated
                )
        self._send(stream, answer)

    def passes_gate(
        self, hosted: Hosted, leader_epoch: int, *, is_replicated: bool = False
    ) -> bool:
        broker = self.broker
        return hosted.replica.may_answer(
            leader_epoch,
            lease_until_ms=broker.lease_until_ms,
            now_ms=broker.lease_clock_ms(),
            is_replicated=is_replicated,
        )

    def _error(self, call: Any, error_code: ErrorCode, log_start: int = -1) -> Answer:
        image = self.broker.image
        state = image.partition(call.partition.topic_id, call.partition.partition)
        return Answer(
            call_id=call.call_id,
            error_code=error_code,
            log_start=log_start,
            leader=state.leader if state is not None else -1,
            leader_epoch=state.leader_epoch if state is not None else -1,
        )

    def _send(self, stream: Stream, answer: Answer) -> None:
        stream.send(self.broker.process, answer)

"""What clients have asked of one replica and its core has not answered yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from odradek_broker.partition import effects as fx
from odradek_broker.replication.batch_checks import CheckedBatches, stamp_batches
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.partition_service import OffsetOutcome, ProduceOutcome
from odradek_protocol.identity import Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_runtime.logs import event_log

OnProduced = Callable[[ProduceOutcome], None]
OnDeleted = Callable[[OffsetOutcome], None]
_EMPTY: Final = bytearray()
_log = event_log(__name__)


@dataclass(slots=True)
class Produce:
    """Checked batches, in a buffer that may be stamped; `log_append_time_ms` -1: not that kind."""

    buffer: bytearray | memoryview
    batches: CheckedBatches
    on_done: OnProduced
    began_s: float
    log_append_time_ms: int

    def stamped(self, effect: fx.Append) -> bytearray | memoryview:
        """The bytes as the log is to have them; they are the log's from now on."""
        stamp_batches(
            self.buffer,
            self.batches,
            base_offset=effect.base_offset,
            leader_epoch=effect.leader_epoch,
            log_append_time_ms=self.log_append_time_ms,
        )
        buffer, self.buffer = self.buffer, _EMPTY
        return buffer


class ClientRequests:
    """By the numbers that the core calls them by; each is answered once."""

    __slots__ = ("_counters", "_deletes", "_next_id", "_produces")

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._produces: dict[int, Produce] = {}
        self._deletes: dict[int, OnDeleted] = {}
        self._next_id = 1

    def add_produce(
        self,
        records: bytes | bytearray | memoryview,
        batches: CheckedBatches,
        on_done: OnProduced,
        *,
        log_append_time_ms: int,
    ) -> int:
        """A produce, to be answered by `answer_produce`; its number."""
        buffer: bytearray | memoryview
        if isinstance(records, bytearray) or (
            isinstance(records, memoryview) and not records.readonly
        ):
            buffer = records
        else:
            buffer = bytearray(records)  # the one copy: what a client sent is not ours to stamp
        number = self._number()
        self._produces[number] = Produce(
            buffer, batches, on_done, perf_counter(), log_append_time_ms
        )
        return number

    def add_delete(self, on_done: OnDeleted) -> int:
        """A DeleteRecords, to be answered by `answer_delete`; its number."""
        number = self._number()
        self._deletes[number] = on_done
        return number

    def produce(self, number: int) -> Produce:
        """One that waits for its append."""
        return self._produces[number]

    def answer_produce(
        self, effect: fx.AnswerProduce, *, log_start_offset: Offset, message: str
    ) -> None:
        """Tell the outcome. What follows at whoever asked is none of this partition's."""
        produce = self._produces.pop(effect.request_id, None)
        if produce is None:
            return
        is_good = effect.error_code is ErrorCode.NONE
        self._counters.produce_errors += not is_good
        self._counters.produce_latencies.observe(perf_counter() - produce.began_s)
        outcome = ProduceOutcome(
            effect.error_code,
            effect.base_offset,
            produce.log_append_time_ms if is_good else -1,
            log_start_offset,
            effect.leader_epoch,
            message,
        )
        try:
            produce.on_done(outcome)
        except Exception as error:
            _log.error("What follows a produce failed", exc=error)

    def answer_delete(self, effect: fx.AnswerDelete) -> None:
        """Tell the outcome."""
        self._deletes.pop(effect.request_id)(
            OffsetOutcome(effect.error_code, effect.low_watermark, leader_epoch=effect.leader_epoch)
        )

    def _number(self) -> int:
        number = self._next_id
        self._next_id += 1
        return number

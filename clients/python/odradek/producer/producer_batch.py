"""One record batch on its way: filling, sealed, in flight, done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.errors import OdradekError
from odradek_protocol.records.attributes import Compression
from odradek_protocol.records.batch_reader import decode_batch
from odradek_protocol.records.builder import BatchBuilder

if TYPE_CHECKING:
    from odradek.producer.partition_queue import PartitionQueue

SEQUENCE_MODULUS = 1 << 31
NUMBER_STEP = 1 << 32
"""Between the numbers of two batches: room for the halves of halves."""


class ProducerBatch:
    """Records of one partition that live or fail together. Owned by its queue until it is done."""

    __slots__ = (
        "_builder",
        "_callbacks",
        "_encoded",
        "_number_width",
        "_whole",
        "append",
        "attempt",
        "base_offset",
        "base_sequence",
        "created_ms",
        "error",
        "halves",
        "is_done",
        "last_error",
        "log_append_time_ms",
        "number",
        "producer_epoch",
        "producer_id",
        "queue",
        "record_count",
        "size_bytes",
    )

    def __init__(
        self, queue: PartitionQueue, number: int, created_ms: int, batch_bytes_max: int
    ) -> None:
        self._builder = BatchBuilder(batch_bytes_max)
        self._callbacks: list[Callable[[], object]] = []
        self._encoded: bytes | None = None
        self.append = self._builder.append
        """(key, value, headers, timestamp_ms) -> size of the batch in bytes; 0: does not fit."""
        self.queue = queue
        self.halves: tuple[ProducerBatch, ProducerBatch] | None = None
        """What it was split into: they carry its records, it is done when both are."""
        self._whole: ProducerBatch | None = None
        self._number_width = NUMBER_STEP
        self.number = number
        """Rises within the queue, in the order of the records."""
        self.created_ms = created_ms
        self.record_count = 0
        self.size_bytes = 0
        self.attempt = 0
        """How often it was sent. An answer to an earlier attempt is no answer to this one."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.is_done = False
        self.error: OdradekError | None = None
        self.last_error: OdradekError | None = None
        """Why the last attempt failed, for the message when time runs out."""
        self.base_offset = -1
        self.log_append_time_ms = -1

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call it when the batch is done; it must not be yet."""
        assert not self.is_done
        self._callbacks.append(callback)

    def number_as(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Number its records, or number them anew; all -1 takes the numbers away."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self._encoded = None

    def encode(self, compression: Compression, level: int | None) -> bytes:
        """The batch's bytes; made once, kept for retries."""
        if self._encoded is None:
            self._encoded = self._builder.build(
                compression=compression,
                compression_level=level,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
            )
        return self._encoded

    def leaf(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that carries this one's record `index` now, and the record's index in it."""
        batch = self
        while batch.halves is not None:
            first, second = batch.halves
            if index < first.record_count:
                batch = first
            else:
                batch, index = second, index - first.record_count
        return batch, index

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Two batches of half the records each, with their share of the numbers of this one.

        It needs two records or more, and must not have been written: the halves take over its
        sequence numbers.
        """
        assert self.record_count > 1
        records = decode_batch(self._builder.build())
        middle = len(records) // 2
        width = self._number_width // 2
        halves = []
        for start, end, number in (
            (0, middle, self.number),
            (middle, len(records), self.number + width),
        ):
            half = ProducerBatch(self.queue, number, self.created_ms, self.size_bytes)
            half._whole, half._number_width = self, width
            for record in records[start:end]:
                half.size_bytes = half.append(
                    record.key, record.value, record.headers, record.timestamp_ms
                )
            half.record_count = end - start
            if self.base_sequence >= 0:
                half.number_as(
                    self.producer_id,
                    self.producer_epoch,
                    (self.base_sequence + start) % SEQUENCE_MODULUS,
                )
            halves.append(half)
        self.halves = (halves[0], halves[1])
        return self.halves

    def finish(self, error: OdradekError | None) -> list[Callable[[], object]]:
        """Mark it done and free its bytes; returns the callbacks, for the shell to run."""
        assert not self.is_done
        self.is_done = True
        self.error = error
        self._encoded = None
        del self._builder, self.append
        callbacks, self._callbacks = self._callbacks, []
        whole, self._whole = self._whole, None
        if (
            whole is not None
            and whole.halves is not None
            and all(half.is_done for half in whole.halves)
        ):
            callbacks += whole.finish(error)
        return callbacks

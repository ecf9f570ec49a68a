"""The results of `send`. A `DeliveryFuture` refers to the batch of its record, and to the record's index in the batch.
It computes the offset of the record from the batch's base offset only when the program reads the result. So an
acknowledgement costs nothing per record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, overload

from odradek.errors import OdradekError
from odradek.producer.partition_queue import ProducerBatch


class RecordMetadata(NamedTuple):
    """The position of a written record.

    `offset` is -1 with acks=0, and also if the broker recognized a duplicate so old that the offset is no longer known.
    `log_append_time_ms` is the broker's time of the append for topics with message.timestamp.type=LogAppendTime,
    otherwise -1.
    """

    topic: str
    partition: int
    offset: int
    log_append_time_ms: int


class Deliveries(Sequence["DeliveryFuture"]):
    """The futures of records that were sent together, in order. Each future is created when it is accessed."""

    __slots__ = ("_length", "_runs")

    def __init__(self) -> None:
        self._length = 0
        self._runs: list[tuple[ProducerBatch, int, int]] = []
        """(batch, index of the first record in the batch, number of records)"""

    def add(self, first: DeliveryFuture, count: int) -> None:
        """Add `count` consecutive records of one batch. `first` is the future of the first record."""
        self._runs.append((first._batch, first._index, count))
        self._length += count

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[DeliveryFuture]:
        for batch, index, count in self._runs:
            for position in range(index, index + count):
                yield DeliveryFuture(batch, position)

    @overload
    def __getitem__(self, position: int) -> DeliveryFuture: ...
    @overload
    def __getitem__(self, position: slice) -> list[DeliveryFuture]: ...
    def __getitem__(self, position: int | slice) -> DeliveryFuture | list[DeliveryFuture]:
        if isinstance(position, slice):
            return list(self)[position]
        offset = position if position >= 0 else position + self._length
        if 0 <= offset < self._length:
            for batch, index, count in self._runs:
                if offset < count:
                    return DeliveryFuture(batch, index + offset)
                offset -= count
        raise IndexError(f"there are {self._length} records, and no record {position}")

    def add_done_callback(self, callback: Callable[[int, OdradekError | None], object]) -> None:
        """Call `callback(records, error)` on the event loop whenever some of the records are acknowledged (`error` is
        None) or have failed. `records` is their number; over all calls, each record is counted once.
        """
        for batch, index, count in self._runs:
            if batch.is_done:
                loop = asyncio.get_running_loop()
                loop.call_soon(_report, batch, index, count, callback)
            else:
                batch.on_done(partial(_report, batch, index, count, callback))


def _report(
    batch: ProducerBatch,
    index: int,
    count: int,
    callback: Callable[[int, OdradekError | None], object],
) -> None:
    if batch.halves is None:
        callback(count, batch.error)
        return
    # The batch was split, and its parts may have different results.
    for position in range(index, index + count):
        callback(1, batch.leaf(position)[0].error)


class DeliveryFuture:
    """An awaitable for one sent record. It returns `RecordMetadata`, or raises the record's error.

    It works like an asyncio.Future, but cannot be cancelled, because a record that was sent cannot be recalled.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __repr__(self) -> str:
        if not self.done():
            return "<DeliveryFuture pending>"
        return f"<DeliveryFuture {self.exception() or self.result()}>"

    def done(self) -> bool:
        """Return whether the record was acknowledged or failed."""
        return self._batch.is_done

    def cancelled(self) -> bool:
        """Return False, because a record cannot be cancelled. For compatibility with asyncio.Future."""
        return False

    def result(self) -> RecordMetadata:
        """Return the position of the record.

        Raises:
            OdradekError: the record failed.
            asyncio.InvalidStateError: the record is neither acknowledged nor failed yet.
        """
        if not self._batch.is_done:
            raise _pending()
        batch, index = self._batch.leaf(self._index)
        if batch.error is not None:
            raise batch.error
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        queue = batch.queue
        return RecordMetadata(queue.topic, queue.partition, offset, batch.log_append_time_ms)

    def exception(self) -> OdradekError | None:
        """Return the error of the record, or None if it was acknowledged.

        Raises:
            asyncio.InvalidStateError: the record is neither acknowledged nor failed yet.
        """
        if not self._batch.is_done:
            raise _pending()
        batch, _ = self._batch.leaf(self._index)
        return batch.error

    def add_done_callback(self, callback: Callable[[DeliveryFuture], object]) -> None:
        """Call `callback(self)` on the event loop when the record is acknowledged or has failed. If that has already
        happened, the callback is called soon.
        """
        if self._batch.is_done:
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._batch.on_done(lambda: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._batch.is_done:
            waiter = asyncio.get_running_loop().create_future()
            self._batch.on_done(lambda: None if waiter.done() else waiter.set_result(None))
            yield from waiter
        return self.result()


def _pending() -> asyncio.InvalidStateError:
    return asyncio.InvalidStateError("the record has no result yet: await it first")

"""The result of `send`: a light future per record, which is resolved by the record's batch. A future holds two
references. An acknowledgement costs nothing per record: the batch keeps its base offset, and each future computes its
own offset when it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from odradek.errors import OdradekError
from odradek.producer.partition_queue import ProducerBatch


class RecordMetadata(NamedTuple):
    """The position of a written record. `offset` is -1 with acks=0, or if the broker recognized a repeat late.

    `log_append_time_ms` is the time of the broker for topics with LogAppendTime, else -1.
    """

    topic: str
    partition: int
    offset: int
    log_append_time_ms: int


class DeliveryFuture:
    """An awaitable that returns `RecordMetadata`, or raises the error of the record.

    It is like an asyncio.Future, but it cannot be cancelled, because a record that was sent cannot be recalled.
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
        """Whether the record was acknowledged or failed."""
        return self._batch.is_done

    def cancelled(self) -> bool:
        """Return False: a record cannot be cancelled."""
        return False

    def result(self) -> RecordMetadata:
        """Return the position of the record.

        Raises the record's error, or asyncio.InvalidStateError before it is done.
        """
        error = self.exception()
        if error is not None:
            raise error
        batch, index = self._batch.leaf(self._index)
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        queue = batch.queue
        return RecordMetadata(queue.topic, queue.partition, offset, batch.log_append_time_ms)

    def exception(self) -> OdradekError | None:
        """Return the error of the record, or None. Raises asyncio.InvalidStateError before it is done."""
        if not self._batch.is_done:
            raise asyncio.InvalidStateError("the record has no result yet: await it first")
        batch, _ = self._batch.leaf(self._index)
        return batch.error

    def add_done_callback(self, callback: Callable[[DeliveryFuture], object]) -> None:
        """Call `callback(self)` on the loop when the record is done, or soon if it is done already."""
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

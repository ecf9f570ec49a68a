"""What `send` gives back: a light future per record, resolved by its batch.

A record's future is two references. Nothing is done per record when a batch is acknowledged: the
batch notes its base offset once, and each future works out its own when it is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from odradek.errors import OdradekError
from odradek.producer.partition_queue import ProducerBatch


class RecordMetadata(NamedTuple):
    """Where a record is now. `offset` is -1 with acks=0, or when a repeat was recognized too late.

    `log_append_time_ms` is the broker's clock for topics with LogAppendTime, else -1.
    """

    topic: str
    partition: int
    offset: int
    log_append_time_ms: int


class DeliveryFuture:
    """Awaitable: gives `RecordMetadata`, or raises why the record was not acknowledged.

    Like an asyncio.Future, but it cannot be cancelled: a record that was sent is sent.
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
        """Whether it is acknowledged or failed."""
        return self._batch.is_done

    def cancelled(self) -> bool:
        """Never."""
        return False

    def result(self) -> RecordMetadata:
        """Where the record is. Raises its error, or asyncio.InvalidStateError before it is done."""
        error = self.exception()
        if error is not None:
            raise error
        batch, index = self._batch.leaf(self._index)
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        queue = batch.queue
        return RecordMetadata(queue.topic, queue.partition, offset, batch.log_append_time_ms)

    def exception(self) -> OdradekError | None:
        """Why it failed, or None. Raises asyncio.InvalidStateError before it is done."""
        if not self._batch.is_done:
            raise asyncio.InvalidStateError("the record is not acknowledged yet")
        batch, _ = self._batch.leaf(self._index)
        return batch.error

    def add_done_callback(self, callback: Callable[[DeliveryFuture], object]) -> None:
        """Call `callback(self)` on the loop when done, or soon if it is already."""
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

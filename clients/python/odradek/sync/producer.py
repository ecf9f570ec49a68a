"""The synchronous producer, and its transactions.

The producer collects records in the caller's thread and passes them to the event loop in groups, because a switch to
another thread costs more than sending a record. `send` appends to a queue, and wakes the event loop only if the queue
was empty. The queue is bounded: `send` waits while the queue is full, which happens when the buffer of the asynchronous
producer is full.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from operator import length_hint
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from odradek.consumer.options import GroupIdentity
from odradek.errors import (
    BufferFull,
    ClientClosed,
    FlushTimedOut,
    NotInTransaction,
    OdradekError,
    RequestTimedOut,
    TransactionAborted,
)
from odradek.partitions import ByPartition
from odradek.producer.accumulator import Headers
from odradek.producer.delivery import RecordMetadata
from odradek.producer.producer import CLOSE_S_MAX
from odradek.producer.producer import Producer as AsyncProducer
from odradek.producer.transaction import Transaction as AsyncTransaction
from odradek.producer.transaction import retry_pauses_s
from odradek.sync.consumer import Consumer
from odradek.sync.loop_thread import LoopThread

WAITING_RECORDS_MAX: Final = 10_000
EXIT_FLUSH_S_MAX: Final = 10.0

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Delivery:
    """The acknowledgement of one record. Any thread can wait for it."""

    __slots__ = ("_callbacks", "_error", "_lock", "_metadata", "_thread", "_waiter")

    def __init__(self, lock: threading.Lock, thread: LoopThread) -> None:
        self._lock = lock
        self._thread = thread
        self._metadata: RecordMetadata | None = None
        self._error: BaseException | None = None
        self._waiter: threading.Event | None = None
        self._callbacks: list[Callable[[Delivery], object]] | None = None

    def __repr__(self) -> str:
        return f"<Delivery {self._error or self._metadata or 'pending'}>"

    def done(self) -> bool:
        """Return whether the record was acknowledged or has failed."""
        return self._metadata is not None or self._error is not None

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement and return the record's position. Raises the error of the record, or
        RequestTimedOut.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        assert self._metadata is not None
        return self._metadata

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait until the record is acknowledged or has failed, and return its error; None if it was acknowledged.
        Raises RequestTimedOut. Raises RuntimeError if a callback of the SDK, which must not wait, would have to wait.
        """
        with self._lock:
            if not self.done() and self._waiter is None:
                self._waiter = threading.Event()
            waiter = self._waiter
        if waiter is not None and not self.done() and self._thread.is_current:
            self._thread.refuse_to_wait()
        if waiter is not None and not waiter.wait(timeout_s):
            raise RequestTimedOut(f"the record was not acknowledged within {timeout_s} s")
        return self._error

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(self)` on the SDK's thread when the record is acknowledged or has failed. If that has already
        happened, call it immediately, on the caller's thread. Exceptions of the callback are logged.
        """
        with self._lock:
            if not self.done():
                self._callbacks = [*(self._callbacks or ()), callback]
                return
        self._call(callback)

    @property
    def _is_awaited(self) -> bool:
        """Whether a thread waits for the delivery, or a callback is registered."""
        return self._waiter is not None or self._callbacks is not None

    def _finish(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        with self._lock:
            self._metadata, self._error = metadata, error
            callbacks, self._callbacks = self._callbacks, None
            if self._waiter is not None:
                self._waiter.set()
        for callback in callbacks or ():
            self._call(callback)

    def _call(self, callback: Callable[[Delivery], object]) -> None:
        try:
            callback(self)
        except Exception:  # An exception of the program's callback must not affect other records.
            _log.exception("The program's delivery callback raised an exception")


_Item = tuple[str, Any, Any, Headers | None, int | None, int | None, Delivery]


class Producer:
    """The synchronous form of `odradek.Producer`. Its methods need no `await`."""

    def __init__(self, thread: LoopThread, producer: AsyncProducer) -> None:
        self._thread = thread
        self._producer = producer
        self._lock = threading.Lock()
        self._space = threading.Condition(self._lock)
        self._waiting: deque[_Item] = deque()
        self._is_draining = False
        self._drain: asyncio.Task[None] | None = None
        self._unsent: Iterator[_Item] = iter(())
        """The iterator of the drain task, over records that were removed from the queue but are not sent yet."""
        self._is_transactional = producer.options.transactional_id is not None
        self._transaction: AsyncTransaction | None = None
        self._unsendable: BaseException | None = None
        """Why a record of the open transaction could not be sent, so the transaction must not commit. None: all records
        could be sent.
        """
        self._is_closed = False
        self._is_exiting = False
        self._lost_records = 0
        """The number of records that failed while the interpreter exited. They are logged in one line."""
        self._loss: BaseException | None = None
        thread.open_parts[self] = None

    def __repr__(self) -> str:
        return repr(self._producer).replace("<odradek.", "<odradek.sync.", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Put one record into the buffer. The call waits only for buffer space. Errors of the record are raised by its
        `Delivery`.

        Raises:
            BufferFull: the buffer had no space within `max_block_ms`. A call in a delivery callback does not wait: it
                may fill the queue to twice its size, and then raises the error immediately.
            NotInTransaction: the producer is transactional, but no transaction is open.
        """
        delivery = Delivery(self._lock, self._thread)
        with self._lock:
            if self._is_closed:
                raise ClientClosed("the producer is closed")
            if not self._thread.is_usable:
                self._thread.refuse()
            if self._is_transactional and self._transaction is None:
                raise NotInTransaction("this producer can only send in a transaction")
            if len(self._waiting) >= WAITING_RECORDS_MAX:
                self._wait_for_space(topic)
            self._waiting.append((topic, value, key, headers, partition, timestamp_ms, delivery))
            must_wake, self._is_draining = not self._is_draining, True
        if must_wake:
            self._thread.call_soon(self._start_drain)
        return delivery

    def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait for its acknowledgement. Raises the errors of `send` and of the delivery."""
        delivery = self.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return delivery.result()

    def send_many(
        self, topic: str, values: Iterable[Any], *, key: Any = None, partition: int | None = None
    ) -> list[Delivery]:
        """Send several values in order, with the same key and partition if they are given."""
        return [self.send(topic, value, key=key, partition=partition) for value in values]

    def transaction(self) -> Transaction:
        """Create a transaction, for `with producer.transaction() as transaction:`. See
        `odradek.Producer.transaction`.
        """
        return Transaction(self, self._producer.transaction())

    def run_transaction(self, work: Callable[[Transaction], T], *, attempts: int = 5) -> T:
        """Run `work(transaction)` in a transaction, and return its result. If the transaction is aborted, run `work`
        again, up to `attempts` times in total.
        """
        for pause_s in (*retry_pauses_s(attempts), None):
            try:
                with self.transaction() as transaction:
                    return work(transaction)
            except TransactionAborted:
                if pause_s is None:
                    raise
                time.sleep(pause_s)
        raise AssertionError("unreachable")

    def init(self) -> None:
        """Fence older producers with this transactional id, and abort their open transaction."""
        self._thread.run(self._producer.init())

    def begin_transaction(self, transaction: AsyncTransaction) -> None:
        """Begin a transaction. `Transaction` calls this method."""
        self._thread.run(transaction.__aenter__())
        with self._lock:
            self._transaction, self._unsendable = transaction, None

    def drain_transaction(self) -> BaseException | None:
        """Accept no more records in the transaction, and pass all queued records to the asynchronous producer.

        Return the error of the first record of the transaction that could not be sent; None if there is none.
        """
        with self._lock:
            self._transaction = None
        self._thread.run(self._drained())
        return self._unsendable

    def call_in_transaction(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call of the open transaction. `Transaction` calls this method."""
        return self._thread.run(work)

    def end_transaction(self, work: Coroutine[Any, Any, None]) -> None:
        """Commit or abort, after all queued records were passed to the asynchronous producer. `Transaction` calls this
        method.
        """
        with self._lock:
            self._transaction = None

        async def end() -> None:
            await self._drained()
            await work

        self._thread.run(end())

    async def _drained(self) -> None:
        self._start_drain()
        while self._drain is not None and not self._drain.done():
            await asyncio.wait({self._drain})

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record that was sent before this call is acknowledged or has failed. Raises
        FlushTimedOut.
        """
        self._thread.run(self._flush(timeout_s))

    def close(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """Send the buffered records for at most `timeout_s` seconds; other records fail with ClientClosed. May be
        called twice.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._space.notify_all()
        if self._thread.is_usable:
            self._thread.run(self._close(timeout_s))
        self._thread.open_parts.pop(self, None)

    def close_at_exit(self) -> None:
        """Flush the records that are still buffered, for at most EXIT_FLUSH_S_MAX, and log what was lost."""
        self._is_exiting = True
        self.close(EXIT_FLUSH_S_MAX)
        if self._lost_records:
            _log.error(
                "%d records were not acknowledged before the program ended; use the producer in a `with`"
                " block, or call its flush() or close(). Cause: %s",
                self._lost_records,
                self._loss,
            )

    def explain_waiting(self) -> str:
        """Return, in words for a user, why the oldest records are not acknowledged yet. The result is "" if all records
        are acknowledged.
        """
        return self._thread.call(self._producer.explain_waiting)

    def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic. Waits for the metadata of the topic at its first use."""
        return self._thread.run(self._producer.partitions_for(topic))

    def _wait_for_space(self, topic: str) -> None:
        """Wait for space in the queue. The caller holds the lock.

        A delivery callback must not wait, because it blocks the event loop that frees space. For callbacks, the queue
        may grow to twice its size.
        """
        if self._thread.is_current:
            if len(self._waiting) < 2 * WAITING_RECORDS_MAX:
                return
            raise BufferFull(
                f"the buffer has no space for a record for {topic!r}, and a callback cannot wait"
            )
        timeout_s = self._producer.options.max_block_ms / 1000
        has_space = self._space.wait_for(
            lambda: len(self._waiting) < WAITING_RECORDS_MAX or self._is_closed, timeout_s
        )
        if self._is_closed:
            raise ClientClosed("the producer was closed while a record waited for buffer space")
        if not has_space:
            raise BufferFull(
                f"the buffer had no space for a record for {topic!r} within {timeout_s} s"
            )

    def _start_drain(self) -> None:
        """Start the task that passes the queued records to the asynchronous producer, unless it is running.

        Methods that wait until the queue is empty call this method, too, because Ctrl-C may interrupt `send` before it
        wakes the loop.
        """
        if self._drain is not None and not self._drain.done():
            return
        self._drain = self._thread.loop.create_task(self._drain_all(), name="sync producer: drain")

    async def _drain_all(self) -> None:
        try:
            while True:
                with self._lock:
                    items, self._waiting = self._waiting, deque()
                    self._space.notify_all()
                    if not items:
                        self._is_draining = False
                        return
                self._unsent = iter(items)
                for item in self._unsent:
                    await self._send(item)
        except asyncio.CancelledError:  # The producer or its client was closed.
            with self._lock:
                self._is_closed = True
                unsent_items, self._waiting = (*self._unsent, *self._waiting), deque()
                self._space.notify_all()
            for topic, *_, delivery in unsent_items:
                closed = ClientClosed("the producer was closed before this record was sent")
                self._fail(delivery, topic, closed)
            raise

    async def _send(self, item: _Item) -> None:
        topic, value, key, headers, partition, timestamp_ms, delivery = item
        try:
            future = await self._producer.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        except Exception as error:
            self._fail(delivery, topic, error)
            return
        except BaseException:
            self._fail(delivery, topic, ClientClosed("the client was closed"))
            raise

        def finish(done: object) -> None:
            error = future.exception()
            if error is None:
                delivery._finish(future.result(), None)
            else:
                self._fail(delivery, topic, error)

        future.add_done_callback(finish)

    def _fail(self, delivery: Delivery, topic: str, error: BaseException) -> None:
        if self._is_transactional:
            self._unsendable = self._unsendable or error
        elif self._is_exiting:
            self._lost_records += 1
            self._loss = self._loss or error
        elif not delivery._is_awaited:
            _log.warning("Failed to write a record to %r: %s", topic, error)
        delivery._finish(None, error)

    async def _flush(self, timeout_s: float | None) -> None:
        self._start_drain()
        deadline_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        while self._drain is not None and not self._drain.done():
            await asyncio.wait({self._drain}, timeout=_remaining_s(deadline_s))
            if deadline_s is not None and not self._drain.done():
                unsent = 1 + length_hint(self._unsent) + len(self._waiting)
                raise FlushTimedOut(
                    f"after {timeout_s} s, {unsent} records still waited for the metadata of their topic,"
                    " or for buffer space"
                )
        await self._producer.flush(_remaining_s(deadline_s))

    async def _close(self, timeout_s: float) -> None:
        self._start_drain()
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        drain = self._drain
        if drain is not None and not drain.done():
            await asyncio.wait({drain}, timeout=timeout_s)
            drain.cancel()
            await asyncio.wait({drain})
        await self._producer.close(_remaining_s(deadline_s) or 0.0)


def _remaining_s(deadline_s: float | None) -> float | None:
    """Return the seconds until the deadline, on the clock of the running event loop; None without a deadline."""
    if deadline_s is None:
        return None
    return max(0.0, deadline_s - asyncio.get_running_loop().time())


class Transaction:
    """The synchronous form of `odradek.Transaction`. The same thread must send the records and end the
    transaction.
    """

    def __init__(self, producer: Producer, core: AsyncTransaction) -> None:
        self._producer = producer
        self._core = core

    def __enter__(self) -> Self:
        self._producer.begin_transaction(self._core)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.is_open:
            return
        if error is None:
            self.commit()
        else:
            self._producer.end_transaction(self._core.__aexit__(kind, error, trace))

    @property
    def is_open(self) -> bool:
        return self._core.is_open

    def send_offsets(self, offsets: ByPartition[int], group: Consumer | GroupIdentity) -> None:
        """Add offsets of a consumer group to the transaction. They are committed when the transaction commits."""
        reader = group if isinstance(group, GroupIdentity) else group._core
        self._producer.call_in_transaction(self._core.send_offsets(offsets, reader))

    def commit(self) -> None:
        """Wait until all records are acknowledged, and commit. Raises the errors of `odradek.Transaction.commit`."""
        failure = self._producer.drain_transaction()
        if failure is None:
            self._producer.end_transaction(self._core.commit())
            return
        self._producer.end_transaction(self._core.abort())
        code = failure.code if isinstance(failure, OdradekError) else None
        raise TransactionAborted(
            f"the transaction was aborted, because a record could not be sent: {failure}", code=code
        ) from failure

    def abort(self) -> None:
        """Abort the transaction, so that none of its records and offsets takes effect."""
        self._producer.end_transaction(self._core.abort())

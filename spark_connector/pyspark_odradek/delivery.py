"""The interface by which the sink writes batches, and its implementation for at-least-once delivery.

A task *stages* its rows. At its end it *prepares* them: from then on a failure of the task cannot lose the rows. When
every task of a batch has prepared its rows, the driver *completes* the batch in one call. Repeating the call does not
change the outcome; Spark repeats it if the driver crashed after the call and before Spark wrote its commit log.

With `AtLeastOnce`, records are visible as soon as they are acknowledged. So preparing flushes the producer, and
completing does nothing. A task that Spark runs again writes its rows again. `ExactlyOnce` (`staged_delivery.py`) stages
rows in transactions, all of which are committed when the batch is completed.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from odradek.errors import OdradekError
from odradek.producer.delivery import DeliveryFuture
from odradek.producer.options import ProducerOptions
from odradek.producer.producer import Producer
from odradek.producer.staged_writes import PreparedTask
from pyspark_odradek.process_link import ProcessLink, link_to
from pyspark_odradek.sink_options import SinkOptions

_UNCHECKED_MAX: Final = 50_000
MARGIN_S: Final = 60.0


def check_target(options: SinkOptions) -> None:
    """Check on the driver that the cluster responds, and that the topic of the option `topic` exists, before Spark
    starts tasks. Topics of the column `topic` are checked when a task sends the first row to them.

    Later calls of a process that has reached the cluster need no request.

    Raises:
        WrongListener, AuthenticationFailed, BrokersUnavailable: the cluster did not respond (`ProcessLink.reach`).
        UnknownTopic, AuthorizationFailed: the topic does not exist, or the caller may not see it.
    """
    link = link_to(options.connection)
    link.reach()
    if options.topic is not None:
        producer = ProducerOptions(**dict(options.producer))
        timeout_s = producer.max_block_ms / 1000
        link.run(
            link.cluster.topic(
                options.topic,
                timeout_s=timeout_s,
                allow_create=producer.allow_auto_create_topics,
            ),
            timeout_s=timeout_s + MARGIN_S,
        )


class OutputRecord(NamedTuple):
    """A row of a DataFrame, converted to a record.

    If `partition` is None, the producer chooses the partition by the key. Records without a key go to another partition
    with each batch of the producer.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    partition: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity:
    """The identity of a task that writes. The `query_id` of a stream comes from its checkpoint, and that of a batch
    write from `write_step`; a batch write without `write_step` has a new `query_id`.
    """

    query_id: str
    batch_id: int
    partition_id: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWrite:
    """The result of `Stage.prepare`, which a task reports to the driver."""

    identity: TaskIdentity
    is_staged: bool
    """Whether the rows become visible only when the batch is completed. If False, they are visible already."""
    task: PreparedTask | None = None
    """The staged task that is committed when the batch is completed. None if the rows are not staged, or if the batch
    was already complete and the rows were discarded.
    """
    record_count: int = 0
    size_bytes: int = 0


class Stage(Protocol):
    """Writes the rows of one task."""

    def send(self, records: Sequence[OutputRecord]) -> None:
        """Send rows. The call waits only for space in the producer's buffer. It raises the error of any earlier row
        that could not be written.
        """

    def prepare(self) -> PreparedWrite:
        """Wait until all rows are acknowledged, and prepare them. Raises the error of a row that was not written."""

    def abandon(self) -> None:
        """Clean up after the task has failed: discard rows that are not visible yet."""


class Delivery(Protocol):
    """A delivery guarantee of the sink: how tasks write rows, and how the driver completes a batch. It is pickled with
    the writer, so it holds only options.
    """

    needs_identity: bool
    """Whether the delivery identifies a batch by its query id and batch number. If so, a streaming task fails unless
    Spark passes both to it.
    """

    def open(self, identity: TaskIdentity) -> Stage:
        """Return a stage for the rows of one task. It is called on an executor."""

    def complete(self, batch_id: int, writes: Sequence[PreparedWrite]) -> None:
        """Complete a batch. It is called on the driver, and may be repeated for the same batch.

        A repeated call may list other writes of the same query, because Spark may have divided the batch into other
        tasks. If the batch is already complete, the call changes nothing.
        """

    def abort(
        self, batch_id: int, writes: Iterable[PreparedWrite], *, query_id: str | None = None
    ) -> None:
        """Abort a failed batch. It is called on the driver. `writes` has only tasks that prepared their rows.

        If `query_id` is None, the query comes from `writes`; if `writes` is empty, too, nothing can be aborted.
        """


class AtLeastOnce:
    """Delivers records at least once: they are visible as soon as they are acknowledged."""

    needs_identity = False

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def open(self, identity: TaskIdentity) -> Stage:
        """Return a stage that writes with the producer that all tasks of this process share."""
        return _Flushed(self._options, identity)

    def complete(self, batch_id: int, writes: Sequence[PreparedWrite]) -> None:
        """Do nothing, because all records are already visible."""

    def abort(
        self, batch_id: int, writes: Iterable[PreparedWrite], *, query_id: str | None = None
    ) -> None:
        """Do nothing: records that were written stay in the topic."""


class SentRows:
    """Sends the rows of one task by `send`, a method of a producer or of a staged task. It counts the rows, and raises
    the error of a failed row in a later call instead of only at the end.
    """

    def __init__(
        self,
        link: ProcessLink,
        options: SinkOptions,
        send: Callable[..., Awaitable[DeliveryFuture]],
    ) -> None:
        self.record_count = 0
        self.size_bytes = 0
        self.patience_s = options.delivery_timeout_ms / 1000 + MARGIN_S
        self._link = link
        self._send_one = send
        self._unchecked: deque[DeliveryFuture] = deque()

    def send(self, records: Sequence[OutputRecord]) -> None:
        """Send rows. The call waits only for space in the producer's buffer."""
        self._link.run(self._send(records), timeout_s=self.patience_s)

    async def wait(self) -> None:
        """Wait until all rows are acknowledged. Raises the error of a row that was not written."""
        while self._unchecked:
            await self._unchecked.popleft()

    async def _send(self, records: Sequence[OutputRecord]) -> None:
        send, unchecked = self._send_one, self._unchecked
        for record in records:
            unchecked.append(
                await send(
                    record.topic,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=record.partition,
                )
            )
            self.size_bytes += len(record.key or b"") + len(record.value or b"")
            if len(unchecked) >= _UNCHECKED_MAX:
                self._check_done()
        self.record_count += len(records)
        self._check_done()

    def _check_done(self) -> None:
        unchecked = self._unchecked
        while unchecked and unchecked[0].done():
            error: OdradekError | None = unchecked.popleft().exception()
            if error is not None:
                raise error


class _Flushed:
    """The stage of at-least-once delivery: `prepare` flushes the producer."""

    def __init__(self, options: SinkOptions, identity: TaskIdentity) -> None:
        self._options = options
        self._identity = identity
        self._link = link_to(options.connection)
        self._link.reach()
        self._producer = _producer(self._link, options)
        self._rows = SentRows(self._link, options, self._producer.send)

    def send(self, records: Sequence[OutputRecord]) -> None:
        self._rows.send(records)

    def prepare(self) -> PreparedWrite:
        self._link.run(self._flush(), timeout_s=self._rows.patience_s)
        return PreparedWrite(
            identity=self._identity,
            is_staged=False,
            record_count=self._rows.record_count,
            size_bytes=self._rows.size_bytes,
        )

    def abandon(self) -> None:
        """Close the shared producer, so that its errors cannot affect the next task in this process."""
        _drop_producer(self._link, self._options)

    async def _flush(self) -> None:
        await self._producer.flush()
        await self._rows.wait()


_producers: dict[tuple[int, SinkOptions], Producer] = {}


def _producer(link: ProcessLink, options: SinkOptions) -> Producer:
    """Return the producer of this process for these options. Tasks share it, so its producer id and its streams to the
    brokers stay open between tasks.
    """
    key = (os.getpid(), options)
    producer = _producers.get(key)
    if producer is None:
        arguments: dict[str, Any] = dict(options.producer)

        async def make() -> Producer:
            return Producer(cluster=link.cluster, **arguments)

        producer = _producers[key] = link.run(make(), timeout_s=MARGIN_S)
    return producer


def _drop_producer(link: ProcessLink, options: SinkOptions) -> None:
    producer = _producers.pop((os.getpid(), options), None)
    if producer is not None:

        async def close() -> None:
            await asyncio.wait_for(producer.close(0), MARGIN_S)

        link.run(close(), timeout_s=2 * MARGIN_S)

"""The delivery of written batches: the interface behind which at-least-once and exactly-once delivery differ.

A task *stages* its rows and, at its end, *prepares* them: from then on they are safe even if the task fails. When
every task of a batch has prepared, the driver *completes* the batch in one call that may be repeated with the same
outcome: Spark repeats it after a crash between this call and its own commit log. `AtLeastOnce` makes records visible
as they are acknowledged, so preparing is a flush and completing does nothing; a task that is run again writes its
rows again. `ExactlyOnce` (`staged_delivery.py`) stages into transactions that the completion decides together.
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
from odradek.producer.producer import Producer
from odradek.producer.staged_writes import PreparedTask
from pyspark_odradek.process_link import ProcessLink, link_to
from pyspark_odradek.sink_options import SinkOptions

_UNCHECKED_MAX: Final = 50_000
MARGIN_S: Final = 60.0


class OutputRecord(NamedTuple):
    """A row as a record.

    Without `partition`, the producer chooses one, by the key if there is one and otherwise in turns.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    partition: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity:
    """The identity of a writing task. A stream has its checkpoint's `query_id`, a batch write a new one."""

    query_id: str
    batch_id: int
    partition_id: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWrite:
    """A task's report to the driver."""

    identity: TaskIdentity
    is_staged: bool
    """Whether it waits for the completion of its batch; otherwise its rows are visible already."""
    task: PreparedTask | None = None
    """The staged task that the completion commits; None if there is none, as when the batch was complete before."""
    record_count: int = 0
    size_bytes: int = 0


class Stage(Protocol):
    """The rows that one task writes."""

    def send(self, records: Sequence[OutputRecord]) -> None:
        """Send rows; waits for buffer space only. Raises the reason if a row cannot be written."""

    def prepare(self) -> PreparedWrite:
        """Wait until all rows are safe. Raises the reason if one is not."""

    def abandon(self) -> None:
        """Drop the rows of a failed task, as far as they are not visible yet."""


class Delivery(Protocol):
    """A way for the sink to write. It is pickled with the writer, so it holds options only."""

    needs_identity: bool
    """Whether the delivery identifies a batch by its query and number. If so, a streaming task that does not know both
    fails.
    """

    def open(self, identity: TaskIdentity) -> Stage:
        """Begin a task's rows, on an executor."""

    def complete(self, batch_id: int, writes: Sequence[PreparedWrite]) -> None:
        """Complete a batch, on the driver. May be repeated for the same batch.

        A repeat may list other writes, because Spark may have divided the batch into other tasks. They name the same
        query; if its batch is complete already, nothing changes.
        """

    def abort(
        self, batch_id: int, writes: Iterable[PreparedWrite], *, query_id: str | None = None
    ) -> None:
        """Abort a failed batch, on the driver. `writes` lacks tasks that failed before they reported.

        Without `query_id`, the query is known only if a task reported.
        """


class AtLeastOnce:
    """Delivers records at least once: they are visible as soon as they are acknowledged."""

    needs_identity = False

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def open(self, identity: TaskIdentity) -> Stage:
        """Return a stage over this process's producer."""
        return _Flushed(self._options, identity)

    def complete(self, batch_id: int, writes: Sequence[PreparedWrite]) -> None:
        """Do nothing: all records are visible."""

    def abort(
        self, batch_id: int, writes: Iterable[PreparedWrite], *, query_id: str | None = None
    ) -> None:
        """Do nothing: written records stay."""


class SentRows:
    """Sends the rows of one task by `send`, the method of a producer or a staged task, and raises failures early."""

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
        """Send rows; waits for buffer space only."""
        self._link.run(self._send(records), timeout_s=self.patience_s)

    async def wait(self) -> None:
        """Wait until all rows are acknowledged. Raises the reason if one is not."""
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
        """Close the producer, because its failure must not affect the next task of this process."""
        _drop_producer(self._link, self._options)

    async def _flush(self) -> None:
        await self._producer.flush()
        await self._rows.wait()


_producers: dict[tuple[int, SinkOptions], Producer] = {}


def _producer(link: ProcessLink, options: SinkOptions) -> Producer:
    """Return this process's producer for these options; its id and its streams outlive a task."""
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

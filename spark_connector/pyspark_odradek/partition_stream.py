"""Reads the offset range of one task from its partition. If a fetch stream ends before the range's end, the next one
continues at the offset that was reached.

Spark sends the range (`RangePartition`) from the driver to an executor. There the fetch stream runs on the event loop
of the `ProcessLink`, and the task takes chunks of records from a queue. The credit of the fetch stream bounds the
queue: when the task takes a chunk, the chunk's bytes are granted to the broker again.

A fetch stream ends if the leader moves, dies, or sends nothing for SILENCE_S_MAX. The next stream goes to the new
leader or, with the option `rack`, to the replica that the leader names. The task fails if it makes no progress for the
whole poll timeout, or after an error that is not retriable. Offsets that were deleted are reported as data loss.
"""

from __future__ import annotations

import asyncio
import queue
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from odradek.cluster.backoff import Backoff
from odradek.cluster.methods import FETCH
from odradek.cluster.offset_lookup import look_up_offsets
from odradek.errors import (
    BrokerUnreachable,
    LeaderNotAvailable,
    OdradekError,
    OffsetOutOfRange,
    UnknownTopic,
    error_of,
)
from odradek.partitions import TopicPartition
from odradek_protocol.record_messages import FetchedPartition
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from pyspark_odradek.offsets import EARLIEST, OffsetRange, report_data_loss, split_ranges
from pyspark_odradek.process_link import ProcessLink
from pyspark_odradek.source_options import SourceOptions

WINDOW_BYTES: Final = 16 << 20
MESSAGE_BYTES_MAX: Final = 1 << 20
SILENCE_S_MAX: Final = 5.0
UNKNOWN_TOPIC_S_MAX: Final = 10.0
_QUEUE_MARGIN_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """The offset range that a task reads, and options for reading. It is plain data, because Spark pickles it to the
    executor.
    """

    name: TopicPartition
    topic_id: bytes
    start_offset: int
    end_offset: int
    read_committed: bool
    rack: str
    fail_on_data_loss: bool
    poll_timeout_ms: int
    reader_name: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Complete record batches, as the broker sent them.

    `aborted` has the producer id and the first offset of each aborted transaction; it is None with read_uncommitted.
    """

    records: memoryview
    start_offset: int
    """The offset of the first record to read. The first batch may contain earlier records."""
    aborted: Sequence[tuple[int, int]] | None


class _Moved(Exception):
    """Raised to end the current fetch stream, because reading must continue at another replica."""


class PartitionStream:
    """The records of one offset range, as an iterator of chunks. Iterate over it once, from one thread, and call
    `close` at the end, also after an error.
    """

    def __init__(self, link: ProcessLink, plan: FetchPlan) -> None:
        self._link = link
        self._cluster = link.cluster
        self._plan = plan
        self._queue: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()
        self._position = plan.start_offset
        self._progress_s = time.monotonic()
        self._unread_bytes = 0
        self._credit_bytes = 0
        self._has_credit = asyncio.Event()
        self._stream: Any = None
        self._preferred: int | None = None
        self._rack = plan.rack
        self._backoff = Backoff(first_ms=20, most_ms=500)
        self._future = asyncio.run_coroutine_threadsafe(self._run(), link.loop)

    def __iter__(self) -> Iterator[Chunk]:
        patience_s = self._plan.poll_timeout_ms / 1000 + _QUEUE_MARGIN_S
        while True:
            try:
                item = self._queue.get(timeout=patience_s)
            except queue.Empty:
                raise self._no_progress(None) from None
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            self._link.loop.call_soon_threadsafe(self._chunk_taken, len(item.records))
            yield item

    def close(self) -> None:
        """End the fetch stream if it is still open. The call does not wait."""
        self._future.cancel()

    async def _run(self) -> None:
        try:
            failures = 0
            while self._position < self._plan.end_offset:
                before = self._position
                try:
                    await self._follow_one()
                    continue
                except _Moved:
                    continue
                except OffsetOutOfRange as error:
                    await self._skip_deleted_records(error)
                    continue
                except OdradekError as error:
                    problem = self._cluster.explained(error)
                    failures = 1 if self._position > before else failures + 1
                    self._preferred = None
                    if await self._is_over(problem):
                        break
                self._cluster.refresh_soon()
                await asyncio.sleep(self._backoff.after(failures, random.random()) / 1000)
            self._queue.put(None)
        except asyncio.CancelledError:
            raise
        except (
            BaseException
        ) as error:  # the root of this asyncio task: `__iter__` raises the error in the reader
            self._queue.put(error)

    async def _is_over(self, problem: OdradekError) -> bool:
        """Return True if reading must end because the topic was deleted, and False if it must be tried again. Raises
        an error if the task must fail.
        """
        waited_s = time.monotonic() - self._progress_s
        if isinstance(problem, UnknownTopic) and waited_s >= UNKNOWN_TOPIC_S_MAX:
            report_data_loss(
                f"Partitions {self._plan.name} have been deleted.",
                is_fatal=self._plan.fail_on_data_loss,
            )
            return True
        if not problem.retriable:
            raise problem
        if waited_s * 1000 >= self._plan.poll_timeout_ms:
            raise self._no_progress(problem)
        return False

    async def _follow_one(self) -> None:
        """Read from one broker by one fetch stream until the range's end. Raises an error if the stream ends before."""
        endpoint = await self._endpoint()
        stream = self._cluster.transport.open(endpoint, FETCH)
        self._stream = stream
        self._credit_bytes = 0
        self._has_credit.clear()
        granting: asyncio.Task[None] | None = None
        try:
            await stream.send(self._first_request())
            granting = asyncio.create_task(self._grant(stream), name="fetch credit")
            while True:
                try:
                    async with asyncio.timeout(SILENCE_S_MAX):
                        entries = await stream.receive()
                except TimeoutError:
                    if self._unread_bytes >= WINDOW_BYTES:
                        self._progress_s = time.monotonic()
                        continue  # the broker has no credit, because the task reads slowly
                    raise BrokerUnreachable(endpoint, "it sends no records") from None
                if entries is None:
                    raise BrokerUnreachable(endpoint, "it ended the fetch stream")
                for entry in entries:
                    if self._take(entry):
                        return
        except ValueError as error:
            raise OdradekError(f"the broker at {endpoint} sent invalid data: {error}") from error
        finally:
            self._stream = None
            if granting is not None:
                granting.cancel()
            stream.cancel()

    def _take(self, entry: FetchedPartition) -> bool:
        """Queue the records of one response entry. Return whether the range is read to its end. Raises the error that
        the entry reports.
        """
        header, plan = entry.header, self._plan
        if header.error_code:
            if header.HasField("leader"):
                self._cluster.hint(plan.name, header.leader)
            raise error_of(header.error_code, str(plan.name))
        if header.preferred_read_replica >= 0:
            self._preferred = header.preferred_read_replica
            raise _Moved
        if header.next_offset > self._position or header.end_reached:
            self._progress_s = time.monotonic()
        if len(entry.records):
            aborted = None
            if plan.read_committed:
                aborted = [(a.producer_id, a.first_offset) for a in header.aborted_transactions]
            self._unread_bytes += len(entry.records)
            self._queue.put(Chunk(entry.records, self._position, aborted))
        self._position = max(self._position, header.next_offset)
        if header.end_reached:
            self._position = max(self._position, plan.end_offset)
        return self._position >= plan.end_offset

    async def _endpoint(self) -> str:
        name = self._plan.name
        await self._cluster.topic(
            name.topic, timeout_s=self._plan.poll_timeout_ms / 1000, partition=name.partition
        )
        if self._preferred is not None:
            endpoint = self._cluster.cache.endpoint(self._preferred)
            if endpoint is not None:
                return endpoint
        leader = self._cluster.cache.leader_endpoint(name)
        if leader is None:
            raise LeaderNotAvailable(f"{name} has no leader")
        return leader[1]

    def _first_request(self) -> pb.FetchRequest:
        plan = self._plan
        request = pb.FetchRequest(
            credit_bytes=max(WINDOW_BYTES - self._unread_bytes, MESSAGE_BYTES_MAX),
            settings=pb.FetchSettings(
                read_committed=plan.read_committed,
                message_bytes_max=MESSAGE_BYTES_MAX,
                rack="" if self._preferred is not None else self._rack,
            ),
        )
        request.add.add(
            topic=plan.name.topic,
            topic_id=plan.topic_id,
            partition=plan.name.partition,
            offset=self._position,
            end_offset=plan.end_offset,
            current_leader_epoch=-1,
        )
        return request

    async def _skip_deleted_records(self, error: OffsetOutOfRange) -> None:
        """Continue after the deleted offsets, or end the range if its offsets do not exist. Raises DataLoss if the
        option failOnDataLoss is set.
        """
        plan = self._plan
        if self._preferred is not None:
            # The follower may not have these offsets yet, so read from the leader.
            self._preferred, self._rack = None, ""
            return
        timeout_s = plan.poll_timeout_ms / 1000
        offsets = await look_up_offsets(self._cluster, {plan.name: EARLIEST}, timeout_s=timeout_s)
        earliest = offsets[plan.name].offset
        if earliest > self._position:
            report_data_loss(
                f"Could not read records in offset [{self._position},"
                f" {min(earliest, plan.end_offset)}) for topic partition {plan.name} with consumer"
                f" group {plan.reader_name}.",
                is_fatal=plan.fail_on_data_loss,
            )
            self._position = min(earliest, plan.end_offset)
            self._progress_s = time.monotonic()
            return
        # The position is above the high watermark. A newly elected leader may not know its high watermark yet, so try
        # again for a while before data loss is reported.
        if time.monotonic() - self._progress_s >= SILENCE_S_MAX * 2:
            report_data_loss(
                f"Partition {plan.name} offset was changed from {plan.end_offset} to"
                f" {self._position}. {error.message}",
                is_fatal=plan.fail_on_data_loss,
            )
            self._position = plan.end_offset
            return
        await asyncio.sleep(self._backoff.after(3, random.random()) / 1000)

    def _chunk_taken(self, size_bytes: int) -> None:
        self._unread_bytes -= size_bytes
        if self._stream is not None:
            self._credit_bytes += size_bytes
            self._has_credit.set()

    async def _grant(self, stream: Any) -> None:
        """Send credit to the broker whenever the Spark task has taken chunks. One asyncio task sends all credit,
        because gRPC allows only one write at a time.
        """
        while True:
            await self._has_credit.wait()
            self._has_credit.clear()
            credit, self._credit_bytes = self._credit_bytes, 0
            try:
                await stream.send(pb.FetchRequest(credit_bytes=credit))
            except OdradekError:
                return  # the stream has failed, and `receive` raises the reason

    def _no_progress(self, last: OdradekError | None) -> TimeoutError:
        cause = "" if last is None else f"; last error: {last}"
        return TimeoutError(
            f"{self._plan.name}: no record for {self._plan.poll_timeout_ms} ms at offset"
            f" {self._position} (the range ends at {self._plan.end_offset}){cause}; raise the option"
            " kafkaConsumer.pollTimeoutMs to wait longer"
        )


class RangePartition(InputPartition):
    """One task of a read, which Spark pickles to an executor. `plan` is the range that the task reads."""

    def __init__(self, plan: FetchPlan) -> None:
        super().__init__(plan)
        self.plan = plan


def plan_tasks(
    ranges: Iterable[OffsetRange], topic_ids: Mapping[str, bytes], options: SourceOptions
) -> list[InputPartition]:
    """Return the tasks for these ranges, split according to the options minPartitions and maxRecordsPerPartition.

    If a topic has no id in `topic_ids`, its tasks find the topic by name.
    """
    parts = split_ranges(
        ranges,
        min_partitions=options.min_partitions,
        max_records_per_partition=options.max_records_per_partition,
    )
    return [
        RangePartition(
            FetchPlan(
                name=part.name,
                topic_id=topic_ids.get(part.name.topic, b""),
                start_offset=part.start_offset,
                end_offset=part.end_offset,
                read_committed=options.read_committed,
                rack=options.rack,
                fail_on_data_loss=options.fail_on_data_loss,
                poll_timeout_ms=options.poll_timeout_ms,
                reader_name=options.reader_name,
            )
        )
        for part in parts
    ]

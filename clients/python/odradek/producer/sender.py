"""The I/O of the producer: sends the accumulator's batches to the leaders of their partitions, and passes the responses
to the accumulator.

A `ProduceStream` is a bidirectional gRPC stream to one broker, for all partitions that the broker leads. One message
may have batches of several partitions. The number and the bytes of requests without a response are limited. When the
stream breaks, all batches without a response go back to the accumulator.

Only `Sender.pump` sends requests. It runs on the event loop without waiting, and is scheduled by `kick` whenever a
batch may have become ready: after a record or a response arrived, a leader changed, or time passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from odradek.cluster.background import BackgroundTasks
from odradek.cluster.backoff import Backoff
from odradek.cluster.cluster import Cluster, LinkState
from odradek.cluster.metadata_cache import Change
from odradek.cluster.methods import INIT_PRODUCER_ID, PRODUCE
from odradek.cluster.transport import Transport
from odradek.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerUnreachable,
    ClientClosed,
    OdradekError,
    RequestTimedOut,
    UnknownTopic,
    UnsupportedOperation,
    error_code,
    error_of,
)
from odradek.producer.accumulator import Accumulator, Callbacks
from odradek.producer.options import ProducerOptions
from odradek.producer.partition_queue import PartitionQueue, ProducerBatch
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

PRODUCER_ID_CALL_S_MAX: Final = 10.0
_FINAL: Final = (AuthenticationFailed, AuthorizationFailed, UnsupportedOperation)

_log = logging.getLogger(__name__)
UNANSWERED_BYTES_MAX: Final = 16 * 1024 * 1024
UNANSWERED_REQUESTS_MAX: Final = 64

OnResponse = Callable[["SentRequest", pb.ProduceResponse], None]
OnBroken = Callable[["ProduceStream", list["SentRequest"], OdradekError], None]


@dataclass(slots=True)
class SentRequest:
    """The batches of one request, each with the number of its attempt."""

    request_id: int
    batches: list[tuple[ProducerBatch, int]]
    size_bytes: int
    sent_ms: int


class ProduceStream:
    """One stream to one broker. `run` is its only task; cancelling the task ends the stream."""

    def __init__(
        self,
        endpoint: str,
        transport: Transport,
        *,
        acks: int,
        timeout_ms: int,
        transactional_id: str = "",
        on_response: OnResponse,
        on_broken: OnBroken,
    ) -> None:
        self.endpoint = endpoint
        self._transport = transport
        self._acks = acks
        self._timeout_ms = timeout_ms
        self.transactional_id = transactional_id
        """The transactional id for the next requests; "" if the producer has none."""
        self._on_response = on_response
        self._on_broken = on_broken
        self._outgoing: asyncio.Queue[tuple[SentRequest, pb.ProduceRequest]] = asyncio.Queue(
            UNANSWERED_REQUESTS_MAX
        )
        self._unanswered: dict[int, SentRequest] = {}
        self._unanswered_bytes = 0
        self._next_request_id = 0
        self._stop_reason: OdradekError | None = None
        self._stopping = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether every request has received its response."""
        return not self._unanswered

    @property
    def can_take(self) -> bool:
        """Whether the limits allow another request now."""
        return (
            self._stop_reason is None
            and self._unanswered_bytes < UNANSWERED_BYTES_MAX
            and len(self._unanswered) < UNANSWERED_REQUESTS_MAX
        )

    def oldest_sent_ms(self) -> int | None:
        """Return when the oldest request without a response was submitted; None if there is no such request."""
        for request in self._unanswered.values():
            return request.sent_ms
        return None

    def submit(self, batches: list[tuple[ProducerBatch, bytes]], now_ms: int) -> None:
        """Queue one request without waiting. The caller must have checked `can_take`."""
        assert self.can_take
        self._next_request_id += 1
        message = pb.ProduceRequest(
            request_id=self._next_request_id,
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            transactional_id=self.transactional_id,
        )
        size_bytes = 0
        for batch, encoded in batches:
            message.partitions.add(
                topic=batch.queue.topic, partition=batch.queue.partition, records=encoded
            )
            size_bytes += len(encoded)
        request = SentRequest(
            self._next_request_id, [(b, b.attempt) for b, _ in batches], size_bytes, now_ms
        )
        self._unanswered[request.request_id] = request
        self._unanswered_bytes += size_bytes
        self._outgoing.put_nowait((request, message))

    def stop(self, reason: OdradekError) -> None:
        """Break the stream with this error. Batches without a response go back to the accumulator."""
        if self._stop_reason is None:
            self._stop_reason = reason
            self._stopping.set()

    async def run(self) -> None:
        """Send requests and receive responses until the stream breaks or is stopped."""
        try:
            stream = self._transport.open(self.endpoint, PRODUCE)
        except OdradekError as refused:
            self._break(refused)
            return
        error: OdradekError | None = None

        async def write() -> None:
            while True:
                request, message = await self._outgoing.get()
                await stream.send(message)
                if self._acks == 0:
                    self._settle(request, pb.ProduceResponse(request_id=request.request_id))

        async def read() -> None:
            while (response := await stream.receive()) is not None:
                request = self._unanswered.get(response.request_id)
                if request is not None:
                    self._settle(request, response)
            raise BrokerUnreachable(self.endpoint, "the broker ended the produce stream")

        workers = {
            asyncio.create_task(write(), name=f"produce to {self.endpoint}: write"),
            asyncio.create_task(read(), name=f"produce to {self.endpoint}: read"),
            asyncio.create_task(self._wait_stop(), name=f"produce to {self.endpoint}: stop"),
        }
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            for worker in done:
                failure = worker.exception()
                if isinstance(failure, OdradekError):
                    error = error or failure
                elif failure is not None:
                    raise failure
        finally:
            stream.cancel()
            for worker in workers:
                worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*workers, return_exceptions=True)
            self._break(error or BrokerUnreachable(self.endpoint, "the producer closed"))

    def _break(self, error: OdradekError) -> None:
        """Return the batches without a response to the accumulator."""
        requests = list(self._unanswered.values())
        self._unanswered.clear()
        self._stop_reason = self._stop_reason or error
        self._on_broken(self, requests, self._stop_reason)

    async def _wait_stop(self) -> None:
        await self._stopping.wait()

    def _settle(self, request: SentRequest, response: pb.ProduceResponse) -> None:
        if self._unanswered.pop(request.request_id, None) is not None:
            self._unanswered_bytes -= request.size_bytes
            self._on_response(request, response)


def monotonic_ms() -> int:
    """Return the time of the monotonic clock in ms. All timeouts of the producer use it."""
    return time.monotonic_ns() // 1_000_000


class Sender:
    """The tasks and streams of one producer, on its event loop."""

    def __init__(
        self, cluster: Cluster, accumulator: Accumulator, options: ProducerOptions
    ) -> None:
        self.wall_offset_ms = time.time_ns() // 1_000_000 - monotonic_ms()
        """Wall clock minus monotonic clock in ms, at the last call of `pump`."""
        self.is_throttled = False
        """Whether the last response said that the broker delays the next request because of a quota."""
        self._cluster = cluster
        self._accumulator = accumulator
        self._options = options
        self._transactional_id = options.transactional_id or ""
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._streams: dict[str, ProduceStream] = {}
        self._tasks = BackgroundTasks("producer")
        self._pump_handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._progress = asyncio.Event()
        self._done_seen = 0
        self._id_task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._has_noted_outage = False

    def start(self) -> None:
        """Subscribe to leader changes, and start the task that watches for the end of the event loop."""
        self._cluster.subscribe(self._on_change)
        self._tasks.start(self._log_loss_at_loop_end(), "watch for the loop's end")

    async def close(self, reason: OdradekError) -> None:
        """Stop without sending anything more. Batches that are not done fail with `reason`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._cluster.unsubscribe(self._on_change)
        for handle in (self._pump_handle, self._timer):
            if handle is not None:
                handle.cancel()
        self._run(self._accumulator.fail_all(lambda _: reason))
        self._signal_progress()
        await self._tasks.stop()

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """Return the queue of a partition. The queue is created at its first use."""
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = self._queues[topic, partition] = PartitionQueue(
                topic, partition, is_transactional=self._accumulator.is_transactional
            )
        return queue

    def begin_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> None:
        """Use this transactional id, producer id and producer epoch for the next records."""
        self._transactional_id = transactional_id
        for stream in self._streams.values():
            stream.transactional_id = transactional_id
        self._accumulator.begin_transaction(producer_id, producer_epoch)
        for queue in self._queues.values():
            queue.begin_transaction(producer_id, producer_epoch)

    def drop_all(self, reason: OdradekError) -> None:
        """Fail all records of an aborted transaction, without logging them."""
        callbacks = self._accumulator.fail_all(lambda _: reason)
        self._accumulator.unreported.clear()
        self._run(callbacks)
        self._signal_progress()

    def kick(self) -> None:
        """Schedule a call of `pump`, which sends the batches that are ready. Raises WrongLoop."""
        if self._pump_handle is None and not self._is_closed:
            self._cluster.require_own_loop()
            self._pump_handle = asyncio.get_running_loop().call_soon(self.pump)

    async def progress(self) -> None:
        """Wait until the next batch is acknowledged or fails."""
        await self._progress.wait()

    def pump(self) -> None:
        """Send the batches that are ready, and schedule the next call for the time when more become ready."""
        self._pump_handle = None
        if self._is_closed:
            return
        if self._cluster.state is LinkState.CLOSED:
            closed = ClientClosed("the client was closed before this record was acknowledged")
            self._run(self._accumulator.fail_all(lambda _: closed))
            self._signal_progress()
            return
        now_ms = monotonic_ms()
        self.wall_offset_ms = time.time_ns() // 1_000_000 - now_ms
        accumulator = self._accumulator
        self._run(accumulator.expire(now_ms))
        if self._has_producer_id():
            by_endpoint, leaderless = self._by_leader()
            for endpoint, queues in by_endpoint.items():
                self._send(endpoint, queues, now_ms)
            if leaderless:
                self._cluster.refresh_soon()
        self._break_stuck_streams(now_ms)
        self._set_timer(now_ms)
        self._signal_progress()

    async def _log_loss_at_loop_end(self) -> None:
        """Wait until `asyncio.run` cancels all tasks at its end, and log the loss of buffered records.

        Records can no longer be sent at that time. Without this method, a program that does not close its producer
        would lose buffered records without a message.
        """
        try:
            await asyncio.Event().wait()
        finally:
            records = sum(batch.record_count for batch in self._accumulator.pending_batches())
            if records and not self._is_closed:
                _log.error(
                    "%d records were not acknowledged when the event loop ended; use the producer in an"
                    " `async with` block, or await its flush() or close()",
                    records,
                )

    def _by_leader(self) -> tuple[dict[str, list[PartitionQueue]], bool]:
        by_endpoint: dict[str, list[PartitionQueue]] = {}
        leaderless = False
        cache = self._cluster.cache
        for queue in list(self._accumulator.pending):
            leader = cache.leader_endpoint(queue.name)
            if leader is not None:
                by_endpoint.setdefault(leader[1], []).append(queue)
            elif cache.partition(queue.name) is not None:
                leaderless = True
            else:  # The topic was deleted, but `send` accepted records before the producer noticed.
                self._fail_deleted(queue)
        return by_endpoint, leaderless

    def _fail_deleted(self, queue: PartitionQueue) -> None:
        deleted = UnknownTopic(
            f"topic {queue.topic!r} was deleted", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        self._run(self._accumulator.fail_queue(queue, deleted))

    def _send(self, endpoint: str, queues: list[PartitionQueue], now_ms: int) -> None:
        stream = self._streams.get(endpoint)
        while stream is None or stream.can_take:
            is_idle = stream is None or stream.is_idle
            batches = self._accumulator.drain(queues, now_ms, is_idle=is_idle)
            if not batches:
                return
            stream = stream or self._open(endpoint)
            stream.submit([(b, self._encoded(b)) for b in batches], now_ms)
            self._accumulator.rotate([b.queue for b in batches])

    def _encoded(self, batch: ProducerBatch) -> bytes:
        return batch.encode(self._options.compression_codec, self._options.compression_level)

    def _open(self, endpoint: str) -> ProduceStream:
        stream = ProduceStream(
            endpoint,
            self._cluster.transport,
            acks=self._options.acks_number,
            timeout_ms=self._options.request_timeout_ms,
            transactional_id=self._transactional_id,
            on_response=self._on_response,
            on_broken=self._on_broken,
        )
        self._streams[endpoint] = stream
        self._tasks.start(stream.run(), f"produce to {endpoint}")
        return stream

    def _break_stuck_streams(self, now_ms: int) -> None:
        for stream in list(self._streams.values()):
            sent_ms = stream.oldest_sent_ms()
            if sent_ms is not None and now_ms - sent_ms >= self._options.request_timeout_ms:
                stream.stop(
                    RequestTimedOut(
                        f"the broker at {stream.endpoint} did not respond to a produce request"
                        f" within {self._options.request_timeout_ms} ms"
                    )
                )

    def _set_timer(self, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [
            sent_ms + self._options.request_timeout_ms
            for stream in self._streams.values()
            if (sent_ms := stream.oldest_sent_ms()) is not None
        ]
        wake_ms = self._accumulator.wake_ms(now_ms)
        if wake_ms is not None:
            times.append(wake_ms)
        if times:
            delay_s = max(min(times) - now_ms, 1) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.pump)

    def _on_response(self, request: SentRequest, response: pb.ProduceResponse) -> None:
        now_ms = monotonic_ms()
        self.is_throttled = response.throttle_time_ms > 0
        results_of_partitions = list(response.partitions)
        if self._options.acks_number == 0:
            results_of_partitions = [
                pb.ProducePartitionResult(base_offset=-1) for _ in request.batches
            ]
        if len(results_of_partitions) != len(request.batches):
            error = OdradekError(
                f"a broker's response has results for {len(results_of_partitions)} of {len(request.batches)} partitions"
            )
            for batch, attempt in request.batches:
                self._accumulator.lost(batch, attempt, error, now_ms, random.random())
            self.kick()
            return
        for (batch, attempt), result in zip(request.batches, results_of_partitions, strict=True):
            code = result.error_code
            callbacks = self._accumulator.responded(
                batch,
                attempt,
                code,
                result.error_message,
                base_offset=result.base_offset,
                log_append_time_ms=result.log_append_time_ms or -1,
                now_ms=now_ms,
                draw=random.random(),
            )
            if code and error_code(code).metadata_is_stale:
                if result.HasField("leader"):
                    self._cluster.hint(batch.queue.name, result.leader)
                self._cluster.refresh_soon()
            self._run(callbacks)
        self._signal_progress()
        self.kick()

    def _on_broken(
        self, stream: ProduceStream, requests: list[SentRequest], error: OdradekError
    ) -> None:
        if self._streams.get(stream.endpoint) is stream:
            del self._streams[stream.endpoint]
        if self._is_closed:
            return
        error = self._cluster.explained(error)
        if requests:
            _log.info("Produce stream to %s broke: %s", stream.endpoint, error)
        now_ms = monotonic_ms()
        for request in requests:
            for batch, attempt in request.batches:
                if not isinstance(error, _FINAL):
                    self._accumulator.lost(batch, attempt, error, now_ms, random.random())
                elif not batch.is_done and batch.attempt == attempt:
                    self._run(self._accumulator.fail(batch, error))
        self._note_outage()
        self._signal_progress()
        if isinstance(error, BrokerUnreachable | RequestTimedOut):
            self._cluster.refresh_soon()
        self.kick()

    def _note_outage(self) -> None:
        """If no broker responds, record the errors of all brokers as the reason why batches wait. The leader's error
        alone would not say that the other brokers fail, too. When a broker responds again, the reason is removed.
        """
        if self._cluster.state is LinkState.DISCONNECTED:
            self._accumulator.note_outage(self._cluster.unavailable(None))
            self._has_noted_outage = True
        elif self._has_noted_outage and self._cluster.state is LinkState.CONNECTED:
            self._accumulator.note_outage(None)
            self._has_noted_outage = False

    def _on_change(self, change: Change) -> None:
        self._note_outage()
        for name in change.leaders:
            queue = self._queues.get(name)
            if queue is None:
                continue
            if name.topic in change.topics:
                # The topic may have been created again, with a log that does not know this producer.
                queue.is_remembered = False
            if queue.is_empty:
                continue
            if name.topic in change.topics and name.topic not in self._cluster.cache.topics:
                self._fail_deleted(queue)
            else:
                self._accumulator.leader_changed(queue)
        if change.leaders or self._cluster.state is LinkState.CLOSED:
            self.kick()

    def _run(self, callbacks: Callbacks) -> None:
        """Run callbacks of the program, and log failed records whose futures nobody awaits. Exceptions of callbacks go
        to the event loop's exception handler.
        """
        for callback in callbacks:
            _guarded(callback)
        unreported, self._accumulator.unreported = self._accumulator.unreported, []
        for batch in unreported:
            _log.warning(
                "Failed to write %d records to %s: %s",
                batch.record_count,
                batch.queue.name,
                batch.error,
            )

    def _signal_progress(self) -> None:
        if self._accumulator.done_batches != self._done_seen:
            self._done_seen = self._accumulator.done_batches
            progress, self._progress = self._progress, asyncio.Event()
            progress.set()

    def _has_producer_id(self) -> bool:
        accumulator = self._accumulator
        if not accumulator.is_idempotent:
            return True
        if accumulator.is_transactional:
            return accumulator.producer_id >= 0
        is_needed = accumulator.producer_id < 0 or any(
            q.is_epoch_used_up and q.producer_id == accumulator.producer_id
            for q in accumulator.pending
        )
        if is_needed and self._id_task is None and accumulator.pending_count:
            self._id_task = self._tasks.start(self._get_producer_id(), "get a producer id")
        return accumulator.producer_id >= 0

    async def _get_producer_id(self) -> None:
        backoff = Backoff(first_ms=20, most_ms=1_000)
        failures = 0
        try:
            while True:
                try:
                    response = await self._cluster.call_any(
                        INIT_PRODUCER_ID,
                        pb.InitProducerIdRequest(producer_id=-1, producer_epoch=-1),
                        timeout_s=PRODUCER_ID_CALL_S_MAX,
                    )
                    if response.error_code == ErrorCode.NONE:
                        self._accumulator.producer_id = response.producer_id
                        self._accumulator.producer_epoch = response.producer_epoch
                        return
                    error = error_of(response.error_code, "getting a producer id")
                except OdradekError as caught:
                    error = caught
                if not error.retriable and not (error.code is not None and error.code.retriable):
                    self._run(self._accumulator.fail_all(lambda _, e=error: e))  # type: ignore[misc]
                    return
                failures += 1
                self._accumulator.note_cause(error)
                await asyncio.sleep(backoff.after(failures, random.random()) / 1000)
        finally:
            self._id_task = None
            with contextlib.suppress(RuntimeError):  # The event loop is closing.
                self.kick()


def _guarded(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception as error:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "the program's delivery callback raised an exception", "exception": error}
        )

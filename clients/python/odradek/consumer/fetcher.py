"""The I/O of the consumer: sends the planner's changes to the brokers, and passes the fetched records to the planner.

A `FetchStream` is a bidirectional gRPC stream to one broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from itertools import islice
from typing import Final

from odradek.cluster import wait_report
from odradek.cluster.background import BackgroundTasks
from odradek.cluster.cluster import Cluster, LinkState
from odradek.cluster.metadata_cache import Change
from odradek.cluster.methods import FETCH
from odradek.cluster.offset_lookup import end_of_epoch, look_up_offsets
from odradek.cluster.transport import Transport
from odradek.consumer.fetch_planner import FetchPlanner
from odradek.consumer.fetched_chunk import StreamChange
from odradek.consumer.options import ConsumerOptions
from odradek.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerUnreachable,
    ClientClosed,
    OdradekError,
    UnsupportedOperation,
)
from odradek.partitions import OffsetAndTimestamp, TopicPartition
from odradek_protocol.record_messages import FetchedPartitions
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

VALIDATION_S_MAX: Final = 5.0
WARNING_INTERVAL_MS: Final = 60_000
EMPTY_STREAM_S: Final = 1.0
"""How long a stream without partitions stays open. `seek` removes a partition and adds it again soon after, and the
stream must not be closed in between.
"""
PARTITIONS_PER_REQUEST: Final = 1_000
"""The most partitions that one message adds to a stream. Encoding them takes a few milliseconds."""
_FINAL: Final = (AuthenticationFailed, AuthorizationFailed, UnsupportedOperation)

_log = logging.getLogger(__name__)
OnData = Callable[["FetchStream", FetchedPartitions], None]
OnEnd = Callable[["FetchStream", OdradekError], None]


class FetchStream:
    """One stream to one broker. `run` is its only task; cancelling the task ends the stream."""

    def __init__(
        self,
        source: int,
        endpoint: str,
        transport: Transport,
        *,
        settings: pb.FetchSettings,
        window_bytes: int,
        unread_bytes: int,
        on_data: OnData,
        on_end: OnEnd,
    ) -> None:
        self.source = source
        self.endpoint = endpoint
        self.window_bytes = window_bytes
        self._transport = transport
        self._settings: pb.FetchSettings | None = settings
        self._on_data = on_data
        self._on_end = on_end
        self._change = StreamChange()
        # A negative credit is the number of bytes that the program must read before the broker may send more.
        self._credit_bytes = window_bytes - unread_bytes
        self._has_changes = asyncio.Event()

    def change(self, change: StreamChange) -> None:
        """Change the partitions of the stream, without waiting. Changes that were not sent yet are merged."""
        for name in change.remove:
            self._change.add.pop(name, None)
            self._change.remove.add(name)
        for name, add in change.add.items():
            # If a partition is added again, the broker restarts it at the new offset, so no removal is sent.
            self._change.remove.discard(name)
            self._change.add[name] = add
        self._has_changes.set()

    def grant(self, size_bytes: int) -> None:
        """Allow the broker to send this many more bytes."""
        self._credit_bytes += size_bytes
        self._has_changes.set()

    async def run(self) -> None:
        """Send changes and receive records until the stream ends."""
        try:
            stream = self._transport.open(self.endpoint, FETCH)
        except OdradekError as refused:
            self._on_end(self, refused)
            return

        async def write() -> None:
            while True:
                await self._has_changes.wait()
                self._has_changes.clear()
                await stream.send(self._request())

        async def read() -> None:
            while (entries := await stream.receive()) is not None:
                self._on_data(self, entries)
            raise BrokerUnreachable(self.endpoint, "the broker ended the fetch stream")

        workers = {
            asyncio.create_task(write(), name=f"fetch from {self.endpoint}: write"),
            asyncio.create_task(read(), name=f"fetch from {self.endpoint}: read"),
        }
        error: OdradekError | None = None
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            for worker in done:
                failure = worker.exception()
                if isinstance(failure, OdradekError):
                    error = error or failure
                elif isinstance(failure, ValueError):
                    error = OdradekError(
                        f"the broker at {self.endpoint} sent an invalid response: {failure}"
                    )
                elif failure is not None:
                    raise failure
        finally:
            stream.cancel()
            for worker in workers:
                worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*workers, return_exceptions=True)
            self._on_end(self, error or BrokerUnreachable(self.endpoint, "the consumer closed"))

    def _request(self) -> pb.FetchRequest:
        credit_bytes = max(0, self._credit_bytes)
        request = pb.FetchRequest(credit_bytes=credit_bytes, settings=self._settings)
        adds = list(islice(self._change.add, PARTITIONS_PER_REQUEST))
        for add in map(self._change.add.pop, adds):
            request.add.add(
                topic=add.name.topic,
                partition=add.name.partition,
                offset=add.offset,
                end_offset=-1,
                current_leader_epoch=add.leader_epoch,
                fetch_id=add.fetch_id,
            )
        for name in self._change.remove:
            request.remove.add(topic=name.topic, partition=name.partition)
        self._change.remove.clear()
        if self._change.add:
            self._has_changes.set()  # The next message adds further partitions.
        self._settings = None
        self._credit_bytes -= credit_bytes
        return request


def monotonic_ms() -> int:
    """Return the time of the monotonic clock in ms. All timeouts of the consumer use it."""
    return time.monotonic_ns() // 1_000_000


class Fetcher:
    """The streams and offset look-ups of one consumer, on its event loop. Call `kick` after each change of the
    planner.
    """

    def __init__(self, cluster: Cluster, planner: FetchPlanner, options: ConsumerOptions) -> None:
        self._cluster = cluster
        self._planner = planner
        self._options = options
        self._streams: dict[str, FetchStream] = {}
        self._runs: dict[FetchStream, asyncio.Task[None]] = {}
        self._sources: dict[str, int] = {}
        """A number for each endpoint. The credit of a broker is counted by this number, over all of its streams."""
        self._requested_topics: dict[str, int] = {}
        """The topics whose metadata was requested, with the highest partition that the metadata must have."""
        self._tasks = BackgroundTasks("consumer")
        self._arrival = asyncio.Event()
        self._handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._warned: tuple[str, int] = "", 0
        """The text of the last warning about a stream, and when it was logged, in ms."""
        self._throttled_until_ms = 0
        self._throttle_logged_ms = -WARNING_INTERVAL_MS
        self._is_started = False
        self._is_closed = False

    @property
    def window_bytes(self) -> int:
        """How many bytes one broker may send before the program reads them."""
        prefetch_bytes_max = self._options.prefetch_bytes_max
        brokers = max(1, len(self._cluster.cache.brokers))
        return max(prefetch_bytes_max // brokers, min(1 << 20, prefetch_bytes_max))

    async def close(self) -> None:
        """End all streams. May be called twice."""
        self._is_closed = True
        self._cluster.unsubscribe(self._on_change)
        for handle in (self._handle, self._timer, self._closing):
            if handle is not None:
                handle.cancel()
        await self._tasks.stop()
        self._arrived()

    def kick(self) -> None:
        """Schedule a call of the planner, and the changes of streams that it decides."""
        if self._handle is None and not self._is_closed:
            if not self._is_started:
                self._is_started = True
                self._cluster.start()
                self._cluster.subscribe(self._on_change)
            self._handle = asyncio.get_running_loop().call_soon(self._plan)

    async def arrival(self) -> None:
        """Wait until records, an error or a position arrive. After `close`, return at once."""
        if not self._is_closed:
            await self._arrival.wait()

    def return_credit(self) -> None:
        """Grant each broker the bytes that were read or dropped, once they are an eighth of its stream's window."""
        for stream in self._streams.values():
            due_bytes = self._planner.credit_due(stream.source, stream.window_bytes // 8)
            if due_bytes:
                stream.grant(due_bytes)

    def _plan(self) -> None:
        self._handle = None
        if self._is_closed:
            return
        planner = self._planner
        now_ms = monotonic_ms()
        plan = planner.plan(self._leader_of, now_ms)
        self._request_topics(plan.decided)
        if plan.lookups:
            self._tasks.start(self._look_up(plan.lookups), "look up offsets")
        for name, epoch in plan.validations.items():
            self._tasks.start(self._validate(name, epoch), f"validate {name}")
        for endpoint, change in plan.changes.items():
            stream = self._streams.get(endpoint)
            if stream is None:
                if not change.add:
                    continue
                stream = self._open(endpoint)
            stream.change(change)
            if change.remove and self._closing is None:
                self._closing = asyncio.get_running_loop().call_later(
                    EMPTY_STREAM_S, self._close_empty
                )
        if planner.errors:
            self._arrived()
        if planner.wants_refresh:
            planner.wants_refresh = False
            self._cluster.refresh_soon()
        self.return_credit()
        self._set_timer(now_ms)
        if planner.has_undecided:
            self.kick()

    def _close_empty(self) -> None:
        """End the streams without partitions, because a broker uses memory for each stream and limits their number."""
        self._closing = None
        in_use = {progress.endpoint for progress in self._planner.partitions.values()}
        for endpoint in self._streams.keys() - in_use:
            self._runs[self._streams.pop(endpoint)].cancel()

    def _set_timer(self, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_ms = self._planner.wake_ms(now_ms)
        if wake_ms is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(wake_ms - now_ms, 1) / 1000, self._plan
            )

    def _leader_of(self, name: TopicPartition) -> tuple[str, int] | None:
        leader = self._cluster.cache.leader_endpoint(name)
        metadata = self._cluster.cache.partition(name)
        if leader is None or metadata is None:
            return None
        return leader[1], metadata.leader_epoch

    def _request_topics(self, names: list[TopicPartition]) -> None:
        """Request and watch the metadata of the topics of these partitions, unless a request was already sent."""
        by_topic: dict[str, list[TopicPartition]] = {}
        for name in names:
            by_topic.setdefault(name.topic, []).append(name)
        for topic, partitions in by_topic.items():
            highest = max(name.partition for name in partitions)
            if self._requested_topics.get(topic, -1) < highest:
                self._requested_topics[topic] = highest
                self._tasks.start(self._request_topic(topic, partitions), f"metadata of {topic}")

    async def _request_topic(self, topic: str, names: list[TopicPartition]) -> None:
        highest = max(name.partition for name in names)
        try:
            await self._cluster.topic(
                topic, timeout_s=self._options.request_timeout_ms / 1000, partition=highest
            )
        except OdradekError as error:
            self._requested_topics.pop(topic, None)
            if any(name in self._planner.partitions for name in names):
                self._planner.raise_soon(error)
                self._arrived()
                await asyncio.sleep(1.0)
                self._planner.moved(names)  # The next plan requests the metadata again.
                self.kick()

    def _open(self, endpoint: str) -> FetchStream:
        options = self._options
        source = self._sources.setdefault(endpoint, len(self._sources))
        stream = FetchStream(
            source,
            endpoint,
            self._cluster.transport,
            settings=pb.FetchSettings(
                read_committed=options.isolation_level == "read_committed",
                message_bytes_max=options.fetch_message_bytes_max,
                rack=options.client_rack,
                bytes_min=options.fetch_bytes_min,
                wait_ms_max=options.fetch_wait_ms_max,
            ),
            window_bytes=self.window_bytes,
            unread_bytes=self._planner.reopen_source(source),
            on_data=self._on_data,
            on_end=self._on_end,
        )
        self._streams[endpoint] = stream
        run = self._tasks.start(stream.run(), f"fetch from {endpoint}")
        self._runs[stream] = run
        run.add_done_callback(lambda _: self._runs.pop(stream))
        return stream

    @property
    def is_throttled(self) -> bool:
        """Whether a broker delays its next response because of a quota."""
        return monotonic_ms() < self._throttled_until_ms

    def _note_throttle(self, throttle_ms: int, now_ms: int) -> None:
        """Record a delay because of a quota, and log a long one at most once in WARNING_INTERVAL_MS."""
        self._throttled_until_ms = max(self._throttled_until_ms, now_ms + throttle_ms)
        is_long = throttle_ms >= wait_report.WAIT_REPORT_S * 1000
        if is_long and now_ms >= self._throttle_logged_ms + WARNING_INTERVAL_MS:
            self._throttle_logged_ms = now_ms
            _log.warning(
                "A consumer quota limits the rate: the broker sends the next records in %.0f s (`odradek quota list`"
                " shows quotas)",
                throttle_ms / 1000,
            )

    def _on_data(self, stream: FetchStream, entries: FetchedPartitions) -> None:
        now_ms = monotonic_ms()
        if entries.throttle_ms:
            self._note_throttle(entries.throttle_ms, now_ms)
        planner = self._planner
        needs_plan = False
        for entry in entries:
            data = entry.header
            planner.fetched(stream.source, entry, now_ms)
            if data.error_code:
                needs_plan = True
                if data.HasField("leader"):
                    name = TopicPartition(data.topic, data.partition)
                    self._cluster.hint(name, data.leader)
            elif data.preferred_read_replica >= 0 and self._options.client_rack:
                self._follow(TopicPartition(data.topic, data.partition), data)
                needs_plan = True
        if needs_plan:
            self.kick()
        self._arrived()

    def _follow(self, name: TopicPartition, data: pb.FetchPartitionData) -> None:
        """Fetch from the replica that the leader named. The leader has removed the partition from its stream."""
        progress = self._planner.partitions.get(name)
        if progress is None or progress.fetch_id != data.fetch_id or progress.endpoint is None:
            return
        endpoint = self._cluster.cache.endpoint(data.preferred_read_replica)
        if endpoint is None or endpoint == progress.endpoint:
            # The leader knows the replica's address, but the metadata in the cache is older.
            self._planner.replica_unknown(name, monotonic_ms())
            self._cluster.refresh_soon()
            return
        self._planner.use_replica(name, endpoint, progress.fetch_epoch)
        progress.preferred_replica = data.preferred_read_replica

    def _on_end(self, stream: FetchStream, error: OdradekError) -> None:
        if self._streams.get(stream.endpoint) is not stream:
            return  # `_close_empty` ended the stream.
        del self._streams[stream.endpoint]
        if self._is_closed:
            return
        now_ms = monotonic_ms()
        self._planner.stream_broke(stream.endpoint, now_ms)
        error = self._cluster.explained(error)
        self._log_end(stream, error, now_ms)
        if isinstance(error, _FINAL):
            self._planner.raise_soon(error)
            self._arrived()
        self._cluster.refresh_soon()
        self.kick()

    def _log_end(self, stream: FetchStream, error: OdradekError, now_ms: int) -> None:
        """Log why a stream ended. A refusal by the broker is logged as a warning, but the same refusal only once a
        minute, because the consumer retries continuously.
        """
        level = logging.INFO
        if not isinstance(error, BrokerUnreachable):
            text, logged_ms = self._warned
            if text != str(error) or now_ms - logged_ms >= WARNING_INTERVAL_MS:
                level, self._warned = logging.WARNING, (str(error), now_ms)
        _log.log(level, "Fetch stream from %s ended; opening another: %s", stream.endpoint, error)

    def _on_change(self, change: Change) -> None:
        planner = self._planner
        if self._cluster.state is LinkState.CLOSED:
            planner.raise_soon(ClientClosed("the client was closed"))
            self._arrived()
            return
        for topic in change.topics:
            if topic not in self._cluster.cache.topics:
                self._requested_topics.pop(topic, None)
        if planner.moved(change.leaders):
            self.kick()

    def _arrived(self) -> None:
        arrival, self._arrival = self._arrival, asyncio.Event()
        arrival.set()

    async def _look_up(self, lookups: dict[TopicPartition, int]) -> None:
        """Look up offsets. Each partition can be read as soon as its own offset is known."""
        offsets: dict[TopicPartition, OffsetAndTimestamp] = {}
        missing = lookups.copy()
        try:
            await look_up_offsets(
                self._cluster,
                lookups,
                read_committed=self._options.isolation_level == "read_committed",
                timeout_s=self._options.request_timeout_ms / 1000,
                found=offsets,
                on_found=lambda: self._position(missing, offsets),
            )
        except OdradekError as error:
            self._position(missing, offsets)
            for name, lookup_ms in missing.items():
                self._planner.lookup_failed(name, lookup_ms)
            if error.retriable and any(p.position >= 0 for p in self._planner.partitions.values()):
                _log.warning(
                    "Failed to look up offsets to start reading from; trying again: %s", error
                )
            else:
                self._planner.raise_soon(error)
                self._arrived()
            await asyncio.sleep(0.2)
        self.kick()

    def _position(
        self, missing: dict[TopicPartition, int], offsets: dict[TopicPartition, OffsetAndTimestamp]
    ) -> None:
        """Pass to the planner those of `offsets` that are in `missing`, and remove them from `missing`."""
        for name in missing.keys() & offsets.keys():
            lookup_ms, offset = missing.pop(name), offsets[name].offset
            if offset >= 0:
                self._planner.position_found(name, lookup_ms, offset)
            else:  # All records have earlier timestamps.
                self._planner.lookup_at_end(name, lookup_ms)
        self._arrived()
        self.kick()

    async def _validate(self, name: TopicPartition, last_epoch: int) -> None:
        target = self._leader_of(name)
        end: tuple[int, int] | None = None
        try:
            end = await end_of_epoch(self._cluster, name, last_epoch, timeout_s=VALIDATION_S_MAX)
        except UnsupportedOperation:
            end = (-1, -1)
        except OdradekError as error:
            _log.debug("Failed to check whether the log of %s was truncated: %s", name, error)
        if end is None or target is None:
            await asyncio.sleep(0.02 + 0.05 * random.random())
            self._cluster.refresh_soon()
        self._planner.validated(
            name, last_epoch, None if end is None else end[1], -1 if target is None else target[1]
        )
        self.kick()

"""`Producer`: sends records to topics."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from odradek.cluster import wait_report
from odradek.cluster.backoff import Backoff
from odradek.cluster.cluster import Cluster, LinkState, connect
from odradek.cluster.metadata_cache import Change
from odradek.cluster.security import SaslCredentials, TlsOptions
from odradek.errors import (
    BrokersUnavailable,
    BufferFull,
    ClientClosed,
    FlushTimedOut,
    InvalidRequest,
    OdradekError,
    SerializationFailed,
)
from odradek.producer.accumulator import Accumulator, AccumulatorLimits, Headers
from odradek.producer.delivery import Deliveries, DeliveryFuture, RecordMetadata
from odradek.producer.options import Acks, ProducerOptions, Serializer
from odradek.producer.partition_queue import PartitionQueue, ProducerBatch
from odradek.producer.partitioner import Partitioner, TopicQueues
from odradek.producer.sender import Sender, monotonic_ms
from odradek.producer.transaction import ProducerTransactions, Transaction, run_transaction
from odradek_protocol.records.hashes import partition_for_key
from odradek_protocol.rpc.v1.transaction_service_pb2 import ProducerIdentity

CLOSE_S_MAX = 30.0
T = TypeVar("T")
_log = logging.getLogger(__name__)
_YIELD_EVERY = 500  # After this many records, `send` lets other tasks run.


class ProducerArguments(TypedDict, total=False):
    """The fields of `ProducerOptions`, as keyword arguments."""

    acks: Acks
    enable_idempotence: bool | None
    linger_ms: int
    batch_bytes_max: int
    request_bytes_max: int
    buffer_bytes_max: int
    max_block_ms: int
    max_in_flight: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    compression: str
    compression_level: int | None
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    partitioner: Partitioner | None
    allow_auto_create_topics: bool
    transactional_id: str | None
    transaction_timeout_ms: int
    commit_timeout_ms: int


class Producer:
    """Sends records to topics. Create it with `async with Producer("host:9090") as producer:` or `client.producer()`.

    A producer can only be used on the event loop of its first use. By default, each record is written exactly once, and
    the records of a partition are written in the order in which they were sent; see `ProducerOptions`.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        tls: TlsOptions | None = None,
        credentials: SaslCredentials | None = None,
        cluster: Cluster | None = None,
        **arguments: Unpack[ProducerArguments],
    ) -> None:
        self.options = ProducerOptions(**arguments)
        self._cluster = (
            connect(bootstrap, tls, credentials=credentials) if cluster is None else cluster
        )
        self._owns_cluster = cluster is None
        options = self.options
        self._accumulator = Accumulator(
            AccumulatorLimits(
                batch_bytes_max=options.batch_bytes_max,
                request_bytes_max=options.request_bytes_max,
                buffer_bytes_max=options.buffer_bytes_max,
                linger_ms=options.linger_ms,
                in_flight_max=options.max_in_flight,
                delivery_timeout_ms=options.delivery_timeout_ms,
            ),
            is_idempotent=options.is_idempotent,
            is_transactional=options.transactional_id is not None,
            backoff=Backoff(
                first_ms=options.retry_backoff_ms, most_ms=options.retry_backoff_max_ms
            ),
        )
        self._sender = Sender(self._cluster, self._accumulator, options)
        self._transactions: ProducerTransactions | None = None
        if options.transactional_id is not None:
            self._transactions = ProducerTransactions(
                self._cluster, self._sender, self._accumulator, options
            )
        self._topics: dict[str, TopicQueues] = {}
        self._key_serializer = options.key_serializer
        self._value_serializer = options.value_serializer
        self._sent_since_yield = 0
        self._sticky_bytes = options.batch_bytes_max * 15 // 16
        self._report_timer: asyncio.TimerHandle | None = None
        self._reported_reason = ""
        self._is_started = False
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{self.buffered_bytes} bytes buffered"
        return f"<odradek.Producer {self._cluster}, {state}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def buffered_bytes(self) -> int:
        """The size in bytes of the records that are not acknowledged yet."""
        return self._accumulator.buffered_bytes

    def explain_waiting(self) -> str:
        """Return, in words for a user, why the oldest records are not acknowledged yet. The result is "" if all records
        are acknowledged.
        """
        pending = self._accumulator.pending_batches()
        if not pending:
            return ""
        oldest = min(pending, key=lambda batch: batch.created_ms)
        is_connected = self._cluster.state is LinkState.CONNECTED
        reason = oldest.last_error
        if reason is not None and not (is_connected and isinstance(reason, BrokersUnavailable)):
            return str(reason)
        if not is_connected:
            return str(self._cluster.unavailable(None))
        name = oldest.queue.name
        if self._cluster.cache.leader_endpoint(name) is None:
            return f"{name} has no leader: `odradek why {name.topic}/{name.partition}` explains why"
        if self._sender.is_throttled:
            return "a producer quota limits the rate (`odradek quota list` shows quotas)"
        return f"the leader of {name} has not responded yet"

    def _report_after(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._report_timer = loop.call_later(delay_s, self._report_waiting)

    def _report_waiting(self) -> None:
        """Log a warning with the reason if the oldest pending records have waited longer than WAIT_REPORT_S. The check
        is repeated while records are pending, and a further warning follows if the reason changes.
        """
        self._report_timer = None
        pending = self._accumulator.pending_batches()
        if not pending:
            self._reported_reason = ""
            return
        oldest = min(pending, key=lambda batch: batch.created_ms)
        waited_s = (monotonic_ms() - oldest.created_ms) / 1000
        remaining_s = wait_report.WAIT_REPORT_S + self.options.linger_ms / 1000 - waited_s
        # No batch has waited long enough for a report, so a wait that was reported has ended.
        if remaining_s > 0.001:
            self._reported_reason = ""
            self._report_after(remaining_s)
            return
        self._report_after(wait_report.WAIT_REPORT_S)
        reason = self.explain_waiting()
        if reason != self._reported_reason:
            self._reported_reason = reason
            records = sum(batch.record_count for batch in pending)
            wait_report.log_wait(
                f"acknowledgements of records ({records} pending)", waited_s, reason
            )

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> DeliveryFuture:
        """Put one record into the buffer, and return a future for its acknowledgement. The call waits only for buffer
        space, and at the first use of a topic for its metadata.

        You may `await` the future, keep it, or drop it. If a record fails and nobody awaits its future, the failure is
        logged.

        Raises:
            UnknownTopic, BrokersUnavailable: the partitions of the topic are not known.
            BufferFull: the buffer had no space within `max_block_ms`.
            RecordTooLarge, SerializationFailed: this record cannot be sent.
        """
        transactions = self._transactions
        transaction = None if transactions is None else transactions.open
        topic_queues = self._topics.get(topic)
        if topic_queues is None or self._is_closed:
            topic_queues = await self._open_topic(topic)
        if self._key_serializer is not None:
            key = _serialized(self._key_serializer, key, "key", topic)
        if self._value_serializer is not None:
            value = _serialized(self._value_serializer, value, "value", topic)
        try:
            if partition is not None:
                queue = await self._explicit(topic_queues, partition)
            elif key is not None:
                queue = topic_queues.of_key(key)
            else:
                queue = topic_queues.sticky
                filling = queue.open_batch
                if filling is None or filling.size_bytes >= self._sticky_bytes:
                    if filling is not None:
                        queue.seal()
                        self._accumulator.has_full = True
                    queue = topic_queues.next_sticky()
            now_ms = time.monotonic_ns() // 1_000_000
            if timestamp_ms is None:
                timestamp_ms = now_ms + self._sender.wall_offset_ms
            elif timestamp_ms < 0:
                raise ValueError(f"the timestamp {timestamp_ms} ms is before 1970")
            accumulator = self._accumulator
            if transactions is not None:
                transactions.require_open(transaction)
            batch = accumulator.append(queue, key, value, headers, timestamp_ms, now_ms)
            if batch is None:
                batch = await self._append_when_space(
                    queue, key, value, headers, timestamp_ms, transaction
                )
        except (TypeError, ValueError) as error:
            raise SerializationFailed(
                f"a record for {topic!r} cannot be encoded: {error}",
                hint="pass key and value as bytes, or as objects that the producer's serializers accept"
                " (odradek.serializers), headers as pairs of str and bytes, and timestamps as integers in ms",
            ) from error
        future = DeliveryFuture(batch, batch.record_count - 1)
        self._sent_since_yield += 1
        if accumulator.has_opened:
            accumulator.has_opened = False
            self._sender.kick()
            if self._report_timer is None:
                self._report_after(wait_report.WAIT_REPORT_S)
        if accumulator.has_full or self._sent_since_yield >= _YIELD_EVERY:
            accumulator.has_full = False
            self._sent_since_yield = 0
            await asyncio.sleep(0)
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait for its acknowledgement. Raises the errors of `send` and of its future."""
        future = await self.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return await future

    async def send_many(
        self, topic: str, values: Iterable[Any], *, key: Any = None, partition: int | None = None
    ) -> Deliveries:
        """Send several values in order, with the same key and partition if they are given. Return the futures.

        Values without a key cost much less than separate calls of `send`. If a value cannot be sent, the errors of
        `send` are raised; the values before it are sent.
        """
        deliveries = Deliveries()
        await self._send_into(deliveries, topic, values, key=key, partition=partition)
        return deliveries

    async def _send_into(
        self,
        deliveries: Deliveries,
        topic: str,
        values: Iterable[Any],
        *,
        key: Any = None,
        partition: int | None = None,
    ) -> None:
        """Send values like `send_many`, and add their futures to `deliveries`. If the call raises or is cancelled,
        `deliveries` has the futures of the records that were sent.
        """
        transactions = self._transactions
        transaction = None if transactions is None else transactions.open
        if key is not None or self._value_serializer is not None:
            for value in values:
                if transactions is not None:
                    transactions.require_open(transaction)
                sent = await self.send(topic, value, key=key, partition=partition)
                deliveries.add(sent, 1)
            return
        values = values if isinstance(values, Sequence) else list(values)
        bytes_max = self._sticky_bytes if partition is None else self.options.batch_bytes_max
        while len(deliveries) < len(values):
            if transactions is not None:
                transactions.require_open(transaction)
            sent = await self.send(topic, values[len(deliveries)], partition=partition)
            batch, count = sent._batch, 1
            if batch.queue.open_batch is batch:  # No other task sealed the batch during `send`.
                count += self._accumulator.extend(
                    batch,
                    values,
                    len(deliveries) + 1,
                    monotonic_ms() + self._sender.wall_offset_ms,
                    bytes_max=bytes_max,
                )
            deliveries.add(sent, count)

    def transaction(self) -> Transaction:
        """Create a transaction, for `async with producer.transaction() as transaction:`.

        All records that are sent in the block belong to the transaction. Consumers with
        isolation_level="read_committed" see either all of them, in all partitions, or none. The end of the block
        commits the transaction; an exception in the block aborts it. A producer can have one open transaction.

        Raises:
            InvalidRequest: the producer has no `transactional_id`.
        """
        return Transaction(self._require_transactions())

    async def run_transaction(
        self, work: Callable[[Transaction], Awaitable[T]], *, attempts: int = 5
    ) -> T:
        """Run `work(transaction)` in a transaction, and return its result. If the transaction is aborted, run `work`
        again in a new transaction, up to `attempts` times in total.

        Raises:
            TransactionAborted: the last attempt was aborted, too.
            OdradekError: the producer can no longer be used, or `work` raised this error.
        """
        return await run_transaction(self.transaction, work, attempts=attempts)

    async def init(self) -> None:
        """Fence older producers with this transactional id, and abort their open transaction.

        The first transaction does the same, so this call is optional.
        """
        self._require_open()
        await self._require_transactions().init()

    def begin_staged(self, transactional_id: str, identity: ProducerIdentity) -> None:
        """Send all further records in the transaction of a task of a staged write. Only `StagedWrites` calls this
        method.
        """
        self._require_open()
        self._require_transactions().adopt(transactional_id, identity)

    async def finish_staged(self) -> None:
        """Wait until all records of the task are acknowledged. Only `StagedTask` calls this method.

        Raises:
            OdradekError: the error of the first record that failed. The producer must then be closed.
        """
        await self._require_transactions().finish()

    def _require_transactions(self) -> ProducerTransactions:
        if self._transactions is None:
            raise InvalidRequest(
                "this producer has no transactions, because it has no transactional id",
                hint="create the producer with transactional_id=...",
            )
        return self._transactions

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record that was sent before this call is acknowledged or has failed.

        The errors of failed records are raised by their futures, not by this call.

        Raises:
            FlushTimedOut: some records were neither acknowledged nor failed after `timeout_s`. The producer continues
                to send them.
        """
        if self._accumulator.release_all(monotonic_ms()):
            self._sender.kick()
        pending = set(self._accumulator.pending_batches())
        try:
            async with asyncio.timeout(timeout_s):
                while pending := {batch for batch in pending if not batch.is_done}:
                    await self._sender.progress()
        except TimeoutError:
            pending = {batch for batch in pending if not batch.is_done}
            raise FlushTimedOut(
                f"{sum(b.record_count for b in pending)} records in {len(pending)} batches were"
                f" still unacknowledged after {timeout_s} s{_cause(pending)}"
            ) from None

    async def close(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """Send the buffered records for at most `timeout_s` seconds; records that are not acknowledged by then fail
        with ClientClosed. May be called twice.

        An open transaction is aborted instead. The call returns in time even if no broker responds.
        """
        if self._is_closed:
            return
        self._is_closed = True
        reason = ClientClosed("the producer was closed before this record was acknowledged")
        try:
            if self._transactions is not None:
                await self._abort_open(self._transactions, timeout_s)
            elif timeout_s > 0:
                await self.flush(timeout_s)
        except FlushTimedOut as error:
            reason = ClientClosed(f"the producer was closed: {error.message}")
        finally:
            if self._report_timer is not None:
                self._report_timer.cancel()
            self._cluster.unsubscribe(self._on_change)
            await self._sender.close(reason)
            if self._owns_cluster:
                await self._cluster.close()

    async def _abort_open(self, transactions: ProducerTransactions, timeout_s: float) -> None:
        """Abort an open transaction, so that read_committed consumers need not wait for its timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await transactions.close()
        except (OdradekError, TimeoutError) as error:
            _log.warning(
                "Failed to abort an open transaction when its producer closed; it will be "
                "aborted when it times out: %s",
                error,
            )

    async def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic. Waits for the metadata of the topic at its first use."""
        topic_queues = self._topics.get(topic)
        if topic_queues is None or self._is_closed:
            topic_queues = await self._open_topic(topic)
        return len(topic_queues.queues)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the producer is closed")

    async def _open_topic(self, topic: str) -> TopicQueues:
        self._require_open()
        if not self._is_started:
            self._is_started = True
            self._sender.start()
            self._cluster.subscribe(self._on_change)
        topic_info = await self._cluster.topic(
            topic,
            timeout_s=self.options.max_block_ms / 1000,
            allow_create=self.options.allow_auto_create_topics,
        )
        self._require_open()
        topic_queues = self._topics.get(topic)
        if topic_queues is None:
            queues = [self._sender.queue(topic, p.partition) for p in topic_info.partitions]
            topic_queues = self._topics[topic] = TopicQueues(
                topic,
                queues,
                partitioner=self.options.partitioner or partition_for_key,
                first_turn=random.randrange(len(queues)),
            )
            self._update_lanes(topic)
        return topic_queues

    async def _explicit(self, topic_queues: TopicQueues, partition: int) -> PartitionQueue:
        if partition < 0:
            raise ValueError(
                f"partition {partition} is negative; omit the argument to let the producer choose a partition"
            )
        if partition >= len(topic_queues.queues):
            await self._cluster.topic(
                topic_queues.topic, timeout_s=self.options.max_block_ms / 1000, partition=partition
            )
            self._require_open()
            # During the wait, the topic may have been deleted and created again.
            if topic_queues is not self._topics.get(topic_queues.topic):
                topic_queues = await self._open_topic(topic_queues.topic)
            self._update_lanes(topic_queues.topic)
        return topic_queues.queues[partition]

    async def _append_when_space(
        self,
        queue: PartitionQueue,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        transaction: Transaction | None,
    ) -> ProducerBatch:
        self._sender.kick()
        timeout_s = self.options.max_block_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await self._sender.progress()
                    if self._is_closed:
                        raise ClientClosed(
                            "the producer was closed while a record waited for buffer space"
                        )
                    if self._transactions is not None:
                        self._transactions.require_open(transaction)
                    batch = self._accumulator.append(
                        queue, key, value, headers, timestamp_ms, monotonic_ms()
                    )
                    if batch is not None:
                        return batch
        except TimeoutError:
            pending = set(self._accumulator.pending_batches())
            raise BufferFull(
                f"the buffer had no space for a record for {queue.name} within {timeout_s} s:"
                f" {self._accumulator.buffered_bytes} bytes are unacknowledged{_cause(pending)}"
            ) from None

    def _on_change(self, change: Change) -> None:
        for name in change.topics | {partition.topic for partition in change.leaders}:
            if name in self._topics:
                self._update_lanes(name)

    def _update_lanes(self, topic: str) -> None:
        topic_info = self._cluster.cache.topic(topic)
        if topic_info is None:
            del self._topics[topic]
            return
        topic_queues = self._topics[topic]
        if len(topic_info.partitions) < len(topic_queues.queues):
            # The topic was deleted, and created again with fewer partitions.
            del self._topics[topic]
            return
        topic_queues.extend(
            [
                self._sender.queue(topic, p.partition)
                for p in topic_info.partitions[len(topic_queues.queues) :]
            ]
        )
        topic_queues.set_available([p.partition for p in topic_info.partitions if p.leader_id >= 0])


def _serialized(serializer: Serializer, item: Any, what: str, topic: str) -> bytes | None:
    try:
        return serializer(item)
    except OdradekError:
        raise
    except Exception as error:
        raise SerializationFailed(
            f"the {what} of a record for {topic!r} cannot be serialized: {error!r}"
        ) from error


def _cause(batches: Iterable[ProducerBatch]) -> str:
    for batch in batches:
        if batch.last_error is not None:
            return f"; last error: {batch.last_error}"
    return ""

"""The transaction coordinator of this broker. Request handlers and partition leaders call it with values of
`transactions.messages`.

The state of a transactional id is stored in partition `hash(id) % count` of `__transaction_state`, and the leader of
that partition coordinates the id. Calls for other ids raise CoordinatorError(NOT_COORDINATOR). `placement` returns the
broker that coordinates an id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from odradek_broker.cluster.producer_ids import ProducerIdSource
from odradek_broker.cluster.topic_creation import TopicCreation
from odradek_broker.coordination.connection_order import ConnectionNumbers, ConnectionOrder
from odradek_broker.coordination.coordinator_host import CoordinatorHost
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.coordination.marker_sender import Acknowledged, LocalMarkers, MarkerSender
from odradek_broker.coordination.peer_streams import PeerStreams
from odradek_broker.coordination.placement import Placement
from odradek_broker.coordination.transaction_metrics import TransactionMetrics
from odradek_broker.coordinator_step import LoadedMarker, LoadedRecord, RequestId, Step, respond
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.settings import BrokerSettings
from odradek_broker.settled_clock import SettledClock
from odradek_broker.transactions import transaction_codec
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import (
    Aborted,
    AbortTransaction,
    Added,
    AddPartitions,
    Ended,
    EndTransaction,
    Initialized,
    InitProducer,
    Resolution,
    SendMarkers,
    TransactionBegun,
    TransactionCompleted,
    Verified,
    VerifyPartitions,
)
from odradek_broker.transactions.settings import TransactionSettings
from odradek_broker.transactions.transaction import (
    Transaction,
    TransactionalId,
    TransactionRecord,
)
from odradek_broker.transactions.transaction_shard import TransactionShard, partition_key
from odradek_protocol.identity import BrokerId, LeaderEpoch, PartitionIndex, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from odradek_protocol.topic_names import TRANSACTIONS_TOPIC
from odradek_runtime.clock import SYSTEM_CLOCK, Clock

T = TypeVar("T")
_NOT_ACCEPTED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.POLICY_VIOLATION,
    }
)


class OutdatedConnection(Exception):
    """A request for the same transactional id has already been accepted on a later connection. The connection of this
    request must be closed (connection_order.py).
    """


class TransactionCoordinator:
    """The transactional ids that this broker coordinates. Run `run()` in a task group, and call all other methods
    on its event loop.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        settings: BrokerSettings,
        partitions: LocalPartitions,
        topic_creation: TopicCreation,
        producer_ids: ProducerIdSource,
        marker_streams: PeerStreams[pb.MarkEntry, pb.MarkResult],
        write_marker_here: LocalMarkers,
        connection_numbers: ConnectionNumbers,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = transaction_settings(settings)
        self._partitions = partitions
        self.now_ms, self.wall_ms = clock.monotonic_ms, clock.wall_ms
        self.placement = Placement(
            topic=TRANSACTIONS_TOPIC,
            partitions=partitions,
            creation=topic_creation,
            partition_count=settings.transaction_topic_num_partitions,
            replication_factor=settings.transaction_topic_replication_factor,
            min_isr=settings.transaction_topic_min_isr,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "unclean.leader.election.enable": "false",
                "segment.bytes": str(settings.transaction_topic_segment_bytes),
            },
        )
        self.markers = MarkerSender(
            broker_id=broker_id,
            partitions=partitions,
            streams=marker_streams,
            write_here=write_marker_here,
            on_marked=self._marked,
            on_fenced=self._fenced,
            clock=clock,
        )
        self.metrics = TransactionMetrics(
            shards=lambda: self._host.active_shards(),
            pending_markers=self.markers.__len__,
            now_ms=self.now_ms,
            wall_ms=self.wall_ms,
        )
        self._kind = TransactionKind(
            metrics=self.metrics,
            settings=self.settings,
            partitions=partitions,
            producer_ids=producer_ids,
            markers=self.markers,
            connection_numbers=connection_numbers,
            clock=clock,
        )
        self._host: CoordinatorHost[TransactionShard] = CoordinatorHost(
            topic=TRANSACTIONS_TOPIC,
            partitions=partitions,
            kind=self._kind,
            now_wall_ms=clock.wall_ms,
        )

    async def run(self) -> None:
        """Coordinate transactions until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._host.run(), name="transaction coordinator")
            tasks.create_task(self.markers.run(), name="markers")

    def partition_of(self, transactional_id: str) -> PartitionIndex | None:
        """Return the partition that stores the state of the id, or None if `__transaction_state` does not exist yet."""
        return self.placement.partition_of(partition_key(transactional_id))

    async def init_producer(
        self, request: InitProducer, *, connection: int | None = None
    ) -> Initialized:
        """Handle InitProducerId, and return the producer id and epoch.

        `connection` is the number of a Kafka client's connection; None for gRPC clients.

        Raises:
            OutdatedConnection: a request for this id has already been accepted on a later connection.
        """
        response: Initialized = await self._ask(
            request.transactional_id,
            lambda shard, i: shard.handle_init(
                i, request, now_ms=self.now_ms(), wall_ms=self.wall_ms()
            ),
            connection,
        )
        return response

    async def add_partitions(
        self, request: AddPartitions, *, connection: int | None = None
    ) -> Added:
        """Add partitions to a transaction.

        `connection` is the number of the connection of a client of transaction version 0 or 1; otherwise None.

        Raises:
            OutdatedConnection: a request for this id has already been accepted on a later connection.
        """
        response: Added = await self._ask(
            request.transactional_id,
            lambda shard, i: shard.handle_add(
                i, request, now_ms=self.now_ms(), wall_ms=self.wall_ms()
            ),
            connection,
        )
        return response

    async def verify_partitions(self, request: VerifyPartitions) -> Verified:
        """Return an error code for each partition: NONE if it belongs to the producer's open transaction."""
        response: Verified = await self._ask(
            request.transactional_id, lambda shard, i: shard.handle_verify(i, request)
        )
        return response

    async def end_transaction(
        self, request: EndTransaction, *, connection: int | None = None
    ) -> Ended:
        """Commit or abort a transaction.

        `connection` is the number of the connection of a client of transaction version 0 or 1; otherwise None.

        Raises:
            OutdatedConnection: a request for this id has already been accepted on a later connection.
        """
        response: Ended = await self._ask(
            request.transactional_id,
            lambda shard, i: shard.handle_end(
                i, request, now_ms=self.now_ms(), wall_ms=self.wall_ms()
            ),
            connection,
        )
        return response

    async def abort_transaction(self, request: AbortTransaction) -> Aborted:
        """Abort a transaction on request of an operator."""
        response: Aborted = await self._ask(
            request.transactional_id,
            lambda shard, i: shard.handle_abort(
                i, request, now_ms=self.now_ms(), wall_ms=self.wall_ms()
            ),
        )
        return response

    async def ask_staged(
        self, query: str, decide: Callable[[TransactionShard, RequestId], Step[Any]]
    ) -> Any:
        """Let the shard with the staged writes of a query (transactions/staged_steps.py) handle a request, and wait
        until its response may be sent.
        """
        return await self._ask(query, decide)

    async def describe(self, transactional_id: TransactionalId) -> Transaction | None:
        """Return the state of an id, or None if the id is unknown."""
        state: Transaction | None = await self._ask(
            transactional_id, lambda shard, i: respond(i, shard.table.get(transactional_id))
        )
        return state

    def listings(self) -> Iterator[tuple[TransactionalId, Transaction]]:
        """Return the ids that this broker coordinates, with their states.

        Raises:
            CoordinatorError: COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded.
        """
        if self._host.is_loading():
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return (item for shard in self._host.active_shards() for item in shard.table.items())

    async def resolve(
        self, producers: Sequence[tuple[ProducerIdentity, TopicIdPartition]]
    ) -> list[tuple[PartitionIndex, LeaderEpoch, list[Resolution]]]:
        """Return how each active coordinator shard of this broker resolves the given transactions.

        Each item of the result is (partition of `__transaction_state`, leader epoch, a resolution per transaction).
        """

        def decide(shard: TransactionShard, request_id: RequestId) -> Step[Any]:
            return respond(
                request_id,
                [
                    shard.table.resolve(identity, partition.topic_id, partition.partition)
                    for identity, partition in producers
                ],
            )

        resolved = []
        for partition in self._host.active_partitions():
            try:
                resolutions, epoch = await self._host.ask_in_epoch(partition, decide)
            except CoordinatorError:
                continue
            resolved.append((partition, epoch, resolutions))
        return resolved

    async def ask_in_epoch(
        self,
        transactional_id: str,
        decide: Callable[[TransactionShard, RequestId], Step[Any]],
    ) -> tuple[Any, PartitionIndex, LeaderEpoch]:
        """Let the id's shard handle a request. Return the response, the shard's partition and its leader epoch.

        Raises:
            CoordinatorError: as for `CoordinatorHost.ask`.
        """
        partition = self.partition_of(transactional_id)
        if partition is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)

        def filled(shard: TransactionShard, request_id: RequestId) -> Step[Any]:
            self._kind.fill(shard)
            return decide(shard, request_id)

        response, epoch = await self._host.ask_in_epoch(partition, filled)
        self.metrics.count_response(getattr(response, "error", None))
        return response, partition, epoch

    async def _ask(
        self,
        transactional_id: str,
        decide: Callable[[TransactionShard, RequestId], Step[Any]],
        connection: int | None = None,
    ) -> Any:
        partition = self.partition_of(transactional_id)

        def in_order(shard: TransactionShard, request_id: RequestId) -> Step[Any]:
            assert partition is not None, "only a partition that exists has a shard"
            order = self._kind.order_of(partition)
            if connection is None:
                return decide(shard, request_id)
            if order.is_outdated(transactional_id, connection):
                return respond(request_id, _OUTDATED)
            step = decide(shard, request_id)
            responses = (r.response for r in step.responses if r.request_id == request_id)
            if all(response.error not in _NOT_ACCEPTED for response in responses):
                order.accepted(transactional_id, connection)
            return step

        response, _, _ = await self.ask_in_epoch(transactional_id, in_order)
        if response is _OUTDATED:
            raise OutdatedConnection(
                f"the client has already used a later connection for transactional id {transactional_id!r}"
            )
        return response

    def _marked(
        self,
        partition: PartitionIndex,
        leader_epoch: LeaderEpoch,
        acknowledged: Sequence[Acknowledged],
    ) -> None:
        now_ms, wall_ms = self.now_ms(), self.wall_ms()

        def decide(shard: TransactionShard) -> Step[TransactionRecord]:
            self._kind.fill(shard)
            step: Step[TransactionRecord] = Step()
            for decision, target, code in acknowledged:
                step += shard.handle_marked(decision, target, code, now_ms=now_ms, wall_ms=wall_ms)
            return step

        self._host.tell(partition, leader_epoch, decide)

    def _fenced(self, partition: PartitionIndex, leader_epoch: LeaderEpoch) -> None:
        self._host.resign(partition, leader_epoch)


_OUTDATED: Final = object()


class TransactionKind:
    """Implements ShardKind: CoordinatorHost uses it to create, load and write the shards of the transaction
    coordinator.
    """

    def __init__(
        self,
        *,
        metrics: TransactionMetrics,
        settings: TransactionSettings,
        partitions: LocalPartitions,
        producer_ids: ProducerIdSource,
        markers: MarkerSender,
        connection_numbers: ConnectionNumbers,
        clock: Clock,
    ) -> None:
        self.metrics = metrics
        self._settings = settings
        self._partitions = partitions
        self._producer_ids = producer_ids
        self._markers = markers
        self._connection_numbers = connection_numbers
        self._clock = clock
        self._settled = SettledClock()
        self._settled.read(now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms())
        self._orders: dict[PartitionIndex, ConnectionOrder] = {}
        self._loaded: set[PartitionIndex] = set()

    def create(self) -> TransactionShard:
        """Return an empty shard."""
        return TransactionShard(settings=self._settings, clock=self._settled)

    def fill(self, shard: TransactionShard) -> None:
        """Refill the shard's reserve of producer ids, because a state machine cannot wait for the controller."""
        if shard.reserve.missing > 0:
            shard.reserve.add(self._producer_ids.take(shard.reserve.missing))

    def order_of(self, partition: PartitionIndex) -> ConnectionOrder:
        """Return the ConnectionOrder of an active shard."""
        return self._orders[partition]

    def replay(self, shard: TransactionShard, record: LoadedRecord) -> None:
        """Apply one record of the log. Unknown record types, which newer releases may write, are ignored."""
        transaction_record = transaction_codec.decode(record.key, record.value)
        if transaction_record is not None:
            shard.table.replay(transaction_record)

    def replay_marker(self, shard: TransactionShard, marker: LoadedMarker) -> None:
        """Ignore the marker, because no transaction writes to `__transaction_state`."""

    def loaded(
        self, shard: TransactionShard, partition: PartitionIndex, leader_epoch: LeaderEpoch
    ) -> Step[TransactionRecord]:
        """Send the markers of decided transactions, and start the timeouts of open transactions."""
        self._orders[partition] = ConnectionOrder(
            self._connection_numbers.last, is_first=partition not in self._loaded
        )
        self._loaded.add(partition)
        self.fill(shard)
        return shard.loaded(now_ms=self._clock.monotonic_ms(), wall_ms=self._clock.wall_ms())

    def closed(self, partition: PartitionIndex, leader_epoch: LeaderEpoch) -> None:
        """Stop sending the markers of this shard."""
        self._orders.pop(partition, None)
        self._markers.closed(partition, leader_epoch)

    def tick(self, shard: TransactionShard, partition: PartitionIndex) -> Step[TransactionRecord]:
        """Abort transactions that timed out, refuse requests that waited too long, and delete expired ids."""
        self.fill(shard)
        led = self._partitions.find(TRANSACTIONS_TOPIC, partition)
        return shard.tick(
            now_ms=self._clock.monotonic_ms(),
            wall_ms=self._clock.wall_ms(),
            can_write=not isinstance(led, ErrorCode) and led.can_write,
        )

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        """Return the key and the value of a record."""
        return transaction_codec.encode(record)

    def state_key(self, record: TransactionRecord) -> TransactionalId:
        """Return the transactional id, because each record contains the whole state of its id and replaces earlier
        records.
        """
        return record.transactional_id

    def obey(self, partition: PartitionIndex, leader_epoch: LeaderEpoch, order: Any) -> None:
        """Send the markers of a committed decision, or count a transaction that began or completed."""
        match order:
            case SendMarkers():
                self._markers.send(partition, leader_epoch, order)
            case TransactionBegun():
                self.metrics.started += 1
            case TransactionCompleted():
                self.metrics.count_completed(order)
            case _:
                raise AssertionError(f"unknown order {order!r} in partition {partition}")


def transaction_settings(settings: BrokerSettings) -> TransactionSettings:
    """Convert the settings of a broker to those of its transaction coordinator."""
    return TransactionSettings(
        id_expiration_ms=settings.transactional_id_expiration_ms,
        remove_expired_interval_ms=settings.transaction_remove_expired_interval_ms,
        max_timeout_ms=settings.transaction_max_timeout_ms,
        completion_wait_max_ms=settings.transaction_completion_wait_max_ms,
        load_grace_ms=settings.transaction_load_grace_ms,
        partitions_max=settings.transaction_partitions_max,
        ids_max=settings.transaction_ids_max,
        prepared_timeout_ms=settings.transaction_prepared_timeout_ms,
        staged_lease_ms=settings.transaction_staged_lease_ms,
        ledger_expiration_ms=settings.transaction_ledger_expiration_ms,
    )

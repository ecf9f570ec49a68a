"""Offsets that a producer commits in a transaction (TxnOffsetCommit).

This broker is the group coordinator; the transaction coordinator may be another broker. Before the first offsets of a
transaction are written, the transaction coordinator must have added the group's partition of `__consumer_offsets` to
the transaction. Likewise, any other partition must be added before the first batch is written to that partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from odradek_broker.coordination.connection_order import ConnectionNumbers, ConnectionOrder
from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.coordination.registrar import Registrar
from odradek_broker.coordination.transaction_coordinator import OutdatedConnection
from odradek_broker.groups.messages import (
    CommitInTransaction,
    NeedsRegistration,
    OffsetsAnswer,
    Registered,
)
from odradek_broker.partition.events import RegistrationMode
from odradek_broker.partition.marker_writes import CoordinatorEpochs
from odradek_broker.replication.host_ports import Registration, RegistrationResponse
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_protocol.identity import LeaderEpoch, PartitionIndex, TopicIdPartition, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_runtime.clock import Clock

OFFSETS_AT_ONCE: Final = 1_000
"""The maximum number of offsets that the group coordinator handles in one step, which occupies the event loop for about
10 us for each offset.
"""
_PAUSE_S: Final = 0.05
_FINAL: Final = {
    # In a response to TxnOffsetCommit, producers recognize by INVALID_PRODUCER_EPOCH that they are fenced.
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_REQUEST: ErrorCode.INVALID_REQUEST,
}


class TransactionalOffsets:
    """Commits offsets in transactions, for clients of the Kafka protocol and of gRPC."""

    def __init__(
        self,
        *,
        groups: GroupCoordinator,
        registrar: Registrar,
        partitions: LocalPartitions,
        coordinator_epochs: CoordinatorEpochs,
        connection_numbers: ConnectionNumbers,
        timeout_ms: int,
        clock: Clock,
    ) -> None:
        """`timeout_ms` is the longest time for which a commit waits for the transaction coordinator."""
        self._groups = groups
        self._registrar = registrar
        self._partitions = partitions
        self._coordinator_epochs = coordinator_epochs
        self._connection_numbers = connection_numbers
        self._timeout_ms = timeout_ms
        self._now_ms = clock.boottime_ms
        self._orders: dict[PartitionIndex, tuple[LeaderEpoch, ConnectionOrder]] = {}

    async def commit(
        self,
        request: CommitInTransaction,
        *,
        transactional_id: str,
        mode: RegistrationMode,
        connection: int | None = None,
    ) -> OffsetsAnswer:
        """Add offsets to the producer's transaction.

        `connection` is the number of the connection of a client of transaction version 0 or 1; otherwise None. Many
        offsets are added in several steps. If a step fails, the offsets of earlier steps stay pending, and are
        committed only if the transaction commits.

        Raises:
            CoordinatorError: this broker does not coordinate the group, or is still loading it.
            OutdatedConnection: offsets of this producer have already been accepted on a later connection.
        """
        placement = self._groups.placement
        partition = placement.partition_of(request.commit.group_id)
        topic = self._partitions.image.topic(placement.topic)
        if topic is None or partition is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        order = self._order(partition)
        producer = str(request.producer_id)
        deadline_ms = self._now_ms() + self._timeout_ms
        registration = Registration(
            TopicIdPartition(topic.topic_id, partition),
            topic.name,
            transactional_id,
            request.producer_id,
            request.producer_epoch,
            mode,
            deadline_ms,
        )
        codes: dict[TopicPartition, ErrorCode] = {}
        for part in _parts(request):
            if connection is not None and order.is_outdated(producer, connection):
                raise OutdatedConnection(
                    f"the client has already used a later connection for producer id {request.producer_id}"
                )
            response = await self._commit_part(part, registration)
            if response.error is not ErrorCode.NONE:
                return response
            if connection is not None:
                order.accepted(producer, connection)
            codes.update(response.partitions)
        return OffsetsAnswer(partitions=codes)

    async def _commit_part(
        self, request: CommitInTransaction, registration: Registration
    ) -> OffsetsAnswer:
        registered: Registered | None = None
        while True:
            response = await self._groups.commit_in_transaction(request, registered)
            if not isinstance(response, NeedsRegistration):
                return response
            registration_response = await self._register(registration)
            code = self._verdict(registration_response)
            if code is ErrorCode.NONE:
                registered = _registered(response, registration, registration_response)
            elif code in _FINAL:
                return OffsetsAnswer(error=_FINAL[code])
            elif self._now_ms() >= registration.deadline_ms:
                # All clients retry the request after this error code.
                return OffsetsAnswer(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            else:
                registered = None
                await asyncio.sleep(_PAUSE_S)

    def _order(self, partition: PartitionIndex) -> ConnectionOrder:
        """Return the ConnectionOrder of a partition of `__consumer_offsets`. Each leader epoch begins with a new
        ConnectionOrder.
        """
        placement = self._groups.placement
        epoch = self._partitions.leader_of(placement.topic, partition).leader_epoch
        known_epoch, order = self._orders.get(partition, (None, None))
        if order is None or known_epoch != epoch:
            order = ConnectionOrder(self._connection_numbers.last, is_first=order is None)
            self._orders[partition] = (epoch, order)
        return order

    async def _register(self, registration: Registration) -> RegistrationResponse:
        registered: asyncio.Future[RegistrationResponse] = (
            asyncio.get_running_loop().create_future()
        )
        self._registrar.register(
            registration,
            lambda response: None if registered.done() else registered.set_result(response),
        )
        return await registered

    def _verdict(self, response: RegistrationResponse) -> ErrorCode:
        if response.coordinator_epoch >= 0 and not self._coordinator_epochs.heard(
            response.coordinator_partition, response.coordinator_epoch
        ):
            # The response came from a deposed coordinator, and its successor may have ended the transaction already.
            return ErrorCode.NOT_COORDINATOR
        return response.error


def _parts(request: CommitInTransaction) -> Iterator[CommitInTransaction]:
    """Yield the request in parts of `OFFSETS_AT_ONCE` offsets. A request without offsets is one part."""
    offsets = request.commit.offsets
    if len(offsets) <= OFFSETS_AT_ONCE:
        yield request
        return
    items = iter(offsets.items())
    while part := dict(islice(items, OFFSETS_AT_ONCE)):
        yield msgspec.structs.replace(
            request, commit=msgspec.structs.replace(request.commit, offsets=part)
        )


def _registered(
    needs: NeedsRegistration, registration: Registration, response: RegistrationResponse
) -> Registered:
    outcome = response.last_outcome
    if outcome is None or outcome.producer_id != registration.producer_id:
        return Registered(needs.guard)
    return Registered(needs.guard, (outcome.producer_epoch, outcome.is_commit))

"""Registrations: requests of a partition leader to a transaction coordinator (KIP-890).

A registration adds the partition to a transaction, or verifies that the transaction contains the partition. `Registrar`
is used by partition leaders. It looks up the coordinator of the transactional id in the metadata image, and sends the
registration over a stream, or directly if this broker is the coordinator. `Registrar` never repeats a registration; a
partition leader whose batch still waits calls `register` again. `respond_to_registration` runs on the broker of the
coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.coordination.peer_streams import PeerStreams
from odradek_broker.coordination.transaction_coordinator import TransactionCoordinator
from odradek_broker.coordinator_step import RequestId, Step
from odradek_broker.partition.events import RegistrationMode, TransactionOutcome
from odradek_broker.replication.host_ports import Registration, RegistrationResponse
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import Added, AddPartitions, Verified, VerifyPartitions
from odradek_broker.transactions.transaction import (
    Outcome,
    TransactionalId,
    TransactionPartition,
    TransactionRecord,
)
from odradek_broker.transactions.transaction_shard import TransactionShard
from odradek_protocol.identity import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from odradek_runtime.clock import Clock
from odradek_runtime.logs import event_log

_NO_PARTITION: Final = PartitionIndex(-1)
_MODES: Final = {
    RegistrationMode.ADD: pb.REGISTRATION_MODE_ADD,
    RegistrationMode.VERIFY: pb.REGISTRATION_MODE_VERIFY,
}
_log = event_log(__name__)


class Registrar:
    """Sends the registrations of this broker's partition leaders to the transaction coordinators."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        coordinator: TransactionCoordinator,
        streams: PeerStreams[pb.RegisterEntry, pb.RegisterResult],
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._streams = streams
        self._now_ms = clock.boottime_ms
        self._tasks: set[asyncio.Task[None]] = set()

    def register(
        self, registration: Registration, on_response: Callable[[RegistrationResponse], None]
    ) -> None:
        """Send a registration to the coordinator. `on_response` is called exactly once, in a later turn of the event
        loop.
        """
        loop = asyncio.get_running_loop()
        partition = self._coordinator.partition_of(registration.transactional_id)
        leader = self._coordinator.placement.leader_of(partition)
        entry = _entry(registration, self._now_ms())
        if leader == self._broker_id:
            task = loop.create_task(self._ask_here(entry, on_response))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif leader is None:
            loop.call_soon(on_response, _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            self._streams.send(leader, entry, lambda result: on_response(_response(result)))

    async def _ask_here(
        self, entry: pb.RegisterEntry, on_response: Callable[[RegistrationResponse], None]
    ) -> None:
        on_response(_response(await respond_to_registration(self._coordinator, entry)))


async def respond_to_registration(
    coordinator: TransactionCoordinator, entry: pb.RegisterEntry
) -> pb.RegisterResult:
    """Let the coordinator on this broker handle a registration, and return the result for the partition leader."""
    result = pb.RegisterResult(
        entry_id=entry.entry_id,
        coordinator_partition=_NO_PARTITION,
        coordinator_epoch=NO_LEADER_EPOCH,
    )
    try:
        (
            response,
            result.coordinator_partition,
            result.coordinator_epoch,
        ) = await coordinator.ask_in_epoch(
            entry.transactional_id,
            partial(_decide, entry, coordinator.now_ms, coordinator.wall_ms),
        )
    except CoordinatorError as error:
        result.error_code = error.code
        return result
    except Exception as error:
        _log.error(
            "Failed to add or verify a partition of a transaction because of an internal error",
            exc=error,
        )
        result.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
        return result
    outcome: Outcome | None = response.last_outcome
    if isinstance(response, Verified):
        result.error_code = response.errors[_partition(entry)]
    else:
        assert isinstance(response, Added), response
        result.error_code = response.error
    if outcome is not None:
        result.last_outcome.CopyFrom(
            pb.TransactionOutcome(
                identity=pb.ProducerIdentity(
                    producer_id=outcome.identity.producer_id,
                    producer_epoch=outcome.identity.epoch,
                ),
                is_commit=outcome.is_commit,
            )
        )
    return result


def _decide(
    entry: pb.RegisterEntry,
    now_ms: Callable[[], int],
    wall_ms: Callable[[], int],
    shard: TransactionShard,
    request_id: RequestId,
) -> Step[TransactionRecord]:
    transactional_id = TransactionalId(entry.transactional_id)
    identity = ProducerIdentity(ProducerId(entry.producer_id), ProducerEpoch(entry.producer_epoch))
    partitions = (_partition(entry),)
    if entry.mode == pb.REGISTRATION_MODE_VERIFY:
        return shard.handle_verify(
            request_id,
            VerifyPartitions(
                transactional_id=transactional_id, identity=identity, partitions=partitions
            ),
        )
    present_ms = now_ms()
    return shard.handle_add(
        request_id,
        AddPartitions(
            transactional_id=transactional_id,
            identity=identity,
            partitions=partitions,
            is_tv2=True,
            wait_until_ms=present_ms + entry.timeout_ms,
        ),
        now_ms=present_ms,
        wall_ms=wall_ms(),
    )


def _partition(entry: pb.RegisterEntry) -> TransactionPartition:
    return TransactionPartition(
        TopicId(entry.partition.topic_id),
        TopicName(entry.topic),
        PartitionIndex(entry.partition.partition),
    )


def _entry(registration: Registration, now_ms: int) -> pb.RegisterEntry:
    partition = registration.partition
    return pb.RegisterEntry(
        transactional_id=registration.transactional_id,
        producer_id=registration.producer_id,
        producer_epoch=registration.producer_epoch,
        mode=_MODES[registration.mode],
        partition=common_pb2.TopicIdPartition(
            topic_id=partition.topic_id, partition=partition.partition
        ),
        topic=registration.topic,
        timeout_ms=max(registration.deadline_ms - now_ms, 0),
    )


def _response(result: pb.RegisterResult | None) -> RegistrationResponse:
    if result is None:
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    outcome = None
    if result.HasField("last_outcome"):
        identity = result.last_outcome.identity
        outcome = TransactionOutcome(
            ProducerId(identity.producer_id),
            ProducerEpoch(identity.producer_epoch),
            result.last_outcome.is_commit,
        )
    return RegistrationResponse(
        ErrorCode.received(result.error_code),
        PartitionIndex(result.coordinator_partition),
        LeaderEpoch(result.coordinator_epoch),
        outcome,
    )


def _refused(code: ErrorCode) -> RegistrationResponse:
    return RegistrationResponse(code, _NO_PARTITION, NO_LEADER_EPOCH, None)

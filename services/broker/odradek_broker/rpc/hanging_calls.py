"""RPCs for operators about transactions: active producers, hanging transactions, and transactions that were damaged.

Each broker responds for the partitions that it leads, and the broker that the client called merges the responses.
"""

from __future__ import annotations

from odradek_broker.replication.hanging_transactions import HangingReport, HangingTransactions
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.transaction_incidents import TransactionIncidents
from odradek_broker.rpc.callers import Caller
from odradek_protocol.access import Operation
from odradek_protocol.identity import PartitionIndex, ProducerId, TopicIdPartition, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb

PRODUCERS_MAX = 100_000
"""The maximum number of producers in a response. If a topic has more producers, the client must describe the topic's
partitions in several calls.
"""


class HangingCalls:
    """Serves the RPCs about producers and hanging transactions, for the partitions that this broker leads."""

    def __init__(
        self,
        *,
        partitions: LocalPartitions,
        hanging: HangingTransactions,
        incidents: TransactionIncidents,
    ) -> None:
        self._partitions = partitions
        self._hanging = hanging
        self._incidents = incidents

    def producers(self, request: pb.DescribeProducersRequest) -> pb.DescribeProducersResponse:
        """Return the producers of a topic, in the partitions that this broker leads."""
        topic = self._partitions.image.topic(request.topic)
        if topic is None:
            return pb.DescribeProducersResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        indexes = set(request.partitions)
        response = pb.DescribeProducersResponse()
        for index in range(len(topic.partitions)):
            if indexes and index not in indexes:
                continue
            partition = self._partitions.find(topic.topic_id, PartitionIndex(index))
            producers = partition if isinstance(partition, ErrorCode) else partition.producers()
            if isinstance(producers, ErrorCode):
                continue
            if len(response.producers) + len(producers) > PRODUCERS_MAX:
                return pb.DescribeProducersResponse(error_code=ErrorCode.INVALID_REQUEST)
            for producer_id, entry in sorted(producers.items()):
                response.producers.add(
                    partition=index,
                    identity=pb.ProducerIdentity(
                        producer_id=producer_id, producer_epoch=entry.epoch
                    ),
                    last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
                    last_timestamp_ms=entry.last_timestamp_ms,
                    coordinator_epoch=entry.coordinator_epoch,
                    transaction_start_offset=entry.transaction_first_offset,
                )
        return response

    async def find(self, request: pb.FindHangingRequest) -> pb.FindHangingResponse:
        """Return the transactions that have been open for too long in this broker's partitions, and the recent
        incidents (damaged transactions) that this broker detected.
        """
        topic = TopicName(request.topic) if request.topic else None
        reports = await self._hanging.find(topic, older_than_ms=request.older_than_ms or None)
        response = pb.FindHangingResponse(transactions=map(_old_transaction, reports))
        for incident in self._incidents.recent:
            if topic is None or incident.topic == topic:
                response.incidents.add(
                    kind=incident.kind,
                    topic=incident.topic,
                    partition=incident.partition,
                    identity=pb.ProducerIdentity(
                        producer_id=incident.producer_id, producer_epoch=incident.producer_epoch
                    ),
                    first_offset=incident.first_offset,
                    is_commit=incident.is_commit,
                    found_ms=incident.wall_ms,
                )
        return response

    async def abort(self, request: pb.AbortHangingRequest) -> pb.AbortHangingResponse:
        """End a hanging transaction, if this broker leads its partition."""
        topic = self._partitions.image.topic(request.topic)
        if topic is None or not 0 <= request.partition < len(topic.partitions):
            return pb.AbortHangingResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        code = await self._hanging.end(
            TopicIdPartition(topic.topic_id, PartitionIndex(request.partition)),
            ProducerId(request.producer_id),
        )
        return pb.AbortHangingResponse(error_code=code)


def visible(response: pb.FindHangingResponse, caller: Caller | None) -> pb.FindHangingResponse:
    """Return the response without topics that the caller may not describe. If `caller` is None, nothing is removed."""
    if caller is None:
        return response
    return pb.FindHangingResponse(
        error_code=response.error_code,
        transactions=[
            transaction
            for transaction in response.transactions
            if caller.may(Operation.DESCRIBE, transaction.topic)
        ],
        incidents=[
            incident
            for incident in response.incidents
            if caller.may(Operation.DESCRIBE, incident.topic)
        ],
    )


def _old_transaction(report: HangingReport) -> pb.OldTransaction:
    outcome = report.outcome
    if isinstance(outcome, ErrorCode):
        is_live = outcome is ErrorCode.INVALID_TXN_STATE
        state = pb.HANGING_STATE_LIVE if is_live else pb.HANGING_STATE_UNPROVEN
    else:
        state = pb.HANGING_STATE_COMMITTED if outcome else pb.HANGING_STATE_ABORTED
    return pb.OldTransaction(
        topic=report.topic,
        partition=report.partition,
        identity=pb.ProducerIdentity(
            producer_id=report.producer_id, producer_epoch=report.producer_epoch
        ),
        first_offset=report.first_offset,
        open_for_ms=report.open_for_ms,
        state=state,
    )

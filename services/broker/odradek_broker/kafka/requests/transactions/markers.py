"""WriteTxnMarkers: lets an operator's tool (kafka-transactions.sh) end a transaction whose marker was lost.

Coordinators send markers over gRPC streams, not by this request. Therefore the request accepts only ABORT, and every
coordinator is asked about the transaction first. If a coordinator will still end the transaction, the response is
INVALID_TXN_STATE. If a coordinator has decided to commit the transaction, a commit marker is written although the
request said ABORT.
"""

from __future__ import annotations

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_broker.kafka.requests.transactions import has_transactions
from odradek_protocol.access import Operation
from odradek_protocol.identity import PartitionIndex, ProducerId, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

_Marker = WriteTxnMarkersResponse.WritableTxnMarkerResult
_Topic = _Marker.WritableTxnMarkerTopicResult
_Partition = _Topic.WritableTxnMarkerPartitionResult


@handles(WriteTxnMarkersRequest, while_=has_transactions)
async def write_txn_markers(request: Request[WriteTxnMarkersRequest]) -> WriteTxnMarkersResponse:
    """End hanging transactions. Each partition has its own result."""
    refused = ErrorCode.NONE
    if not request.sees_cluster(Operation.CLUSTER_ACTION) and not request.allows_cluster(
        Operation.ALTER
    ):
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return WriteTxnMarkersResponse(
        markers=[
            _Marker(
                producer_id=marker.producer_id,
                topics=[
                    _Topic(
                        name=topic.name,
                        partitions=[
                            _Partition(
                                partition_index=index,
                                error_code=refused
                                or (
                                    ErrorCode.INVALID_REQUEST
                                    if marker.transaction_result
                                    else await _end(request, topic.name, index, marker.producer_id)
                                ),
                            )
                            async for index in request.in_turns(topic.partition_indexes)
                        ],
                    )
                    async for topic in request.in_turns(marker.topics)
                ],
            )
            async for marker in request.in_turns(request.message.markers)
        ]
    )


async def _end(request: AnyRequest, topic: str, index: int, producer_id: int) -> ErrorCode:
    state = request.services.image.topic(topic)
    if state is None or not 0 <= index < len(state.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    hanging = request.services.hanging
    assert hanging is not None, "a broker with transactions has a HangingTransactions service"
    partition = TopicIdPartition(state.topic_id, PartitionIndex(index))
    return await hanging.end(partition, ProducerId(producer_id))

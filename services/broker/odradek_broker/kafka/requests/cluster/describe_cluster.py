"""DescribeCluster: its id and its brokers; the controllers are no concern of clients."""

from __future__ import annotations

from typing import Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.kafka.requests.cluster.brokers import node_of
from odradek_protocol.access import CLUSTER_NAME, Operation, ResourceType
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeClusterResponse, Message

_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_Broker: Final = DescribeClusterResponse.DescribeClusterBroker


@handles(ApiKey.DESCRIBE_CLUSTER)
def describe_cluster(request: Request) -> Message:
    """Live brokers; fenced ones too, to who asks for them."""
    message = request.message
    if message.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if message.endpoint_type == _CONTROLLERS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker",
            cluster_id="",
            brokers=[],
        )
    brokers = []
    for _, broker in sorted(request.services.image.brokers.items()):
        node = node_of(broker, request.session.listener)
        if node is None or (broker.fenced and not message.include_fenced_brokers):
            continue
        brokers.append(
            _Broker(
                broker_id=node.broker_id,
                host=node.host,
                port=node.port,
                rack=node.rack,
                is_fenced=broker.fenced,
            )
        )
    response = DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        endpoint_type=_BROKERS,
        cluster_id=request.services.cluster_id,
        controller_id=request.services.broker_id,  # every broker passes admin requests on
        brokers=brokers,
    )
    if message.include_cluster_authorized_operations and request.sees_cluster(Operation.DESCRIBE):
        response.authorized_operations = request.operations(ResourceType.CLUSTER, CLUSTER_NAME)
    return response

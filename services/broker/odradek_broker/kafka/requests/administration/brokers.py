"""DescribeCluster and UnregisterBroker, and the brokers' addresses on the listener that a client uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from odradek_broker.kafka.forwarding import ControllerUnavailable, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_protocol.access import CLUSTER_NAME, Operation, ResourceType
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.leader_hints import CurrentLeader, NodeEndpoint
from odradek_protocol.kafka.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from odradek_protocol.metadata.image import BrokerState
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_Broker = DescribeClusterResponse.DescribeClusterBroker


@handles(DescribeClusterRequest)
def describe_cluster(request: Request[DescribeClusterRequest]) -> DescribeClusterResponse:
    """Describe the cluster and its live brokers and, on request, its fenced brokers."""
    message = request.message
    if message.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if message.endpoint_type == _CONTROLLERS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker, not a controller: use --bootstrap-server, not --bootstrap-controller",
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
        # Any broker can be named as the controller, because every broker forwards admin requests to the controller.
        controller_id=request.services.broker_id,
        brokers=brokers,
    )
    if message.include_cluster_authorized_operations:
        # A caller that may not describe the cluster gets an empty set, as in Kafka.
        sees = request.sees_cluster(Operation.DESCRIBE)
        response.authorized_operations = (
            request.operations(ResourceType.CLUSTER, CLUSTER_NAME) if sees else set()
        )
    return response


def _refuse_unregistration(_request: AnyRequest, code: ErrorCode) -> UnregisterBrokerResponse:
    return _unregistered(code)


@handles(UnregisterBrokerRequest, refuse=_refuse_unregistration)
async def unregister_broker(request: Request[UnregisterBrokerRequest]) -> UnregisterBrokerResponse:
    """Remove the registration of a broker that will not start again (KIP-631)."""
    command = pb.UnregisterBrokerRequest(broker_id=request.message.broker_id)
    try:
        response = await change(request, "UnregisterBroker", command, pb.UnregisterBrokerResponse)
    except ControllerUnavailable as unavailable:
        return _unregistered(unavailable.code, str(unavailable))
    return _unregistered(response.error_code, response.error_message)


def _unregistered(code: int, text: str = "") -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=code, error_message=text or None)


def node_of(broker: BrokerState, listener: str) -> NodeEndpoint | None:
    """Return the broker's endpoint on a listener, or None if it has no such listener."""
    endpoint = broker.endpoint(listener)
    if endpoint is None:
        return None
    return NodeEndpoint(broker.broker_id, endpoint.host, endpoint.port, broker.rack)


def live_nodes(request: AnyRequest) -> list[NodeEndpoint]:
    """Return the endpoints of all live brokers on the listener that the client uses, ordered by id."""
    listener = request.session.listener
    image = request.services.image
    return [
        node
        for _, broker in sorted(image.brokers.items())
        if not broker.fenced and (node := node_of(broker, listener)) is not None
    ]


def endpoints_of(
    request: AnyRequest, leaders: Iterable[CurrentLeader | None]
) -> tuple[NodeEndpoint, ...]:
    """Return the endpoint of each broker among `leaders`, without duplicates, for the response (KIP-951)."""
    brokers = request.services.image.brokers
    ids = sorted({leader.broker_id for leader in leaders if leader and leader.broker_id >= 0})
    return tuple(
        node
        for broker_id in ids
        if (broker := brokers.get(BrokerId(broker_id))) is not None
        and (node := node_of(broker, request.session.listener)) is not None
    )

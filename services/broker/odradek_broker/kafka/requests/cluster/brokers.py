"""Where the brokers are, as a client that came by one listener is to dial them."""

from __future__ import annotations

from collections.abc import Iterable

from odradek_broker.kafka.request import Request
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.leader_hints import CurrentLeader, NodeEndpoint
from odradek_protocol.metadata.image import BrokerState


def node_of(broker: BrokerState, listener: str) -> NodeEndpoint | None:
    """Its endpoint of that listener; None if it has no such listener."""
    endpoint = broker.endpoint(listener)
    if endpoint is None:
        return None
    return NodeEndpoint(broker.broker_id, endpoint.host, endpoint.port, broker.rack)


def live_nodes(request: Request) -> list[NodeEndpoint]:
    """All brokers that a client may be sent to, by id."""
    listener = request.session.listener
    image = request.services.image
    return [
        node
        for _, broker in sorted(image.brokers.items())
        if not broker.fenced and (node := node_of(broker, listener)) is not None
    ]


def endpoints_of(
    request: Request, leaders: Iterable[CurrentLeader | None]
) -> tuple[NodeEndpoint, ...]:
    """Where the leaders are that an answer names, each once."""
    brokers = request.services.image.brokers
    ids = sorted({one.broker_id for one in leaders if one is not None and one.broker_id >= 0})
    return tuple(
        node
        for broker_id in ids
        if (broker := brokers.get(BrokerId(broker_id))) is not None
        and (node := node_of(broker, request.session.listener)) is not None
    )

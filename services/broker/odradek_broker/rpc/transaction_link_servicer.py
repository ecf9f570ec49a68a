"""TransactionLinkService on gRPC: both ends of the streams between partition leaders and transaction coordinators."""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

from odradek_broker.coordination.link_sessions import LinkSessions
from odradek_broker.coordination.peer_streams import DialLink, LinkKind
from odradek_broker.coordination.producer_resolver import CallResolve, respond_to_resolve
from odradek_broker.coordination.transaction_coordinator import TransactionCoordinator
from odradek_broker.replication.streams.follower_sessions import StreamRefused
from odradek_broker.replication.streams.follower_stream import StreamBroken
from odradek_broker.rpc.broker_streams import REFUSAL_STATUS, OpenedStream, ServedStream
from odradek_broker.rpc.callers import MethodHandler, ServerContext
from odradek_broker.rpc.intake import call_errors
from odradek_protocol.identity import (
    BrokerId,
    ClusterId,
)
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from odradek_protocol.rpc.v1 import transaction_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import InternalChannels
from odradek_runtime.tls import TlsFiles

_SERVICE: Final = "odradek.v1.TransactionLinkService"


class TransactionLinkServicer:
    """Serves the streams of other brokers to this broker's coordinators. LinkSessions decodes the messages."""

    def __init__(
        self,
        *,
        cluster_id: ClusterId,
        coordinator: TransactionCoordinator,
        registrations: LinkSessions[pb.RegisterEntry, pb.RegisterResult],
        markers: LinkSessions[pb.MarkEntry, pb.MarkResult],
        is_mutual_tls: bool,
    ) -> None:
        self._cluster_id = cluster_id
        self._coordinator = coordinator
        self._registrations = registrations
        self._markers = markers
        self._is_mutual_tls = is_mutual_tls

    async def RegisterPartitions(self, _requests: object, context: ServerContext) -> None:
        """Serve the registrations of one broker's partition leaders until either side ends the stream."""
        await self._serve(self._registrations, context)

    async def WriteMarkers(self, _requests: object, context: ServerContext) -> None:
        """Write the markers that one broker's transaction coordinators send, until either side ends the stream."""
        await self._serve(self._markers, context)

    # Any, because there are sessions of two kinds.
    async def _serve(self, sessions: LinkSessions[Any, Any], context: ServerContext) -> None:
        try:
            with call_errors():
                stream = ServedStream(context, bytes, is_mutual_tls=self._is_mutual_tls)
                await sessions.serve(stream)
        except StreamRefused as refused:
            await context.abort(REFUSAL_STATUS[refused.refusal], str(refused))

    async def ResolveProducers(
        self, request: pb.ResolveProducersRequest, context: ServerContext
    ) -> pb.ResolveProducersResponse:
        """Return what this broker's coordinators know about open transactions."""
        if request.cluster_id != self._cluster_id:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"this is a broker of cluster {self._cluster_id}, not of {request.cluster_id}",
            )
        return await respond_to_resolve(self._coordinator, request)


def add_to(server: grpc.aio.Server, servicer: TransactionLinkServicer) -> str:
    """Register the servicer, and return the service's full name."""
    streams: dict[str, MethodHandler] = {
        # There are no serializers, because the sessions read and write encoded messages.
        LinkKind.REGISTER.value: grpc.stream_stream_rpc_method_handler(servicer.RegisterPartitions),
        LinkKind.MARK.value: grpc.stream_stream_rpc_method_handler(servicer.WriteMarkers),
        "ResolveProducers": grpc.unary_unary_rpc_method_handler(
            servicer.ResolveProducers,
            request_deserializer=pb.ResolveProducersRequest.FromString,
            response_serializer=pb.ResolveProducersResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, streams),))
    return _SERVICE


def grpc_dial_link(tls: TlsFiles | None) -> DialLink:
    """Return the function that opens links to other brokers over gRPC."""
    return lambda kind, peer, host, port: OpenedStream(
        peer, host, port, method=f"/{_SERVICE}/{kind.value}", tls=tls
    )


def grpc_resolve(channels: InternalChannels) -> CallResolve:
    """Return the function that calls ResolveProducers at other brokers over gRPC."""

    async def call(
        broker_id: BrokerId, host: str, port: int, request: pb.ResolveProducersRequest
    ) -> pb.ResolveProducersResponse:
        stub: pb_grpc.TransactionLinkServiceAsyncStub = pb_grpc.TransactionLinkServiceStub(
            channels.channel(f"broker-{broker_id}", host, port)
        )
        try:
            return await stub.ResolveProducers(request)
        except grpc.aio.AioRpcError as error:
            raise StreamBroken(repr(error)) from error

    return call

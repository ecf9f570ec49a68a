"""TransactionLinkService over gRPC: the server and the client side of the streams between partition leaders and
transaction coordinators.
"""

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
    """The servicer of TransactionLinkService. It passes encoded messages to LinkSessions, which decodes them."""

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
        """Serve registrations from the partition leaders of one broker, until either side ends the stream."""
        await self._serve(self._registrations, context)

    async def WriteMarkers(self, _requests: object, context: ServerContext) -> None:
        """Write markers from the transaction coordinator of one broker, until either side ends the stream."""
        await self._serve(self._markers, context)

    # Any, because the sessions of the two kinds of streams have different types of entries.
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
        """Return whether this broker's coordinator will end, or has ended, the given transactions."""
        if request.cluster_id != self._cluster_id:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"this broker belongs to cluster {self._cluster_id}, and the caller to {request.cluster_id}",
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
    """Return a function that opens a stream of TransactionLinkService to another broker over gRPC."""
    return lambda kind, peer, host, port: OpenedStream(
        peer, host, port, method=f"/{_SERVICE}/{kind.value}", tls=tls
    )


def grpc_resolve(channels: InternalChannels) -> CallResolve:
    """Return a function that calls ResolveProducers of another broker over gRPC."""

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

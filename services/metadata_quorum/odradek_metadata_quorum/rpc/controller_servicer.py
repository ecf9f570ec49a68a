"""The gRPC controller service for brokers and other controllers: registration, heartbeats, ISR proposals, metadata
feed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol, TypeVar

import grpc
import grpc.aio

from odradek_metadata_quorum.controller import (
    features,
    leaders,
    partitions,
    producer_ids,
    registration,
)
from odradek_metadata_quorum.controller.requests import BatchTooLarge
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_metadata_quorum.rpc import wire
from odradek_metadata_quorum.rpc.controller_host import (
    ControllerHost,
    NotActive,
    Overloaded,
    Unconfirmed,
)
from odradek_metadata_quorum.rpc.metadata_feed import FeedMismatch, FeedSource, feed
from odradek_metadata_quorum.rpc.peers import Context, Peers, refuse
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_protocol.rpc.v1 import controller_service_pb2_grpc as pb_grpc
from odradek_runtime.logs import event_log

Q = TypeVar("Q")
T = TypeVar("T")
PARTITIONS_MAX: Final = 10_000
LOG_ENDS_PER_PIECE: Final = 500
_NOT_PRESENT_PROCESS: Final = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)
_log = event_log(__name__)


class QuorumMember(FeedSource, Protocol):
    """The part of the quorum that the service uses."""

    @property
    def leader_id(self) -> int | None:
        """The id of the quorum's leader, as far as this member knows."""


class ControllerServicer(pb_grpc.ControllerServiceServicer):
    """The controller service of one member of the quorum."""

    def __init__(
        self,
        host: ControllerHost,
        quorum: QuorumMember,
        peers: Peers,
        describe_quorum: Callable[[], pb.DescribeQuorumResponse],
    ) -> None:
        self._host = host
        self._quorum = quorum
        self._peers = peers
        self._describe_quorum = describe_quorum

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterResponse:
        """Register a broker. Respond once the registration is committed."""
        await self._peers.require_registering_broker(context, request.broker_id)
        response, error = await self._decide(registration.register, wire.register_request(request))
        if response is None:
            return pb.RegisterResponse(
                error_code=error, broker_epoch=-1, active_controller_id=self._active_id()
            )
        return wire.register_response(response, self._active_id())

    async def RegisterController(
        self, request: pb.RegisterControllerRequest, context: Context
    ) -> pb.RegisterControllerResponse:
        """Register a voter. Respond once the registration is committed or, if no record is needed, stored in memory."""
        await self._peers.require_controller(context, request.controller_id)
        response, error = await self._decide(
            features.register_controller, wire.register_controller_request(request)
        )
        if response is None:
            return pb.RegisterControllerResponse(error_code=error)
        return pb.RegisterControllerResponse(
            error_code=response.error, error_message=response.message
        )

    async def Heartbeat(  # type: ignore[override]  # a coroutine that writes, not a generator
        self, request_iterator: AsyncIterator[pb.HeartbeatRequest], context: Context
    ) -> None:
        """Respond to each heartbeat. When the stream ends, for whatever reason, the broker counts as disconnected.

        This method is not an asynchronous generator, because a cancelled generator is closed only when it is garbage
        collected, and the death of a broker must be noticed at once.
        """
        broker_id: BrokerId | None = None
        try:
            async for message in request_iterator:
                if broker_id is None:
                    await self._peers.require_broker(context, message.broker_id)
                    broker_id = BrokerId(message.broker_id)
                    self._host.stream_opened(broker_id)
                elif message.broker_id != broker_id:
                    await refuse(
                        context,
                        grpc.StatusCode.INVALID_ARGUMENT,
                        f"this heartbeat stream belongs to broker {broker_id}, not to broker {message.broker_id}",
                    )
                response = self._host.heartbeat(wire.heartbeat_request(message))
                await context.write(wire.heartbeat_response(response, self._active_id()))
                if response.error in _NOT_PRESENT_PROCESS:
                    # This stream belongs to an earlier process of the broker. It must not count as an open stream of
                    # the present process.
                    return
        finally:
            if broker_id is not None:
                self._host.stream_ended(broker_id)

    async def AlterPartition(
        self, request: pb.AlterPartitionRequest, context: Context
    ) -> pb.AlterPartitionResponse:
        """Decide ISR proposals. Respond once the changes are committed."""
        await self._peers.require_broker(context, request.broker_id)
        response, error = await self._decide(
            partitions.alter_partitions, wire.alter_partition_request(request)
        )
        if response is None:
            return pb.AlterPartitionResponse(error_code=error)
        return wire.alter_partition_response(response)

    async def MetadataFeed(
        self, request: pb.MetadataFeedRequest, context: Context
    ) -> AsyncIterator[pb.MetadataFeedResponse]:
        """Stream committed metadata until the reader ends the call."""
        await self._peers.require_member(context)
        try:
            async for message in feed(self._quorum, request.from_offset, request.last_epoch):
                yield message
        except FeedMismatch as error:
            await refuse(context, grpc.StatusCode.OUT_OF_RANGE, str(error))

    async def ReportLogEnds(
        self, request: pb.ReportLogEndsRequest, context: Context
    ) -> pb.ReportLogEndsResponse:
        """Record the log end offsets that a broker reports for its replicas."""
        await self._peers.require_broker(context, request.broker_id)
        if len(request.partitions) > PARTITIONS_MAX:
            return pb.ReportLogEndsResponse(error_code=ErrorCode.INVALID_REQUEST)
        pieces = wire.report_log_ends_requests(request, LOG_ENDS_PER_PIECE)
        codes, error = await self._unless_refused(
            self._host.decide_each(leaders.report_log_ends, pieces)
        )
        refused = [decision.response for decision in codes or () if decision.response]
        return pb.ReportLogEndsResponse(error_code=refused[0] if refused else error)

    async def AllocateProducerIds(
        self, request: pb.AllocateProducerIdsRequest, context: Context
    ) -> pb.AllocateProducerIdsResponse:
        """Allocate a block of producer ids. Respond once the allocation is committed."""
        await self._peers.require_broker(context, request.broker_id)
        response, error = await self._decide(
            producer_ids.allocate_producer_ids, wire.allocate_request(request)
        )
        if response is None:
            return pb.AllocateProducerIdsResponse(error_code=error, producer_id_start=-1)
        return wire.allocate_response(response)

    async def DescribeQuorum(
        self, request: pb.DescribeQuorumRequest, context: Context
    ) -> pb.DescribeQuorumResponse:
        """Describe the quorum as this member sees it."""
        await self._peers.require_member(context)
        return self._describe_quorum()

    async def _decide(
        self, handler: Callable[[Workspace, Q], T], request: Q
    ) -> tuple[T | None, ErrorCode]:
        decision, error = await self._unless_refused(self._host.decide(handler, request))
        return None if decision is None else decision.response, error

    async def _unless_refused(self, deciding: Awaitable[T]) -> tuple[T | None, ErrorCode]:
        """Await a decision, and return it with NONE. If the controller cannot decide now, return None with the error
        code for the response.
        """
        try:
            return await deciding, ErrorCode.NONE
        except NotActive:
            return None, ErrorCode.NOT_CONTROLLER
        except (Overloaded, Unconfirmed):
            return None, ErrorCode.REQUEST_TIMED_OUT
        except BatchTooLarge as error:
            _log.error(
                "Refused a request whose metadata records do not fit into one batch",
                reason=str(error),
            )
            return None, ErrorCode.INVALID_REQUEST

    def _active_id(self) -> int:
        leader_id = self._quorum.leader_id
        return -1 if leader_id is None else leader_id

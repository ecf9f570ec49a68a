"""StagedWriteService of a broker (transactions/staged_steps.py). Each call is served by the coordinator of its query,
on this broker or another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

import grpc.aio

from odradek_broker.coordination.placement import Placement
from odradek_broker.coordination.transaction_coordinator import TransactionCoordinator
from odradek_broker.coordinator_step import RequestId, Step, respond
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.rpc.callers import ServerContext
from odradek_broker.rpc.coordinator_routing import CoordinatorRouting, Request, Response
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import (
    AbortStaged,
    CompleteStep,
    ForgetSteps,
    MembersChecked,
    OpenStaged,
    PrepareStaged,
    RenewStaged,
    SlotIdentity,
)
from odradek_broker.transactions.staged_steps import SLOTS_MAX
from odradek_broker.transactions.transaction import NO_TIME, TransactionalId
from odradek_broker.transactions.transaction_shard import TransactionShard
from odradek_protocol.identity import SLOT_SEPARATOR, BrokerId, ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import staged_write_service_pb2 as pb
from odradek_protocol.rpc.v1 import staged_write_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import InternalChannels

NO_STEP: Final = -1
Stub: TypeAlias = "pb_grpc.StagedWriteServiceAsyncStub"


class StagedWriteServicer(pb_grpc.StagedWriteServiceServicer):
    """The servicer of StagedWriteService. Each method routes its request to the broker that coordinates the query."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        coordinator: TransactionCoordinator,
        partitions: LocalPartitions,
        peers: InternalChannels,
    ) -> None:
        self._coordinator = coordinator
        self._partitions = partitions
        placement: Placement = coordinator.placement
        self._routing: CoordinatorRouting[Stub] = CoordinatorRouting(
            broker_id=broker_id,
            placement=placement,
            partitions=partitions,
            peers=peers,
            stub=pb_grpc.StagedWriteServiceStub,
            nameless=ErrorCode.INVALID_REQUEST,
        )

    async def OpenStaged(
        self, request: pb.OpenStagedRequest, context: ServerContext
    ) -> pb.OpenStagedResponse:
        """Assign a slot (a transactional id) to a task of a step. The task writes its records with this id."""
        return await self._at_coordinator(
            "OpenStaged",
            request,
            context,
            here=self._open,
            refuse=lambda code: pb.OpenStagedResponse(error_code=code),
        )

    async def _open(self, request: pb.OpenStagedRequest) -> pb.OpenStagedResponse:
        staged = OpenStaged(
            query=request.query,
            step=request.step,
            member=request.member,
            prepared_timeout_ms=request.prepared_timeout_ms,
        )
        opened = await self._decide(
            request.query,
            lambda shard, i: shard.staged.handle_open(i, staged, **self._clocks()),
        )
        return pb.OpenStagedResponse(
            error_code=opened.error,
            error_message=opened.error_message,
            is_completed=opened.is_completed,
            member=None if opened.slot is None else _wire(opened.slot),
            lease_ms=self._coordinator.settings.staged_lease_ms,
        )

    async def RenewStaged(
        self, request: pb.RenewStagedRequest, context: ServerContext
    ) -> pb.RenewStagedResponse:
        """Extend the leases of members (tasks) of a step, so that their records are not aborted."""
        return await self._at_coordinator(
            "RenewStaged",
            request,
            context,
            here=self._renew,
            refuse=lambda code: pb.RenewStagedResponse(error_code=code),
        )

    async def _renew(self, request: pb.RenewStagedRequest) -> pb.RenewStagedResponse:
        members = _members(request.query, request.members)
        if members is None:
            return pb.RenewStagedResponse(error_code=ErrorCode.INVALID_REQUEST)
        checked = await self._decide(
            request.query,
            lambda shard, i: shard.staged.handle_renew(
                i, RenewStaged(members=members), now_ms=self._coordinator.now_ms()
            ),
        )
        return pb.RenewStagedResponse(member_errors=_errors(checked, members))

    async def PrepareStaged(
        self, request: pb.PrepareStagedRequest, context: ServerContext
    ) -> pb.PrepareStagedResponse:
        """Record that a task has written all of its records, so that the step can be completed."""
        return await self._at_coordinator(
            "PrepareStaged",
            request,
            context,
            here=self._prepare,
            refuse=lambda code: pb.PrepareStagedResponse(error_code=code),
        )

    async def _prepare(self, request: pb.PrepareStagedRequest) -> pb.PrepareStagedResponse:
        members = _members(request.query, [request.member])
        if members is None:
            return pb.PrepareStagedResponse(error_code=ErrorCode.INVALID_REQUEST)
        staged = PrepareStaged(member=members[0])
        prepared = await self._decide(
            request.query,
            lambda shard, i: shard.staged.handle_prepare(i, staged, **self._clocks()),
        )
        return pb.PrepareStagedResponse(error_code=prepared.error)

    async def CompleteStep(
        self, request: pb.CompleteStepRequest, context: ServerContext
    ) -> pb.CompleteStepResponse:
        """Commit the given members of a step (transactions of its tasks). Abort all other members of this step and of
        earlier steps of the query.
        """
        return await self._at_coordinator(
            "CompleteStep",
            request,
            context,
            here=self._complete,
            refuse=lambda code: pb.CompleteStepResponse(error_code=code),
        )

    async def _complete(self, request: pb.CompleteStepRequest) -> pb.CompleteStepResponse:
        members = _members(request.query, request.members)
        if members is None:
            return pb.CompleteStepResponse(error_code=ErrorCode.INVALID_REQUEST)
        staged = CompleteStep(
            query=request.query, step=request.step, members=members, is_final=request.is_final
        )
        completed = await self._decide(
            request.query,
            lambda shard, i: shard.staged.handle_complete(i, staged, **self._clocks()),
        )
        return pb.CompleteStepResponse(
            error_code=completed.error,
            was_completed=completed.is_completed,
            unfit=map(_wire, completed.unfit),
        )

    async def AbortStaged(
        self, request: pb.AbortStagedRequest, context: ServerContext
    ) -> pb.AbortStagedResponse:
        """Abort the given members of a step, but no other members."""
        return await self._at_coordinator(
            "AbortStaged",
            request,
            context,
            here=self._abort,
            refuse=lambda code: pb.AbortStagedResponse(error_code=code),
        )

    async def _abort(self, request: pb.AbortStagedRequest) -> pb.AbortStagedResponse:
        members = _members(request.query, request.members)
        if members is None:
            return pb.AbortStagedResponse(error_code=ErrorCode.INVALID_REQUEST)
        staged = AbortStaged(members=members)
        checked = await self._decide(
            request.query,
            lambda shard, i: shard.staged.handle_abort(i, staged, **self._clocks()),
        )
        return pb.AbortStagedResponse(member_errors=_errors(checked, members))

    async def DescribeSteps(
        self, request: pb.DescribeStepsRequest, context: ServerContext
    ) -> pb.DescribeStepsResponse:
        """Return the last complete step of a query, and the members whose records are neither committed nor aborted."""
        return await self._at_coordinator(
            "DescribeSteps",
            request,
            context,
            here=self._describe,
            refuse=lambda code: pb.DescribeStepsResponse(
                error_code=code, last_step=NO_STEP, completed_ms=NO_TIME
            ),
        )

    async def _describe(self, request: pb.DescribeStepsRequest) -> pb.DescribeStepsResponse:
        query = TransactionalId(request.query)

        def decide(shard: TransactionShard, request_id: RequestId) -> Step[Any]:
            return respond(request_id, (shard.table.get(query), shard.table.slots_of(query)))

        state, slots = await self._decide(request.query, decide)
        response = pb.DescribeStepsResponse(last_step=NO_STEP, completed_ms=NO_TIME)
        if state is not None and state.ledger is not None:
            response.last_step = state.ledger.last_step
            response.member_count = state.ledger.members
            response.is_final = state.ledger.is_final
            response.completed_ms = state.update_ms
        for name, member in slots:
            if member.staged is not None:
                response.open_members.add(
                    member=_wire(SlotIdentity(name, member.next_identity)),
                    step=member.staged.step,
                    name=member.staged.member,
                    is_prepared=member.is_prepared,
                )
        return response

    async def ForgetSteps(
        self, request: pb.ForgetStepsRequest, context: ServerContext
    ) -> pb.ForgetStepsResponse:
        """Delete the ledger of a query, which contains the query's last complete step (micro-batch)."""
        return await self._at_coordinator(
            "ForgetSteps",
            request,
            context,
            here=self._forget,
            refuse=lambda code: pb.ForgetStepsResponse(error_code=code, error_message=code.name),
        )

    async def _forget(self, request: pb.ForgetStepsRequest) -> pb.ForgetStepsResponse:
        forgotten = await self._decide(
            request.query,
            lambda shard, i: shard.staged.handle_forget(i, ForgetSteps(query=request.query)),
        )
        return pb.ForgetStepsResponse(
            error_code=forgotten.error, error_message=forgotten.error_message
        )

    async def _at_coordinator(
        self,
        method: str,
        request: Request,
        context: ServerContext,
        *,
        here: Callable[[Request], Awaitable[Response]],
        refuse: Callable[[ErrorCode], Response],
    ) -> Response:
        if not self._partitions.image.has_transactions:
            return refuse(ErrorCode.UNSUPPORTED_VERSION)
        query: str = getattr(request, "query")  # noqa: B009  (the messages share no type)
        # The transactional id of a slot has the same coordinator as its query. Without this check, a request with such
        # an id would be served as if the slot were a query.
        if SLOT_SEPARATOR in query:
            return refuse(ErrorCode.INVALID_REQUEST)
        return await self._routing.at_coordinator(
            query, method, request, context, here=here, refuse=refuse
        )

    async def _decide(
        self, query: str, decide: Callable[[TransactionShard, RequestId], Step[Any]]
    ) -> Any:  # Any, because each handler has its own type of response
        return await self._coordinator.ask_staged(query, decide)

    def _clocks(self) -> dict[str, int]:
        return {"now_ms": self._coordinator.now_ms(), "wall_ms": self._coordinator.wall_ms()}


def add_to(server: grpc.aio.Server, servicer: StagedWriteServicer) -> str:
    """Register the servicer, and return the service's full name."""
    pb_grpc.add_StagedWriteServiceServicer_to_server(servicer, server)
    return pb.DESCRIPTOR.services_by_name["StagedWriteService"].full_name


def _members(query: str, members: Iterable[pb.StagedMember]) -> tuple[SlotIdentity, ...] | None:
    """Return the members of a request, or None if there are too many or one of them is not a slot of `query`."""
    slots = tuple(
        SlotIdentity(
            TransactionalId(member.transactional_id),
            ProducerIdentity(
                ProducerId(member.identity.producer_id),
                ProducerEpoch(member.identity.producer_epoch),
            ),
        )
        for member in members
    )
    prefix = query + SLOT_SEPARATOR
    if len(slots) > SLOTS_MAX or not all(s.transactional_id.startswith(prefix) for s in slots):
        return None
    return slots


def _wire(slot: SlotIdentity) -> pb.StagedMember:
    member = pb.StagedMember(transactional_id=slot.transactional_id)
    member.identity.producer_id = slot.identity.producer_id
    member.identity.producer_epoch = slot.identity.epoch
    return member


def _errors(checked: MembersChecked, members: Iterable[SlotIdentity]) -> list[int]:
    return [checked.errors[member] for member in members]

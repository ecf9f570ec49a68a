"""TransactionService of a broker. Each call is served by the coordinator of its transactional id, on this broker or
another one.

Clients of this service get a new producer epoch for each transaction (transaction.version 2).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import grpc
import grpc.aio
import re2

from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.coordination.placement import Placement
from odradek_broker.coordination.transaction_coordinator import TransactionCoordinator
from odradek_broker.coordination.transactional_offsets import TransactionalOffsets
from odradek_broker.groups.messages import CommitInTransaction
from odradek_broker.partition.events import RegistrationMode
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.rpc import group_wire
from odradek_broker.rpc.callers import ServerContext, client_caller, in_turns, put_in_turns
from odradek_broker.rpc.coordinator_routing import (
    NAMES_MAX,
    CoordinatorRouting,
    Request,
    Response,
)
from odradek_broker.rpc.hanging_calls import HangingCalls, visible
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import AbortTransaction, EndTransaction, InitProducer
from odradek_broker.transactions.transaction import (
    NO_TIME,
    Transaction,
    TransactionalId,
)
from odradek_broker.transactions.transaction_shard import partition_key
from odradek_protocol.access import Operation
from odradek_protocol.identity import BrokerId, ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from odradek_protocol.rpc.v1 import transaction_service_pb2_grpc as pb_grpc
from odradek_runtime.grpc_endpoints import InternalChannels

PATTERN_BYTES_MAX = 4_096
Stub: TypeAlias = "pb_grpc.TransactionServiceAsyncStub"


class TransactionServicer(pb_grpc.TransactionServiceServicer):
    """The servicer of TransactionService. Each method routes its request to the broker that coordinates the
    transactional id.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        coordinator: TransactionCoordinator,
        offsets: TransactionalOffsets,
        groups: Placement,
        hanging: HangingCalls,
        partitions: LocalPartitions,
        peers: InternalChannels,
    ) -> None:
        """`groups` determines which broker coordinates a group."""
        self._broker_id = broker_id
        self._hanging = hanging
        self._coordinator = coordinator
        self._offsets = offsets
        self._partitions = partitions
        self._routing: CoordinatorRouting[Stub] = CoordinatorRouting(
            broker_id=broker_id,
            placement=coordinator.placement,
            partitions=partitions,
            peers=peers,
            stub=pb_grpc.TransactionServiceStub,
            nameless=ErrorCode.INVALID_REQUEST,
        )
        self._group_routing: CoordinatorRouting[Stub] = CoordinatorRouting(
            broker_id=broker_id,
            placement=groups,
            partitions=partitions,
            peers=peers,
            stub=pb_grpc.TransactionServiceStub,
            nameless=ErrorCode.INVALID_GROUP_ID,
        )

    async def InitProducer(
        self, request: pb.InitProducerRequest, context: ServerContext
    ) -> pb.InitProducerResponse:
        """Return the producer id and epoch for a producer's first transaction."""
        return await self._at_coordinator(
            request.transactional_id,
            "InitProducer",
            request,
            context,
            here=self._init,
            refuse=lambda code: pb.InitProducerResponse(error_code=code),
        )

    async def _init(self, request: pb.InitProducerRequest) -> pb.InitProducerResponse:
        initialized = await self._coordinator.init_producer(
            InitProducer(
                transactional_id=TransactionalId(request.transactional_id),
                timeout_ms=request.transaction_timeout_ms,
                identity=_identity(request.identity) if request.HasField("identity") else None,
                wait_until_ms=self._wait_until_ms(request.wait_ms),
            )
        )
        return pb.InitProducerResponse(
            error_code=initialized.error,
            identity=_wire(initialized.identity),
            coordinator_id=self._broker_id,
        )

    async def EndTransaction(
        self, request: pb.EndTransactionRequest, context: ServerContext
    ) -> pb.EndTransactionResponse:
        """Commit or abort a transaction."""
        return await self._at_coordinator(
            request.transactional_id,
            "EndTransaction",
            request,
            context,
            here=self._end,
            refuse=lambda code: pb.EndTransactionResponse(error_code=code),
        )

    async def _end(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        ended = await self._coordinator.end_transaction(
            EndTransaction(
                transactional_id=TransactionalId(request.transactional_id),
                identity=_identity(request.identity),
                is_commit=request.is_commit,
                is_tv2=True,
                wait_until_ms=self._wait_until_ms(request.wait_ms),
            )
        )
        return pb.EndTransactionResponse(
            error_code=ended.error,
            next_identity=_wire(ended.next_identity),
            coordinator_id=self._broker_id,
        )

    async def CommitTransactionOffsets(
        self, request: pb.CommitTransactionOffsetsRequest, context: ServerContext
    ) -> pb.CommitTransactionOffsetsResponse:
        """Add offsets of a group to a transaction, so that they are committed when the transaction commits. The group's
        coordinator serves this call.
        """

        def refuse(code: ErrorCode) -> pb.CommitTransactionOffsetsResponse:
            return pb.CommitTransactionOffsetsResponse(error_code=code)

        if not self._partitions.image.has_transactions:
            return refuse(ErrorCode.UNSUPPORTED_VERSION)
        return await self._group_routing.at_coordinator(
            request.commit.group_id,
            "CommitTransactionOffsets",
            request,
            context,
            here=self._commit_offsets,
            refuse=refuse,
        )

    async def _commit_offsets(
        self, request: pb.CommitTransactionOffsetsRequest
    ) -> pb.CommitTransactionOffsetsResponse:
        identity = _identity(request.identity)
        committed = await self._offsets.commit(
            CommitInTransaction(
                commit=group_wire.commit(request.commit),
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
            ),
            transactional_id=request.transactional_id,
            mode=RegistrationMode.ADD,
        )
        return pb.CommitTransactionOffsetsResponse(
            error_code=committed.error, offsets=group_wire.results(committed)
        )

    async def AbortTransaction(
        self, request: pb.AbortTransactionRequest, context: ServerContext
    ) -> pb.AbortTransactionResponse:
        """Abort a transaction on request of an operator."""
        return await self._at_coordinator(
            request.transactional_id,
            "AbortTransaction",
            request,
            context,
            here=self._abort,
            refuse=lambda code: pb.AbortTransactionResponse(
                error_code=code, error_message=code.name
            ),
        )

    async def _abort(self, request: pb.AbortTransactionRequest) -> pb.AbortTransactionResponse:
        aborted = await self._coordinator.abort_transaction(
            AbortTransaction(
                transactional_id=TransactionalId(request.transactional_id),
                is_forced=request.is_forced,
            )
        )
        return pb.AbortTransactionResponse(
            error_code=aborted.error, error_message=aborted.error_message
        )

    async def ListTransactions(
        self, request: pb.ListTransactionsRequest, context: ServerContext
    ) -> pb.ListTransactionsResponse:
        """List the transactional ids of the cluster, or only those that this broker coordinates (`local_only`)."""
        try:
            matches = _matcher(request.pattern)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        response = pb.ListTransactionsResponse()
        now_ms = self._coordinator.wall_ms()
        try:
            async for transactional_id, state in in_turns(self._coordinator.listings()):
                if matches(transactional_id) and _is_wanted(state, request, now_ms):
                    response.transactions.add(
                        transactional_id=transactional_id,
                        producer_id=state.producer_id,
                        state=state.status.kafka_name,
                    )
        except CoordinatorError as error:
            response.error_code = error.code
        if not request.local_only:
            local = pb.ListTransactionsRequest()
            local.CopyFrom(request)
            local.local_only = True
            for elsewhere in await self._routing.elsewhere(
                "ListTransactions",
                local,
                refuse=lambda code: pb.ListTransactionsResponse(error_code=code),
            ):
                await put_in_turns(response.transactions, elsewhere.transactions)
                response.error_code = response.error_code or elsewhere.error_code
        return response

    async def DescribeTransactions(
        self, request: pb.DescribeTransactionsRequest, context: ServerContext
    ) -> pb.DescribeTransactionsResponse:
        """Describe transactional ids. Partitions of topics that the caller may not describe are omitted."""
        if len(request.transactional_ids) > NAMES_MAX:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the request has {len(request.transactional_ids)} transactional ids: send at most {NAMES_MAX} in a"
                " request",
            )
        descriptions: list[pb.DescribeTransactionsResponse] = []
        async for transactional_id in in_turns(request.transactional_ids):
            descriptions.append(
                await self._routing.at_coordinator(
                    partition_key(transactional_id),
                    "DescribeTransactions",
                    pb.DescribeTransactionsRequest(transactional_ids=[transactional_id]),
                    context,
                    here=self._describe_one,
                    refuse=partial(_not_described, transactional_id),
                )
            )
        caller = client_caller()
        response = pb.DescribeTransactionsResponse()
        async for described in in_turns(descriptions):
            for transaction in described.transactions:
                visible = [
                    partition
                    for partition in transaction.partitions
                    if caller is None or caller.may(Operation.DESCRIBE, partition.topic)
                ]
                del transaction.partitions[:]
                transaction.partitions.extend(visible)
                response.transactions.append(transaction)
        return response

    async def _describe_one(
        self, request: pb.DescribeTransactionsRequest
    ) -> pb.DescribeTransactionsResponse:
        (transactional_id,) = request.transactional_ids
        state = await self._coordinator.describe(TransactionalId(transactional_id))
        if state is None:
            described = pb.TransactionDescription(
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id
            )
        else:
            described = pb.TransactionDescription(
                transactional_id=transactional_id,
                state=state.status.kafka_name,
                identity=_wire(ProducerIdentity(state.producer_id, state.producer_epoch)),
                timeout_ms=state.timeout_ms,
                started_ms=state.start_ms,
                partitions=[
                    pb.TransactionTopicPartition(
                        topic=partition.topic, partition=partition.partition
                    )
                    for partition in sorted(
                        state.partitions, key=lambda part: (part.topic, part.partition)
                    )
                ],
            )
        return pb.DescribeTransactionsResponse(transactions=[described])

    async def DescribeProducers(
        self, request: pb.DescribeProducersRequest, context: ServerContext
    ) -> pb.DescribeProducersResponse:
        """Return the producers of a topic's partitions. Each broker responds for the partitions that it leads."""
        response = self._hanging.producers(request)
        if not request.local_only and not response.error_code:
            local = pb.DescribeProducersRequest()
            local.CopyFrom(request)
            local.local_only = True
            for elsewhere in await self._routing.elsewhere(
                "DescribeProducers",
                local,
                refuse=lambda code: pb.DescribeProducersResponse(error_code=code),
            ):
                # A broker whose image does not contain a new topic leads none of its partitions.
                if elsewhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                response.producers.extend(elsewhere.producers)
                response.error_code = response.error_code or elsewhere.error_code
        return response

    async def FindHanging(
        self, request: pb.FindHangingRequest, context: ServerContext
    ) -> pb.FindHangingResponse:
        """Find hanging transactions in the partitions of all brokers, or only of this broker (`local_only`)."""
        if not self._partitions.image.has_transactions:
            return pb.FindHangingResponse()
        response = await self._hanging.find(request)
        if not request.local_only:
            local = pb.FindHangingRequest()
            local.CopyFrom(request)
            local.local_only = True
            for elsewhere in await self._routing.elsewhere(
                "FindHanging",
                local,
                refuse=lambda code: pb.FindHangingResponse(error_code=code),
            ):
                response.transactions.extend(elsewhere.transactions)
                response.incidents.extend(elsewhere.incidents)
                response.error_code = response.error_code or elsewhere.error_code
        return visible(response, client_caller())

    async def AbortHanging(
        self, request: pb.AbortHangingRequest, context: ServerContext
    ) -> pb.AbortHangingResponse:
        """End a hanging transaction. The leader of its partition serves this call."""
        response = await self._hanging.abort(request)
        if request.local_only or response.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return response
        local = pb.AbortHangingRequest()
        local.CopyFrom(request)
        local.local_only = True
        for elsewhere in await self._routing.elsewhere(
            "AbortHanging", local, refuse=lambda code: pb.AbortHangingResponse(error_code=code)
        ):
            if elsewhere.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                response = elsewhere
        return response

    async def _at_coordinator(
        self,
        transactional_id: str,
        method: str,
        request: Request,
        context: ServerContext,
        *,
        here: Callable[[Request], Awaitable[Response]],
        refuse: Callable[[ErrorCode], Response],
    ) -> Response:
        if not self._partitions.image.has_transactions:
            return refuse(ErrorCode.UNSUPPORTED_VERSION)
        return await self._routing.at_coordinator(
            partition_key(transactional_id),
            method,
            request,
            context,
            here=here,
            refuse=refuse,
        )

    def _wait_until_ms(self, wait_ms: int) -> int | None:
        return self._coordinator.now_ms() + wait_ms if wait_ms > 0 else None


def add_to(server: grpc.aio.Server, servicer: TransactionServicer) -> str:
    """Register the servicer, and return the service's full name."""
    pb_grpc.add_TransactionServiceServicer_to_server(servicer, server)
    return pb.DESCRIPTOR.services_by_name["TransactionService"].full_name


def _identity(identity: pb.ProducerIdentity) -> ProducerIdentity:
    return ProducerIdentity(
        ProducerId(identity.producer_id), ProducerEpoch(identity.producer_epoch)
    )


def _wire(identity: ProducerIdentity | None) -> pb.ProducerIdentity | None:
    if identity is None:
        return None
    return pb.ProducerIdentity(producer_id=identity.producer_id, producer_epoch=identity.epoch)


def _matcher(pattern: str) -> Callable[[str], bool]:
    if not pattern:
        return lambda _: True
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise ValueError(f"the pattern is longer than {PATTERN_BYTES_MAX} bytes")
    try:
        compiled = re2.compile(pattern)
    except re2.error as error:
        raise ValueError(f"the pattern {pattern!r} is not valid RE2: {error}") from None
    return lambda name: compiled.fullmatch(name) is not None


def _is_wanted(state: Transaction, request: pb.ListTransactionsRequest, now_ms: int) -> bool:
    if request.states and state.status.kafka_name not in request.states:
        return False
    if request.older_than_ms <= 0:
        return True
    return state.start_ms != NO_TIME and now_ms - state.start_ms > request.older_than_ms


def _not_described(transactional_id: str, code: ErrorCode) -> pb.DescribeTransactionsResponse:
    return pb.DescribeTransactionsResponse(
        transactions=[pb.TransactionDescription(error_code=code, transactional_id=transactional_id)]
    )

"""The transaction coordinator of the in-memory cluster: producer ids and epochs, open transactions, markers, offsets of
groups.

A decision takes effect immediately, with all its markers. The producer gets a new epoch at each end of a transaction
(transaction.version 2), so that repeated requests are recognized and late ones are refused.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from odradek.partitions import TopicPartition
from odradek.testing.memory_groups import MemoryGroups
from odradek.testing.memory_log import MemoryTopic
from odradek_protocol.identity import SLOT_SEPARATOR
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import read_header
from odradek_protocol.records.errors import CorruptBatch
from odradek_protocol.rpc.v1 import group_service_pb2
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb

EPOCH_MAX = 32_766
_NONE, _FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED


@dataclass(slots=True)
class MemoryTask:
    """One attempt of a task of a staged write. It writes in a slot."""

    step: int
    name: str
    is_prepared: bool = False


@dataclass(slots=True)
class MemoryTransaction:
    """The state of one transactional id."""

    producer_id: int
    epoch: int = 0
    timeout_ms: int = 60_000
    state: str = "Empty"
    partitions: set[TopicPartition] = field(default_factory=set)
    offsets: list[group_service_pb2.CommitOffsetsRequest] = field(default_factory=list)
    last_identity: tuple[int, int] | None = None
    """The producer id and epoch before the last end of a transaction, for recognizing a repeated request."""
    was_timed_out: bool = False
    task: MemoryTask | None = None
    """The task of a staged write that uses this transactional id, until its step is decided; None: no such task."""

    @property
    def is_open(self) -> bool:
        return self.state == "Ongoing"

    @property
    def identity(self) -> pb.ProducerIdentity:
        return pb.ProducerIdentity(producer_id=self.producer_id, producer_epoch=self.epoch)


class MemoryTransactions:
    """All transactional ids of the cluster."""

    def __init__(
        self,
        topics: dict[str, MemoryTopic],
        groups: MemoryGroups,
        *,
        new_producer_id: Callable[[], int],
        wake: Callable[[], None],
        live_brokers: Set[int],
    ) -> None:
        self.faults: defaultdict[str, deque[ErrorCode]] = defaultdict(deque)
        """Error codes for the next calls, by method name."""
        self.responses_to_lose: defaultdict[str, int] = defaultdict(int)
        """How many of the next calls get no response although they are executed, by method name."""
        self._topics = topics
        self._groups = groups
        self._new_producer_id = new_producer_id
        self._wake = wake
        self._live_brokers = live_brokers
        self.ids: dict[str, MemoryTransaction] = {}

    def take_fault(self, method: str) -> ErrorCode:
        """Remove and return the planned error code for the next call of a method; NONE if no fault is planned."""
        faults = self.faults[method]
        return faults.popleft() if faults else _NONE

    def loses_response(self, method: str) -> bool:
        """Return whether the response of this executed call must be lost. Each lost response uses up one of the planned
        losses.
        """
        if not self.responses_to_lose[method]:
            return False
        self.responses_to_lose[method] -= 1
        return True

    def init(self, request: pb.InitProducerRequest) -> pb.InitProducerResponse:
        """Give a producer an id and an epoch, which fence all earlier producers with the same transactional id."""
        code = self.take_fault("InitProducer")
        if SLOT_SEPARATOR in request.transactional_id:
            code = ErrorCode.INVALID_REQUEST
        if code is not _NONE:
            return pb.InitProducerResponse(error_code=code)
        transaction = self.ids.get(request.transactional_id)
        if transaction is None:
            transaction = MemoryTransaction(self._new_producer_id())
            self.ids[request.transactional_id] = transaction
        elif request.HasField("identity"):
            present = identity_key(request.identity)
            if present == transaction.last_identity and not transaction.is_open:
                return self._initialized(transaction)
            if present != (transaction.producer_id, transaction.epoch):
                return pb.InitProducerResponse(error_code=_FENCED)
            if transaction.is_open:
                self.finish(transaction, is_commit=False)
            else:
                self.bump(transaction)
        else:
            if transaction.is_open:
                self.finish(transaction, is_commit=False)
            self.bump(transaction)
            transaction.last_identity = None
        transaction.timeout_ms = request.transaction_timeout_ms
        transaction.state = "Empty"
        return self._initialized(transaction)

    def _initialized(self, transaction: MemoryTransaction) -> pb.InitProducerResponse:
        return pb.InitProducerResponse(
            identity=transaction.identity, coordinator_id=self._coordinator_id
        )

    @property
    def _coordinator_id(self) -> int:
        return min(self._live_brokers, default=-1)

    def end(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        """Commit or abort the transaction in the request."""
        code = self.take_fault("EndTransaction")
        if code is _NONE:
            code = self._decide(request)
            if self.loses_response("EndTransaction"):
                code = ErrorCode.NETWORK_EXCEPTION
        if code is not _NONE:
            return pb.EndTransactionResponse(error_code=code)
        identity = self.ids[request.transactional_id].identity
        return pb.EndTransactionResponse(
            next_identity=identity, coordinator_id=self._coordinator_id
        )

    def _decide(self, request: pb.EndTransactionRequest) -> ErrorCode:
        transaction, present = (
            self.ids.get(request.transactional_id),
            identity_key(request.identity),
        )
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if present == (transaction.producer_id, transaction.epoch):
            if transaction.task is not None:
                # The transaction of a task ends with its step, and not by EndTransaction.
                return ErrorCode.INVALID_TXN_STATE
            if not request.is_commit:
                self.drop(transaction)
                return _NONE
            if not transaction.is_open:
                return ErrorCode.INVALID_TXN_STATE
            self.finish(transaction, is_commit=True)
            return _NONE
        if present != transaction.last_identity or transaction.state not in (
            "CompleteCommit",
            "CompleteAbort",
        ):
            return _FENCED
        if (transaction.state == "CompleteCommit") is request.is_commit:
            return _NONE
        return (
            ErrorCode.TRANSACTION_ABORTABLE
            if transaction.was_timed_out
            else ErrorCode.INVALID_TXN_STATE
        )

    def commit_offsets(
        self, request: pb.CommitTransactionOffsetsRequest, now_s: float
    ) -> pb.CommitTransactionOffsetsResponse:
        """Store offsets that are committed for the group when the transaction commits."""
        code = self.take_fault("CommitTransactionOffsets")
        if code is _NONE:
            code = self._join(request.transactional_id, identity_key(request.identity))
        if code is _NONE:
            code = self._groups.commit_error(request.commit, now_s)
        if code is not _NONE:
            return pb.CommitTransactionOffsetsResponse(error_code=code)
        self.ids[request.transactional_id].offsets.append(request.commit)
        response = pb.CommitTransactionOffsetsResponse()
        for item in request.commit.offsets:
            response.offsets.add(partition=item.partition)
        return response

    def admit(self, transactional_id: str, name: TopicPartition, records: bytes) -> ErrorCode:
        """Add the partition of a transactional batch to the transaction. The batch is refused unless it has the current
        producer id and epoch of the transactional id.
        """
        try:
            header = read_header(records)
        except CorruptBatch:
            return _NONE  # The log refuses the batch.
        if not header.is_transactional:
            return _NONE
        code = self._join(transactional_id, (header.producer_id, header.producer_epoch))
        if code is _NONE:
            self.ids[transactional_id].partitions.add(name)
        return ErrorCode.INVALID_PRODUCER_EPOCH if code is _FENCED else code

    def _join(self, transactional_id: str, present: tuple[int, int]) -> ErrorCode:
        transaction = self.ids.get(transactional_id)
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if present != (transaction.producer_id, transaction.epoch):
            is_aborted = present == transaction.last_identity and transaction.was_timed_out
            return ErrorCode.TRANSACTION_ABORTABLE if is_aborted else _FENCED
        if transaction.task is not None and transaction.task.is_prepared:
            return ErrorCode.INVALID_TXN_STATE
        transaction.state = "Ongoing"
        transaction.was_timed_out = False
        return _NONE

    def time_out(self, transactional_id: str) -> None:
        """Abort an open transaction, as its timeout or an operator does."""
        transaction = self.ids[transactional_id]
        assert transaction.is_open or transaction.task, (
            f"{transactional_id} has no open transaction"
        )
        self.drop(transaction)
        transaction.was_timed_out = True

    def drop(self, transaction: MemoryTransaction) -> None:
        """Abort the open transaction of a transactional id, if it has one, and begin the next producer epoch."""
        if transaction.is_open:
            self.finish(transaction, is_commit=False)
        else:
            self.bump(transaction)
            transaction.state = "CompleteAbort"
        transaction.task = None

    def finish(self, transaction: MemoryTransaction, *, is_commit: bool) -> None:
        """Write the markers and offsets of an open transaction, and begin the next producer epoch."""
        producer_id = transaction.producer_id
        marker_epoch = transaction.epoch + 1
        for name in sorted(transaction.partitions):
            topic = self._topics.get(name.topic)
            if topic is not None:
                partition = topic.partitions[name.partition]
                partition.log.end_transaction(
                    producer_id,
                    marker_epoch,
                    is_commit=is_commit,
                    leader_epoch=partition.leader_epoch,
                )
        if is_commit:
            for commit in transaction.offsets:
                self._groups.store(commit)
        transaction.partitions.clear()
        transaction.offsets.clear()
        transaction.state = "CompleteCommit" if is_commit else "CompleteAbort"
        self.bump(transaction)
        self._wake()

    def bump(self, transaction: MemoryTransaction) -> None:
        """Begin the next producer epoch of a transactional id, or use a new producer id after the last epoch."""
        transaction.last_identity = (transaction.producer_id, transaction.epoch)
        transaction.was_timed_out = False
        transaction.epoch += 1
        if transaction.epoch > EPOCH_MAX:
            transaction.producer_id, transaction.epoch = self._new_producer_id(), 0

    def listing(self, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
        response = pb.ListTransactionsResponse()
        for name, transaction in sorted(self.ids.items()):
            if not request.states or transaction.state in request.states:
                response.transactions.add(
                    transactional_id=name,
                    producer_id=transaction.producer_id,
                    state=transaction.state,
                )
        return response

    def descriptions(
        self, request: pb.DescribeTransactionsRequest
    ) -> pb.DescribeTransactionsResponse:
        response = pb.DescribeTransactionsResponse()
        for name in request.transactional_ids:
            transaction = self.ids.get(name)
            described = response.transactions.add(transactional_id=name, started_ms=-1)
            if transaction is None:
                described.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
                continue
            described.state = transaction.state
            described.identity.CopyFrom(transaction.identity)
            described.timeout_ms = transaction.timeout_ms
            for partition in sorted(transaction.partitions):
                described.partitions.add(topic=partition.topic, partition=partition.partition)
        return response

    def abort(self, request: pb.AbortTransactionRequest) -> pb.AbortTransactionResponse:
        transaction = self.ids.get(request.transactional_id)
        if transaction is None:
            return pb.AbortTransactionResponse(
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                error_message=f"the transactional id {request.transactional_id} does not exist",
            )
        if not transaction.is_open and transaction.task is None:
            return pb.AbortTransactionResponse(
                error_code=ErrorCode.INVALID_TXN_STATE,
                error_message=f"{request.transactional_id} has no open transaction",
            )
        self.time_out(request.transactional_id)
        return pb.AbortTransactionResponse()


def identity_key(identity: pb.ProducerIdentity) -> tuple[int, int]:
    return identity.producer_id, identity.producer_epoch

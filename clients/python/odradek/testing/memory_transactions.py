"""The transaction coordinator of the in-memory cluster: identities, open transactions, markers, offsets of groups.

It decides at once, and all markers are written in the same step. Each end of a transaction has an epoch of its own
(transaction.version 2), so that repeated requests are recognized and late ones are refused.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from odradek.partitions import TopicPartition
from odradek.testing.memory_groups import MemoryGroups
from odradek.testing.memory_log import MemoryTopic
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import read_header
from odradek_protocol.records.errors import CorruptBatch
from odradek_protocol.rpc.v1 import group_service_pb2
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb

EPOCH_MAX = 32_766
_NONE, _FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED


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
    """The identity before the last end, by which a repeated request is recognized."""
    was_timed_out: bool = False

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
    ) -> None:
        self.faults: defaultdict[str, deque[ErrorCode]] = defaultdict(deque)
        """Error codes for the next calls, by the name of the method."""
        self.responses_to_lose: defaultdict[str, int] = defaultdict(int)
        """How many of the next calls of a method are decided without a response, by the name of the method."""
        self._topics = topics
        self._groups = groups
        self._new_producer_id = new_producer_id
        self._wake = wake
        self._ids: dict[str, MemoryTransaction] = {}

    def _fault(self, method: str) -> ErrorCode:
        faults = self.faults[method]
        return faults.popleft() if faults else _NONE

    def init(self, request: pb.InitProducerRequest) -> pb.InitProducerResponse:
        """Give a producer an identity that fences all earlier ones."""
        code = self._fault("InitProducer")
        if code is not _NONE:
            return pb.InitProducerResponse(error_code=code)
        known = self._ids.get(request.transactional_id)
        if known is None:
            known = MemoryTransaction(self._new_producer_id())
            self._ids[request.transactional_id] = known
        elif request.HasField("identity"):
            present = _key(request.identity)
            if present == known.last_identity and not known.is_open:
                return pb.InitProducerResponse(identity=known.identity)
            if present != (known.producer_id, known.epoch):
                return pb.InitProducerResponse(error_code=_FENCED)
            if known.is_open:
                self._end(known, is_commit=False)
            else:
                self._bump(known)
        else:
            if known.is_open:
                self._end(known, is_commit=False)
            self._bump(known)
            known.last_identity = None
        known.timeout_ms = request.transaction_timeout_ms
        known.state = "Empty"
        return pb.InitProducerResponse(identity=known.identity)

    def end(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        """Commit or abort."""
        code = self._fault("EndTransaction")
        if code is _NONE:
            code = self._decide(request)
            if self.responses_to_lose["EndTransaction"]:
                self.responses_to_lose["EndTransaction"] -= 1
                code = ErrorCode.NETWORK_EXCEPTION
        if code is not _NONE:
            return pb.EndTransactionResponse(error_code=code)
        identity = self._ids[request.transactional_id].identity
        return pb.EndTransactionResponse(next_identity=identity)

    def _decide(self, request: pb.EndTransactionRequest) -> ErrorCode:
        known, present = self._ids.get(request.transactional_id), _key(request.identity)
        if known is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if present == (known.producer_id, known.epoch):
            if known.is_open:
                self._end(known, is_commit=request.is_commit)
            elif request.is_commit:
                return ErrorCode.INVALID_TXN_STATE
            else:
                self._bump(known)
                known.state = "CompleteAbort"
            return _NONE
        if present != known.last_identity or known.state not in ("CompleteCommit", "CompleteAbort"):
            return _FENCED
        if (known.state == "CompleteCommit") is request.is_commit:
            return _NONE
        return (
            ErrorCode.TRANSACTION_ABORTABLE if known.was_timed_out else ErrorCode.INVALID_TXN_STATE
        )

    def commit_offsets(
        self, request: pb.CommitTransactionOffsetsRequest, now_s: float
    ) -> pb.CommitTransactionOffsetsResponse:
        """Note offsets that the group has when the transaction commits."""
        code = self._fault("CommitTransactionOffsets")
        if code is _NONE:
            code = self._join(request.transactional_id, _key(request.identity))
        if code is _NONE:
            code = self._groups.commit_error(request.commit, now_s)
        if code is not _NONE:
            return pb.CommitTransactionOffsetsResponse(error_code=code)
        self._ids[request.transactional_id].offsets.append(request.commit)
        response = pb.CommitTransactionOffsetsResponse()
        for item in request.commit.offsets:
            response.offsets.add(partition=item.partition)
        return response

    def admit(self, transactional_id: str, name: TopicPartition, records: bytes) -> ErrorCode:
        """Register the partition of a transactional batch; refuse one of another producer than the present one."""
        try:
            header = read_header(records)
        except CorruptBatch:
            return _NONE  # the log refuses it
        if not header.is_transactional:
            return _NONE
        code = self._join(transactional_id, (header.producer_id, header.producer_epoch))
        if code is _NONE:
            self._ids[transactional_id].partitions.add(name)
        return ErrorCode.INVALID_PRODUCER_EPOCH if code is _FENCED else code

    def _join(self, transactional_id: str, present: tuple[int, int]) -> ErrorCode:
        known = self._ids.get(transactional_id)
        if known is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if present != (known.producer_id, known.epoch):
            is_aborted = present == known.last_identity and known.was_timed_out
            return ErrorCode.TRANSACTION_ABORTABLE if is_aborted else _FENCED
        known.state = "Ongoing"
        known.was_timed_out = False
        return _NONE

    def time_out(self, transactional_id: str) -> None:
        """Abort an open transaction, as its time-out or an operator does."""
        known = self._ids[transactional_id]
        assert known.is_open, f"{transactional_id} has no open transaction"
        self._end(known, is_commit=False)
        known.was_timed_out = True

    def _end(self, known: MemoryTransaction, *, is_commit: bool) -> None:
        producer_id = known.producer_id
        marker_epoch = known.epoch + 1
        for name in sorted(known.partitions):
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
            for commit in known.offsets:
                self._groups.store(commit)
        known.partitions.clear()
        known.offsets.clear()
        known.state = "CompleteCommit" if is_commit else "CompleteAbort"
        self._bump(known)
        self._wake()

    def _bump(self, known: MemoryTransaction) -> None:
        known.last_identity = (known.producer_id, known.epoch)
        known.was_timed_out = False
        known.epoch += 1
        if known.epoch > EPOCH_MAX:
            known.producer_id, known.epoch = self._new_producer_id(), 0

    def listing(self, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
        response = pb.ListTransactionsResponse()
        for name, known in sorted(self._ids.items()):
            if not request.states or known.state in request.states:
                response.transactions.add(
                    transactional_id=name, producer_id=known.producer_id, state=known.state
                )
        return response

    def descriptions(
        self, request: pb.DescribeTransactionsRequest
    ) -> pb.DescribeTransactionsResponse:
        response = pb.DescribeTransactionsResponse()
        for name in request.transactional_ids:
            known = self._ids.get(name)
            described = response.transactions.add(transactional_id=name, started_ms=-1)
            if known is None:
                described.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
                continue
            described.state = known.state
            described.identity.CopyFrom(known.identity)
            described.timeout_ms = known.timeout_ms
            for partition in sorted(known.partitions):
                described.partitions.add(topic=partition.topic, partition=partition.partition)
        return response

    def abort(self, request: pb.AbortTransactionRequest) -> pb.AbortTransactionResponse:
        known = self._ids.get(request.transactional_id)
        if known is None:
            return pb.AbortTransactionResponse(
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                error_message=f"transactional id {request.transactional_id} is unknown",
            )
        if not known.is_open:
            return pb.AbortTransactionResponse(
                error_code=ErrorCode.INVALID_TXN_STATE,
                error_message=f"{request.transactional_id} has no open transaction",
            )
        self.time_out(request.transactional_id)
        return pb.AbortTransactionResponse()


def _key(identity: pb.ProducerIdentity) -> tuple[int, int]:
    return identity.producer_id, identity.producer_epoch

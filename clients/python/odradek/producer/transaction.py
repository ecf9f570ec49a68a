"""Transactions of one producer: records of several partitions and offsets of groups that are committed together or
not at all.

The transaction's coordinator gives out identities (producer id and epoch), one for each transaction. The producer
asks for the first one (`InitProducer`), which fences older producers of the same transactional id; the response to
each end of a transaction has the next one. A repeated request gets the decision of the first one, so the request that
ends a transaction is repeated until the coordinator responds.

    begin    needs an identity; asks for one at first, and after an end whose response did not arrive
    commit   waits for the acknowledgement of every record; if one failed, aborts and raises TransactionAborted
    abort    drops unsent records; the markers have the next producer epoch, which fences records on their way
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from google.protobuf.message import Message

from odradek.cluster.backoff import Backoff
from odradek.cluster.cluster import Cluster
from odradek.cluster.methods import (
    COMMIT_TRANSACTION_OFFSETS,
    END_TRANSACTION,
    INIT_PRODUCER,
)
from odradek.cluster.transport import Method
from odradek.consumer.options import GroupIdentity
from odradek.errors import (
    ClientClosed,
    InvalidRequest,
    MemberFenced,
    NotInTransaction,
    OdradekError,
    ProducerFenced,
    RequestTimedOut,
    TransactionAborted,
    TransactionInProgress,
    TransactionOutcomeUnknown,
    error_code,
    error_of,
)
from odradek.partitions import ByPartition, as_partition
from odradek.producer.accumulator import Accumulator
from odradek.producer.options import ProducerOptions
from odradek.producer.sender import Sender, monotonic_ms
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2, group_service_pb2
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb

if TYPE_CHECKING:
    from odradek.consumer.consumer import Consumer

CALL_S_MAX: Final = 10.0
_FENCED: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
_ABORTABLE: Final = (
    ErrorCode.TRANSACTION_ABORTABLE,
    # The coordinator has forgotten this producer, because the transactional id was not used for a long time.
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    # The consumer lost its partitions, and with them the right to commit their offsets.
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.FENCED_MEMBER_EPOCH,
)
_log = logging.getLogger(__name__)
Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
T = TypeVar("T")


class Transaction:
    """One transaction of a producer: `async with producer.transaction() as transaction:`.

    The end of the block commits the transaction; an exception in the block aborts it, and is raised again. `commit` or
    `abort` may also be called in the block, which ends the transaction there.
    """

    def __init__(self, transactions: ProducerTransactions) -> None:
        self._transactions = transactions

    async def __aenter__(self) -> Self:
        await self._transactions.begin(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.is_open:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.abort()
        except OdradekError as failure:
            # The exception of the block is raised, because it says more.
            _log.warning(
                "Failed to abort a transaction; it will be aborted when it times out: %s", failure
            )

    @property
    def is_open(self) -> bool:
        return self._transactions.open is self

    async def send_offsets(
        self, offsets: ByPartition[int], group: Consumer | GroupIdentity
    ) -> None:
        """Add offsets of a consumer's group to the transaction: they are committed when the transaction commits. Each
        is the offset of the next record to read.

        From then on the consumer commits no offsets: `consumer.commit()` and automatic commits are disabled.

        Raises:
            TransactionAborted: the consumer lost its partitions, or the transaction timed out.
        """
        await self._transactions.send_offsets(self, offsets, group)

    async def commit(self) -> None:
        """Wait until all records are acknowledged, and commit the transaction.

        Raises:
            TransactionAborted: a record failed, or the transaction timed out; none of its records take effect.
            ProducerFenced: a newer producer uses the transactional id.
            TransactionOutcomeUnknown: the coordinator did not respond within `commit_timeout_ms`.
        """
        await self._transactions.commit(self)

    async def abort(self) -> None:
        """Abort the transaction, so that none of its records and offsets take effect."""
        await self._transactions.abort(self)


class ProducerTransactions:
    """The transactions of one producer, one at a time."""

    def __init__(
        self,
        cluster: Cluster,
        sender: Sender,
        accumulator: Accumulator,
        options: ProducerOptions,
    ) -> None:
        assert options.transactional_id is not None
        self.open: Transaction | None = None
        self._id = options.transactional_id
        self._cluster = cluster
        self._sender = sender
        self._accumulator = accumulator
        self._options = options
        self._identity: pb.ProducerIdentity | None = None
        self._coordinator_id: int | None = None
        self._needs_init = True
        self._fatal: OdradekError | None = None
        self._batches_before = 0
        self._has_offsets = False
        self._is_ending = False

    def require_open(self, transaction: Transaction | None) -> None:
        """Raise NotInTransaction if this transaction takes no records now, or the error that made this producer
        unusable.

        `transaction` is the one that was open when the call began that sends the record. A call that waited while its
        transaction was aborted must not write into the next one.
        """
        if self._fatal is not None:
            raise self._fatal
        if transaction is None or self.open is not transaction or self._is_ending:
            raise NotInTransaction(f"the producer {self._id!r} sends in transactions only")

    async def init(self) -> None:
        """Take over the transactional id: fence older producers with this id, and abort their open transaction."""
        if self._fatal is not None:
            raise self._fatal
        if not self._needs_init:
            return
        request = pb.InitProducerRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._options.transaction_timeout_ms,
            identity=self._identity,
        )
        subject = f"taking over the transactional id {self._id!r}"
        response = await self._call(
            INIT_PRODUCER, request, subject, self._options.max_block_ms / 1000
        )
        code = error_code(response.error_code)
        if code in _FENCED:
            raise self._fenced(code, subject)
        if code is not ErrorCode.NONE:
            raise error_of(code, subject)
        self._identity, self._needs_init = response.identity, False
        self._note_coordinator(response)

    async def begin(self, transaction: Transaction) -> None:
        if self.open is not None:
            raise TransactionInProgress(f"the producer {self._id!r} has an open transaction")
        # No records are taken before the identity is known.
        self.open, self._is_ending = transaction, True
        try:
            await self.init()
            identity = self._identity
            assert identity is not None, "an initialized producer has an identity"
            self._sender.begin_transaction(self._id, identity.producer_id, identity.producer_epoch)
        except BaseException:
            self.open = None
            raise
        self._batches_before = self._batches
        self._has_offsets = self._is_ending = False

    @property
    def _batches(self) -> int:
        return self._accumulator.done_batches + self._accumulator.undone_batches

    @property
    def _has_work(self) -> bool:
        return self._has_offsets or self._batches != self._batches_before

    def _require(self, transaction: Transaction) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self.open is not transaction or self._is_ending:
            raise NotInTransaction(f"this transaction of the producer {self._id!r} has ended")

    async def send_offsets(
        self, transaction: Transaction, offsets: ByPartition[int], group: Consumer | GroupIdentity
    ) -> None:
        self._require(transaction)
        try:
            member = (
                group
                if isinstance(group, GroupIdentity)
                else group.leave_commits_to_transactions(offsets)
            )
        except MemberFenced as lost:
            await self._abort_for(transaction, lost)
            raise
        commit = group_service_pb2.CommitOffsetsRequest(
            group_id=member.group,
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            instance_id=member.instance_id,
        )
        for partition, offset in offsets.items():
            name = as_partition(partition)
            if offset < 0:
                raise ValueError(f"offset {offset} of {name} is negative")
            named = common_pb2.TopicPartition(topic=name.topic, partition=name.partition)
            commit.offsets.add(partition=named, offset=offset, leader_epoch=-1)
        if not commit.offsets:
            return
        self._has_offsets = True
        request = pb.CommitTransactionOffsetsRequest(
            transactional_id=self._id, identity=self._identity, commit=commit
        )
        subject = f"offsets of group {member.group!r} in a transaction of {self._id!r}"
        response = await self._call(
            COMMIT_TRANSACTION_OFFSETS, request, subject, self._options.max_block_ms / 1000
        )
        code = error_code(response.error_code)
        for result in response.offsets:
            code = code or error_code(result.error_code)
        if code is ErrorCode.NONE:
            return
        error = error_of(code, subject)
        if code in _ABORTABLE or code in _FENCED:
            await self._abort_for(transaction, error)
        raise error

    async def commit(self, transaction: Transaction) -> None:
        self._require(transaction)
        self._is_ending = True
        try:
            error = await self._all_acknowledged()
            if error is None and self._has_work:
                code = await self._end(True, self._options.commit_timeout_ms / 1000)
                if code is not ErrorCode.NONE:
                    error = error_of(code, f"commit of a transaction of {self._id!r}")
        except asyncio.CancelledError:
            self._give_up()
            raise
        if error is not None:
            await self._abort_for(transaction, error)
        self.open = None

    async def abort(self, transaction: Transaction) -> None:
        self._require(transaction)
        await self._abort()

    async def _abort_for(self, transaction: Transaction, error: OdradekError) -> None:
        """Abort because of an error, and raise TransactionAborted, or the error that makes this producer unusable."""
        try:
            await self._abort()
        except OdradekError as failure:
            if self._fatal is not None:
                raise
            # Nothing was committed, and the next transaction first ends this one.
            _log.warning(
                "Failed to abort a transaction of %r; the next one begins by aborting it: %s",
                self._id,
                failure,
            )
        raise TransactionAborted(
            f"a transaction of {self._id!r} was aborted: {error.message}", code=error.code
        ) from error

    async def _abort(self) -> None:
        self._is_ending = True
        has_work = self._has_work
        try:
            self._sender.drop_all(
                TransactionAborted(f"the transaction of {self._id!r} was aborted", hint="")
            )
            if has_work and self._identity is not None:
                await self._end(False, self._options.max_block_ms / 1000)
        finally:
            self.open = None

    def _give_up(self) -> None:
        """Give up a transaction whose end is undecided, or has an unknown outcome: the next InitProducer ends it."""
        self._sender.drop_all(ClientClosed(f"the commit of {self._id!r} was cancelled"))
        self._needs_init = True
        self.open = None

    async def _all_acknowledged(self) -> OdradekError | None:
        """Wait for all records. Return the first failure at once, because it makes the commit impossible."""
        if self._accumulator.release_all(monotonic_ms()):
            self._sender.kick()
        while self._accumulator.transaction_error is None and self._accumulator.undone_batches:
            await self._sender.progress()
        return self._accumulator.transaction_error

    async def _end(self, is_commit: bool, timeout_s: float) -> ErrorCode:
        """End the transaction at the coordinator. Returns NONE, or an abortable code."""
        request = pb.EndTransactionRequest(
            transactional_id=self._id, identity=self._identity, is_commit=is_commit
        )
        subject = f"{'commit' if is_commit else 'abort'} of a transaction of {self._id!r}"
        # Without a response, only InitProducer can tell which identity comes next.
        self._needs_init = True
        try:
            response = await self._call(END_TRANSACTION, request, subject, timeout_s)
        except OdradekError as error:
            if not is_commit:
                raise
            self._fatal = TransactionOutcomeUnknown(
                f"{subject} got no response within {timeout_s} s: {error.message}"
            )
            self.open = None
            raise self._fatal from error
        code = error_code(response.error_code)
        if code is ErrorCode.NONE:
            self._identity, self._needs_init = response.next_identity, False
            self._note_coordinator(response)
            return code
        if code in _FENCED:
            raise self._fenced(code, subject)
        # The id was unused for so long that the coordinator has forgotten it.
        if code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            self._identity = None
        if code in _ABORTABLE:
            # The abort that follows gets the next identity; if it does not, InitProducer does.
            return code
        self._fatal = error_of(code, subject)
        self.open = None
        raise self._fatal

    def _fenced(self, code: ErrorCode, subject: str) -> ProducerFenced:
        self._fatal = ProducerFenced(
            f"{subject}: another producer has the transactional id now", code=code
        )
        self.open = None
        return self._fatal

    def _note_coordinator(
        self, response: pb.InitProducerResponse | pb.EndTransactionResponse
    ) -> None:
        # Older releases do not say who coordinates the id.
        has_id = response.HasField("coordinator_id")
        self._coordinator_id = response.coordinator_id if has_id else None

    async def _call(self, method: Method[Q, R], request: Q, subject: str, timeout_s: float) -> R:
        return await call_until_decided(
            self._cluster,
            self._options,
            method,
            request,
            subject=subject,
            timeout_s=timeout_s,
            first=self._coordinator_id,
        )

    def adopt(self, transactional_id: str, identity: pb.ProducerIdentity) -> None:
        """Begin the transaction of a staged write's task, with the id and epoch that the coordinator returned.

        The transaction ends when the task's step is completed, or the task is aborted.
        """
        assert self.open is None, f"{self.open} is open"
        self._sender.begin_transaction(
            transactional_id, identity.producer_id, identity.producer_epoch
        )
        self.open, self._is_ending = Transaction(self), False

    async def finish(self) -> None:
        """Wait until all records of an adopted transaction (`adopt`) are acknowledged. The coordinator ends it later.

        Raises:
            OdradekError: the first record that failed.
        """
        self._is_ending = True
        error = await self._all_acknowledged()
        if error is not None:
            raise error
        self.open = None

    async def close(self) -> None:
        """Abort the open transaction, if the coordinator responds."""
        try:
            if self.open is not None and self._fatal is None and not self._is_ending:
                await self._abort()
        finally:
            self._fatal = self._fatal or ClientClosed("the producer is closed")


async def call_until_decided(
    cluster: Cluster,
    options: ProducerOptions,
    method: Method[Q, R],
    request: Q,
    *,
    subject: str,
    timeout_s: float,
    first: int | None = None,
) -> R:
    """Repeat a call until a coordinator has decided it, and return its response. The first attempt begins with
    the broker whose id is `first`.

    Raises:
        OdradekError: no coordinator decided in time, or repeating does not help.
    """
    backoff = Backoff(first_ms=options.retry_backoff_ms, most_ms=options.retry_backoff_max_ms)
    failures, deadline_s = 0, time.monotonic() + timeout_s
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            response = await cluster.call_any(
                method, request, timeout_s=max(0.001, min(CALL_S_MAX, left_s)), first=first
            )
            code = error_code(response.error_code)  # type: ignore[attr-defined]  # each response has it
            if not code.retriable:
                return response
            error: OdradekError = error_of(code, subject)
        except OdradekError as caught:
            error = caught
            if not error.retriable:
                raise
        if time.monotonic() >= deadline_s:
            raise RequestTimedOut(
                f"{subject} was not decided within {timeout_s} s; last error: {error}"
            ) from error
        # The previous coordinator may not know, or may never learn, which broker is the coordinator now.
        first = None
        failures += 1
        await asyncio.sleep(backoff.after(failures, random.random()) / 1000)


async def run_transaction(
    begin: Callable[[], Transaction],
    work: Callable[[Transaction], Awaitable[T]],
    *,
    attempts: int,
) -> T:
    """Run `work` in a transaction. If that is aborted, run it again in a new one, `attempts` times in all."""
    for pause_s in (*retry_pauses_s(attempts), None):
        try:
            async with begin() as transaction:
                return await work(transaction)
        except TransactionAborted:
            if pause_s is None:
                raise
        await asyncio.sleep(pause_s)
    raise AssertionError("unreachable")


def retry_pauses_s(attempts: int) -> Iterator[float]:
    """Return the pauses between this many attempts of a transaction."""
    if attempts < 1:
        raise InvalidRequest(f"attempts is {attempts}", hint="it must be at least 1")
    backoff = Backoff(first_ms=50, most_ms=2_000)
    for failures in range(1, attempts):
        yield backoff.after(failures, random.random()) / 1000

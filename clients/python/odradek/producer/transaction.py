"""Transactions of one producer: records in several partitions, and offsets of groups, that are committed together or
not at all.

The transaction coordinator assigns a producer id and epoch (the *identity*) to each transaction. The producer requests
the first identity with `InitProducer`, which fences older producers with the same transactional id. The response to
each end of a transaction contains the next identity. The request that ends a transaction can be repeated, because every
repetition gets the result of the first one. So the producer repeats it until the coordinator responds.

    begin    needs an identity; requests one for the first transaction, and if the last end request got no response
    commit   waits until every record is acknowledged; if a record failed, aborts and raises TransactionAborted
    abort    drops unsent records; the markers have the next producer epoch, which fences records still in flight
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
from odradek.cluster.wait_report import reported_wait
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
    # The coordinator has deleted the transactional id, because it was not used for a long time.
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

    The end of the block commits the transaction. An exception in the block aborts it, and is raised again. The program
    may also end the transaction inside the block with `commit` or `abort`.
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
            # This error is only logged, so that the exception of the block is raised.
            _log.warning(
                "Failed to abort a transaction; it will be aborted when it times out: %s", failure
            )

    @property
    def is_open(self) -> bool:
        return self._transactions.open is self

    async def send_offsets(
        self, offsets: ByPartition[int], group: Consumer | GroupIdentity
    ) -> None:
        """Add offsets of a consumer group to the transaction. They are committed when the transaction commits. Each
        offset is that of the next record to read.

        After this call, the consumer itself commits no offsets: `consumer.commit()` and automatic commits are disabled.

        Raises:
            TransactionAborted: the consumer lost its partitions, or the transaction timed out.
        """
        await self._transactions.send_offsets(self, offsets, group)

    async def commit(self) -> None:
        """Wait until all records are acknowledged, and commit the transaction.

        Raises:
            TransactionAborted: a record failed, or the transaction timed out. None of its records takes effect.
            ProducerFenced: a newer producer uses the transactional id.
            TransactionOutcomeUnknown: the coordinator did not respond within `commit_timeout_ms`.
        """
        await self._transactions.commit(self)

    async def abort(self) -> None:
        """Abort the transaction, so that none of its records and offsets takes effect."""
        await self._transactions.abort(self)


class ProducerTransactions:
    """The transactions of one producer, of which at most one is open."""

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
        """Raise NotInTransaction if this transaction does not accept records. If an earlier error made the producer
        unusable, raise that error.

        `transaction` was open when the program called `send`. If the transaction was aborted while `send` waited, the
        record must not be written into the next transaction.
        """
        if self._fatal is not None:
            raise self._fatal
        if transaction is None or self.open is not transaction or self._is_ending:
            raise NotInTransaction(f"the producer {self._id!r} can only send in a transaction")

    async def init(self) -> None:
        """Fence older producers with this transactional id, and abort their open transaction."""
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
        # `_is_ending` makes `require_open` refuse records until the identity is known.
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
        return self._accumulator.done_batches + self._accumulator.pending_count

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
            message = common_pb2.TopicPartition(topic=name.topic, partition=name.partition)
            commit.offsets.add(partition=message, offset=offset, leader_epoch=-1)
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
        """Abort because of an error, and raise TransactionAborted, or the error that made this producer unusable."""
        try:
            await self._abort()
        except OdradekError as failure:
            if self._fatal is not None:
                raise
            # Nothing was committed, and the next transaction begins by aborting this one.
            _log.warning(
                "Failed to abort a transaction of %r; the next transaction first aborts this one: %s",
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
        """Abandon a transaction that was not decided, or whose outcome is unknown. The next `InitProducer` ends it."""
        self._sender.drop_all(ClientClosed(f"the commit of {self._id!r} was cancelled"))
        self._needs_init = True
        self.open = None

    async def _all_acknowledged(self) -> OdradekError | None:
        """Wait until all records are acknowledged, and return None. If a record fails, return its error without waiting
        further, because the transaction can no longer be committed.
        """
        if self._accumulator.release_all(monotonic_ms()):
            self._sender.kick()
        while self._accumulator.transaction_error is None and self._accumulator.pending_count:
            await self._sender.progress()
        return self._accumulator.transaction_error

    async def _end(self, is_commit: bool, timeout_s: float) -> ErrorCode:
        """Send the request that ends the transaction. Return NONE, or a code after which the transaction can be
        aborted.
        """
        request = pb.EndTransactionRequest(
            transactional_id=self._id, identity=self._identity, is_commit=is_commit
        )
        subject = f"{'commit' if is_commit else 'abort'} of a transaction of {self._id!r}"
        # If no response arrives, only InitProducer can return the next identity.
        self._needs_init = True
        try:
            response = await self._call(END_TRANSACTION, request, subject, timeout_s)
        except OdradekError as error:
            if not is_commit:
                raise
            self._fatal = TransactionOutcomeUnknown(
                f"the outcome of the {subject} is unknown: {error.message}"
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
        # The coordinator has deleted the transactional id, because it was not used for a long time.
        if code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            self._identity = None
        if code in _ABORTABLE:
            # The caller aborts the transaction. The response to the abort, or InitProducer, returns the next identity.
            return code
        self._fatal = error_of(code, subject)
        self.open = None
        raise self._fatal

    def _fenced(self, code: ErrorCode, subject: str) -> ProducerFenced:
        self._fatal = ProducerFenced(
            f"{subject}: a newer producer uses the transactional id", code=code
        )
        self.open = None
        return self._fatal

    def _note_coordinator(
        self, response: pb.InitProducerResponse | pb.EndTransactionResponse
    ) -> None:
        # Older releases do not report the coordinator.
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
        """Begin the transaction of a task of a staged write, with the transactional id and identity that the
        coordinator returned.

        The transaction ends when the task's step is completed, or when the task is aborted.
        """
        assert self.open is None, f"{self.open} is open"
        self._sender.begin_transaction(
            transactional_id, identity.producer_id, identity.producer_epoch
        )
        self.open, self._is_ending = Transaction(self), False

    async def finish(self) -> None:
        """Wait until all records of an adopted transaction (`adopt`) are acknowledged. The coordinator ends the
        transaction later.

        Raises:
            OdradekError: the error of the first record that failed.
        """
        self._is_ending = True
        error = await self._all_acknowledged()
        if error is not None:
            raise error
        self.open = None

    async def close(self) -> None:
        """Abort the open transaction if the coordinator responds. The producer can no longer be used afterwards."""
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
    """Repeat a call until a coordinator has decided it, and return the response. If `first` is given,
    the first attempt goes to the broker with this id.

    Raises:
        OdradekError: no coordinator decided in time, or a retry cannot help.
    """
    cluster.start()
    backoff = Backoff(first_ms=options.retry_backoff_ms, most_ms=options.retry_backoff_max_ms)
    failures, deadline_s = 0, time.monotonic() + timeout_s
    error: OdradekError | None = None
    with reported_wait(f"the coordinator ({subject})", lambda: cluster.explain_waiting(error)):
        while True:
            remaining_s = deadline_s - time.monotonic()
            try:
                response = await cluster.call_any(
                    method, request, timeout_s=max(0.001, min(CALL_S_MAX, remaining_s)), first=first
                )
                code = error_code(response.error_code)  # type: ignore[attr-defined]  # each response has it
                if not code.retriable:
                    return response
                error = error_of(code, subject)
            except OdradekError as caught:
                error = caught
                if not error.retriable:
                    raise
            if time.monotonic() >= deadline_s:
                raise RequestTimedOut(
                    f"{subject} was not decided within {timeout_s} s; last error: {error}"
                ) from error
            # The broker `first` is not asked again: it may no longer be the coordinator, and may not know the new one.
            first = None
            failures += 1
            await asyncio.sleep(backoff.after(failures, random.random()) / 1000)


async def run_transaction(
    begin: Callable[[], Transaction],
    work: Callable[[Transaction], Awaitable[T]],
    *,
    attempts: int,
) -> T:
    """Run `work` in a transaction. If the transaction is aborted, run `work` again in a new one, up to `attempts` times
    in total.
    """
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
    """Yield the pauses in seconds between this many attempts of a transaction."""
    if attempts < 1:
        raise InvalidRequest(f"attempts is {attempts}", hint="it must be at least 1")
    backoff = Backoff(first_ms=50, most_ms=2_000)
    for failures in range(1, attempts):
        yield backoff.after(failures, random.random()) / 1000

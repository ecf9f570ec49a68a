"""Staged writes: several processes write the records of one step, and all of these records are committed, or none.

    writes = client.staged_writes("sales")                         in every process
    async with await writes.open(step=7, name="task-3") as task:   in each task; each attempt has its own name
        await task.send("totals", value, key=key)
        prepared = await task.prepare()                            sent to the driver, which may be another process
    await writes.complete(7, [prepared, ...])                      in the driver

Step numbers increase. `complete` commits the given tasks and aborts all other tasks of the query up to that step, in
one atomic decision. It may be repeated, also by another process: a step that is complete does not change. So a driver
that does not know the outcome of a step runs the step again, and `open` returns None if the step is already complete.
Consumers with isolation_level="read_committed" see each step exactly once.

A task is aborted if its client does not renew its lease in time (`transaction.staged.lease.ms`). A prepared task may
wait longer for its step: `prepared_timeout_ms` after the last request for any task of the step. In the background, this
client renews the tasks that it opened, until they are aborted or their step is decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from google.protobuf.message import Message

from odradek.cluster.background import BackgroundTasks
from odradek.cluster.cluster import Cluster
from odradek.cluster.methods import (
    ABORT_STAGED,
    COMPLETE_STEP,
    DESCRIBE_STEPS,
    OPEN_STAGED,
    PREPARE_STAGED,
    RENEW_STAGED,
)
from odradek.cluster.transport import Method
from odradek.errors import (
    ClientClosed,
    InvalidRequest,
    NotInTransaction,
    OdradekError,
    TransactionAborted,
    UnsupportedOperation,
    error_code,
    error_of,
)
from odradek.producer.accumulator import Headers
from odradek.producer.delivery import DeliveryFuture
from odradek.producer.producer import Producer
from odradek.producer.transaction import call_until_decided
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import staged_write_service_pb2 as pb

if TYPE_CHECKING:
    from odradek.producer.producer import ProducerArguments

RENEWALS_A_LEASE: Final = 6
IDLE_PRODUCERS_MAX: Final = 64
_CLOSE_S_MAX: Final = 10.0
_log = logging.getLogger(__name__)
Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTask:
    """A task that has written all its records. It can be pickled and sent to the process that completes the step."""

    query: str
    step: int
    transactional_id: str
    producer_id: int
    producer_epoch: int


class StagedTask:
    """One attempt of a task of a staged write. If its `async with` block ends without a call of `prepare`, the task is
    aborted.
    """

    def __init__(
        self, writes: StagedWrites, step: int, member: pb.StagedMember, producer: Producer
    ) -> None:
        self.step = step
        self.member = member
        self.failure: OdradekError | None = None
        """Set when this process learns that the cluster aborted the task. Every further call raises this error."""
        self._writes = writes
        self._producer: Producer | None = producer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.abort()

    @property
    def is_open(self) -> bool:
        """Whether the task is neither prepared nor aborted."""
        return self._producer is not None

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Coroutine[Any, Any, DeliveryFuture]:
        """Put one record into the buffer, as `Producer.send` does: `await task.send(...)`.

        Raises:
            TransactionAborted: the cluster aborted this task, because its lease expired or its step was completed.
        """
        return self._open_producer().send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )

    async def prepare(self) -> PreparedTask:
        """Wait until all records are acknowledged, and mark the task as prepared. Pass the result to
        `StagedWrites.complete`, which commits the records.

        Raises:
            TransactionAborted: a record failed, or the cluster aborted this task. None of its records takes effect.
        """
        producer = self._open_producer()
        try:
            await producer.finish_staged()
            await self._writes._prepare(self)
        except OdradekError as error:
            await self.abort()
            if isinstance(error, TransactionAborted):
                raise
            raise TransactionAborted(
                f"a task of step {self.step} of {self._writes.query!r} was aborted: {error.message}",
                code=error.code,
            ) from error
        self._producer = None
        await self._writes._done(self, producer)
        return PreparedTask(
            query=self._writes.query,
            step=self.step,
            transactional_id=self.member.transactional_id,
            producer_id=self.member.identity.producer_id,
            producer_epoch=self.member.identity.producer_epoch,
        )

    async def abort(self) -> None:
        """Abort the task, so that none of its records takes effect. If the cluster cannot be reached, the task is
        aborted when its lease expires.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._writes._give_up(self, producer)

    def _open_producer(self) -> Producer:
        if self.failure is not None:
            raise self.failure
        if self._producer is None:
            raise NotInTransaction(f"this task of step {self.step} is prepared or aborted")
        return self._producer


class StagedWrites:
    """The staged writes of one query. Create it with `client.staged_writes(query)`, and close it or use it in `async
    with`.
    """

    def __init__(
        self,
        query: str,
        *,
        cluster: Cluster,
        prepared_timeout_ms: int | None = None,
        **arguments: Unpack[ProducerArguments],
    ) -> None:
        if "transactional_id" in arguments:
            raise InvalidRequest(
                "transactional_id is not allowed, because staged writes choose their transactional ids themselves"
            )
        if prepared_timeout_ms is not None and prepared_timeout_ms < 1:
            raise InvalidRequest(
                f"prepared_timeout_ms is {prepared_timeout_ms}, but must be positive"
            )
        self.query = query
        self._prepared_timeout_ms = prepared_timeout_ms or 0
        self._cluster = cluster
        self._arguments = arguments
        self._arguments["transactional_id"] = query
        self._idle: list[Producer] = [self._new_producer()]
        self._options = self._idle[0].options
        self._open: dict[str, StagedTask] = {}
        self._prepared: dict[str, pb.StagedMember] = {}
        """Prepared tasks by transactional id, until this process learns that their step is decided."""
        self._renewals = BackgroundTasks(f"staged writes of {query}")
        self._is_renewing = self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def is_idle(self) -> bool:
        """Whether this process has no open or prepared task."""
        return not self._open and not self._prepared

    def _new_producer(self) -> Producer:
        return Producer(cluster=self._cluster, **self._arguments)

    async def open(self, step: int, name: str) -> StagedTask | None:
        """Begin one attempt of a task. Return None if the step is already complete, so that nothing needs to be
        written.

        `name` identifies the attempt. Each attempt in a step needs a different name.

        Raises:
            UnsupportedOperation: the cluster does not support transactions.
            TransactionFailed: a later step is complete, so the caller's state is older than the cluster's.
        """
        if self._is_closed:
            raise ClientClosed("these staged writes are closed")
        response = await self._call(
            OPEN_STAGED,
            pb.OpenStagedRequest(
                query=self.query,
                step=step,
                member=name,
                prepared_timeout_ms=self._prepared_timeout_ms,
            ),
            f"opening a task of step {step} of {self.query!r}",
        )
        if response.is_completed:
            return None
        producer = self._idle.pop() if self._idle else self._new_producer()
        member = response.member
        producer.begin_staged(member.transactional_id, member.identity)
        task = StagedTask(self, step, member, producer)
        self._open[member.transactional_id] = task
        # The cluster reuses a transactional id only after the step of the id's last task is decided, so that task needs
        # no renewals any more.
        self._prepared.pop(member.transactional_id, None)
        if not self._is_renewing:
            self._is_renewing = True
            self._renewals.start(
                self._renew(response.lease_ms / RENEWALS_A_LEASE / 1000), "renew leases"
            )
        return task

    async def complete(
        self, step: int, tasks: Iterable[PreparedTask], *, is_final: bool = False
    ) -> bool:
        """Complete a step: commit these tasks, and abort all other tasks of this step and of earlier steps. Return
        False if the step was already complete.

        After an error other than TransactionAborted, it is unknown whether the step is complete; call the method again.

        Args:
            is_final: The query has no further step, so the cluster need not keep its record of the query's steps for
                long.

        Raises:
            TransactionAborted: a task is no longer prepared. None of the step's records takes effect.
        """
        subject = f"completing step {step} of {self.query!r}"
        request = pb.CompleteStepRequest(query=self.query, step=step, is_final=is_final)
        for task in tasks:
            if (task.query, task.step) != (self.query, step):
                raise InvalidRequest(
                    f"{subject}: one of the tasks belongs to step {task.step} of {task.query!r}",
                )
            request.members.append(_member(task))
        response = await self._call(COMPLETE_STEP, request, subject)
        self._forget(request.members)
        return not response.was_completed

    async def abort(self, tasks: Iterable[PreparedTask]) -> None:
        """Abort only these tasks. Tasks that are already committed or aborted are not changed."""
        request = pb.AbortStagedRequest(query=self.query, members=map(_member, tasks))
        await self._call(ABORT_STAGED, request, f"aborting tasks of {self.query!r}")
        self._forget(request.members)

    async def abort_step(self, step: int) -> None:
        """Abort all tasks of a step, including those of other processes, unless the step is complete.

        Stop the tasks before this call, because a task that is opened later can still write.
        """
        subject = f"aborting step {step} of {self.query!r}"
        described = await self._call(
            DESCRIBE_STEPS, pb.DescribeStepsRequest(query=self.query), subject
        )
        members = [task.member for task in described.open_members if task.step == step]
        if members:
            request = pb.AbortStagedRequest(query=self.query, members=members)
            await self._call(ABORT_STAGED, request, subject)
            self._forget(members)

    async def close(self) -> None:
        """Abort the tasks that are open in this process. May be called twice."""
        self._is_closed = True
        for task in list(self._open.values()):
            await task.abort()
        await self._renewals.stop()
        idle, self._idle = self._idle, []
        for producer in idle:
            await producer.close()

    async def _renew(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            tasks, prepared = list(self._open.values()), list(self._prepared.values())
            if not tasks and not prepared:
                continue
            members = [*(task.member for task in tasks), *prepared]
            request = pb.RenewStagedRequest(query=self.query, members=members)
            subject = f"renewing leases of {self.query!r}"
            try:
                response = await self._call(RENEW_STAGED, request, subject, timeout_s=pause_s)
            except OdradekError as error:
                _log.warning("%s failed, and will be repeated: %s", subject, error)
                continue
            errors = response.member_errors
            self._forget(m for m, number in zip(members, errors, strict=True) if number)
            for task, number in zip(tasks, errors, strict=False):
                if number:
                    cause = error_of(number, f"the lease of a task of step {task.step}")
                    task.failure = TransactionAborted(
                        f"the cluster aborted a task of step {task.step} of {self.query!r}: its lease expired, or"
                        " its step was decided",
                        code=cause.code,
                    )

    async def _prepare(self, task: StagedTask) -> None:
        await self._call(
            PREPARE_STAGED,
            pb.PrepareStagedRequest(query=self.query, member=task.member),
            f"preparing a task of step {task.step} of {self.query!r}",
        )

    async def _done(self, task: StagedTask, producer: Producer) -> None:
        self._open.pop(task.member.transactional_id, None)
        self._prepared[task.member.transactional_id] = task.member
        if self._is_closed or len(self._idle) >= IDLE_PRODUCERS_MAX:
            await producer.close()
        else:
            self._idle.append(producer)

    def _forget(self, members: Iterable[pb.StagedMember]) -> None:
        """Stop renewing these prepared tasks, because they are committed or aborted."""
        for member in members:
            if self._prepared.get(member.transactional_id) == member:
                del self._prepared[member.transactional_id]

    async def _give_up(self, task: StagedTask, producer: Producer) -> None:
        self._open.pop(task.member.transactional_id, None)
        # Records of this task may still arrive at brokers, so no other task may use this producer's id and epoch.
        await producer.close(_CLOSE_S_MAX)
        if task.failure is not None:
            return
        request = pb.AbortStagedRequest(query=self.query, members=[task.member])
        try:
            await self._call(ABORT_STAGED, request, "aborting a task", timeout_s=_CLOSE_S_MAX)
        except OdradekError as error:
            _log.warning(
                "Failed to abort the writes of a task; the cluster aborts them when the task's lease expires: %s",
                error,
            )

    async def _call(
        self, method: Method[Q, R], request: Q, subject: str, *, timeout_s: float | None = None
    ) -> R:
        response = await call_until_decided(
            self._cluster,
            self._options,
            method,
            request,
            subject=subject,
            timeout_s=self._options.commit_timeout_ms / 1000 if timeout_s is None else timeout_s,
        )
        code = error_code(response.error_code)  # type: ignore[attr-defined]  # each response has it
        if code is ErrorCode.NONE:
            return response
        message: str = getattr(response, "error_message", "")
        if code is ErrorCode.UNSUPPORTED_VERSION:
            raise UnsupportedOperation(
                f"{subject}: transactions are not enabled in the cluster",
                code=code,
                hint="upgrade all brokers, then run `odradek feature set transaction.version 2`",
            )
        if code is ErrorCode.TRANSACTION_ABORTABLE:
            raise TransactionAborted(
                f"{subject}: a task was aborted, for example because its client did not renew it in time",
                code=code,
            )
        raise error_of(code, subject, message)


def _member(task: PreparedTask) -> pb.StagedMember:
    member = pb.StagedMember(transactional_id=task.transactional_id)
    member.identity.producer_id = task.producer_id
    member.identity.producer_epoch = task.producer_epoch
    return member

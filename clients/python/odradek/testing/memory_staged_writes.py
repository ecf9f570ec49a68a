"""The staged writes of the in-memory cluster: slots, prepared tasks, and the last complete step of each query.

A slot is a transactional id of a query, made of the query's name and a number. A task writes in a transaction of a
slot, which `MemoryTransactions` coordinates. No task is aborted by a timeout; `MemoryCluster.end_lease` and
`time_out_step` abort tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from odradek.testing.memory_transactions import (
    MemoryTask,
    MemoryTransaction,
    MemoryTransactions,
    identity_key,
)
from odradek_protocol.identity import SLOT_SEPARATOR
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import staged_write_service_pb2 as pb

LEASE_MS: Final = 60_000
_NONE = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the cluster keeps about a query: its last complete step."""

    step: int
    task_count: int
    completed_ms: int
    is_final: bool


class MemoryStagedWrites:
    """The staged writes of all queries of the cluster."""

    def __init__(
        self, transactions: MemoryTransactions, *, new_producer_id: Callable[[], int]
    ) -> None:
        self._transactions = transactions
        self._new_producer_id = new_producer_id
        self._ledgers: dict[str, Ledger] = {}

    def open(self, request: pb.OpenStagedRequest) -> pb.OpenStagedResponse:
        """Assign a slot of the query to a task, unless the step is already complete."""
        code = self._fault("OpenStaged", request.query)
        if code is not _NONE:
            return pb.OpenStagedResponse(error_code=code)
        ledger = self._ledgers.get(request.query)
        response = pb.OpenStagedResponse(lease_ms=LEASE_MS)
        if ledger is not None and request.step < ledger.step:
            response.error_code = ErrorCode.INVALID_TXN_STATE
            response.error_message = (
                f"step {request.step} of {request.query} is older than step {ledger.step}, which is already"
                " complete: the query probably runs from an old checkpoint"
            )
            return response
        if ledger is not None and request.step == ledger.step:
            response.is_completed = True
        else:
            self._fill_slot(request, response.member)
        if self._transactions.loses_response("OpenStaged"):
            return pb.OpenStagedResponse(error_code=ErrorCode.NETWORK_EXCEPTION)
        return response

    def _fill_slot(self, request: pb.OpenStagedRequest, member: pb.StagedMember) -> None:
        task = MemoryTask(request.step, request.member)
        slots = dict(self._slots(request.query))
        # A repeated request gets the slot that was assigned for the first request.
        name = next((n for n, s in slots.items() if s.task == task and not s.is_open), None)
        if name is None:
            name = next((n for n, s in slots.items() if s.task is None), None)
            if name is None:
                name = f"{request.query}{SLOT_SEPARATOR}{len(slots)}"
                slot = MemoryTransaction(self._new_producer_id())
                self._transactions.ids[name] = slot
            else:
                slot = slots[name]
                self._transactions.bump(slot)
                slot.last_identity = None
            slot.task, slot.state = task, "Empty"
        member.transactional_id = name
        member.identity.CopyFrom(self._transactions.ids[name].identity)

    def renew(self, request: pb.RenewStagedRequest) -> pb.RenewStagedResponse:
        """Return for each task whether it is still open, as an error code."""
        code = self._fault("RenewStaged", request.query)
        if code is not _NONE:
            return pb.RenewStagedResponse(error_code=code)
        return pb.RenewStagedResponse(
            member_errors=[self._match(request.query, member) for member in request.members]
        )

    def prepare(self, request: pb.PrepareStagedRequest) -> pb.PrepareStagedResponse:
        """Mark a task as prepared. From now on it accepts no records, and its lease cannot expire."""
        code = self._fault("PrepareStaged", request.query)
        if code is _NONE:
            code = self._match(request.query, request.member)
        if code is _NONE:
            task = self._transactions.ids[request.member.transactional_id].task
            assert task is not None
            task.is_prepared = True
            if self._transactions.loses_response("PrepareStaged"):
                code = ErrorCode.NETWORK_EXCEPTION
        return pb.PrepareStagedResponse(error_code=code)

    def complete(self, request: pb.CompleteStepRequest) -> pb.CompleteStepResponse:
        """Commit the given prepared tasks of a step, and abort all other tasks of the query up to this step."""
        code = self._fault("CompleteStep", request.query)
        if code is not _NONE:
            return pb.CompleteStepResponse(error_code=code)
        ledger = self._ledgers.get(request.query)
        was_completed = ledger is not None and ledger.step >= request.step
        if not was_completed:
            unfit = [member for member in request.members if not self._fits(request, member)]
            if unfit:
                return pb.CompleteStepResponse(
                    error_code=ErrorCode.TRANSACTION_ABORTABLE, unfit=unfit
                )
            task_count = len({member.transactional_id for member in request.members})
            self._ledgers[request.query] = Ledger(
                request.step, task_count, time.time_ns() // 1_000_000, request.is_final
            )
        committed = set() if was_completed else {m.transactional_id for m in request.members}
        for name, slot in self._slots(request.query):
            if slot.task is None or slot.task.step > request.step:
                continue
            # If the step was already complete, only further tasks of this step are aborted.
            if was_completed and slot.task.step != request.step:
                continue
            if name in committed and slot.is_open:
                self._transactions.finish(slot, is_commit=True)
            elif name in committed:
                self._transactions.bump(slot)
            else:
                self._transactions.drop(slot)
            slot.task = None
        if self._transactions.loses_response("CompleteStep"):
            return pb.CompleteStepResponse(error_code=ErrorCode.NETWORK_EXCEPTION)
        return pb.CompleteStepResponse(was_completed=was_completed)

    def abort(self, request: pb.AbortStagedRequest) -> pb.AbortStagedResponse:
        """Abort the tasks in the request, except those that were already committed or aborted."""
        code = self._fault("AbortStaged", request.query)
        if code is not _NONE:
            return pb.AbortStagedResponse(error_code=code)
        for member in request.members:
            if self._match(request.query, member) is _NONE:
                self._transactions.drop(self._transactions.ids[member.transactional_id])
        if self._transactions.loses_response("AbortStaged"):
            return pb.AbortStagedResponse(error_code=ErrorCode.NETWORK_EXCEPTION)
        return pb.AbortStagedResponse(member_errors=[_NONE] * len(request.members))

    def describe(self, request: pb.DescribeStepsRequest) -> pb.DescribeStepsResponse:
        """Return the last complete step of a query, and its open tasks."""
        response = pb.DescribeStepsResponse(last_step=-1, completed_ms=-1)
        ledger = self._ledgers.get(request.query)
        if ledger is not None:
            response.last_step, response.member_count = ledger.step, ledger.task_count
            response.completed_ms, response.is_final = ledger.completed_ms, ledger.is_final
        for name, slot in self._slots(request.query):
            if slot.task is not None:
                member = pb.StagedMember(transactional_id=name, identity=slot.identity)
                response.open_members.add(
                    member=member,
                    step=slot.task.step,
                    name=slot.task.name,
                    is_prepared=slot.task.is_prepared,
                )
        return response

    def forget(self, request: pb.ForgetStepsRequest) -> pb.ForgetStepsResponse:
        """Delete the record of which steps of a query are complete."""
        if request.query not in self._ledgers:
            return pb.ForgetStepsResponse(
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                error_message=f"the cluster has no record of a complete step of {request.query}",
            )
        for _, slot in self._slots(request.query):
            if slot.task is not None:
                return pb.ForgetStepsResponse(
                    error_code=ErrorCode.INVALID_TXN_STATE,
                    error_message=f"step {slot.task.step} of {request.query} is being written: stop the query first",
                )
        del self._ledgers[request.query]
        return pb.ForgetStepsResponse()

    def end_lease(self, query: str, task: str) -> None:
        """Abort the task with this name, as the expiry of its lease does."""
        for name, slot in self._slots(query):
            if slot.task is not None and slot.task.name == task and not slot.task.is_prepared:
                self._transactions.time_out(name)
                return
        raise AssertionError(f"query {query} has no open task {task} that is not prepared")

    def time_out_step(self, query: str, step: int) -> None:
        """Abort the prepared tasks of a step, as their timeout does."""
        names = [
            name
            for name, slot in self._slots(query)
            if slot.task is not None and slot.task.step == step and slot.task.is_prepared
        ]
        if not names:
            raise AssertionError(f"step {step} of {query} has no prepared task")
        for name in names:
            self._transactions.time_out(name)

    def _slots(self, query: str) -> Iterator[tuple[str, MemoryTransaction]]:
        prefix = query + SLOT_SEPARATOR
        return ((n, s) for n, s in list(self._transactions.ids.items()) if n.startswith(prefix))

    def _fault(self, method: str, query: str) -> ErrorCode:
        if not query or SLOT_SEPARATOR in query:
            return ErrorCode.INVALID_REQUEST
        return self._transactions.take_fault(method)

    def _match(self, query: str, member: pb.StagedMember) -> ErrorCode:
        """Return NONE if the task is open, otherwise the error code that says why it is not."""
        if not member.transactional_id.startswith(query + SLOT_SEPARATOR):
            return ErrorCode.INVALID_REQUEST
        slot = self._transactions.ids.get(member.transactional_id)
        if slot is None or slot.producer_id != member.identity.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        is_current = identity_key(member.identity) == (slot.producer_id, slot.epoch)
        return _NONE if is_current and slot.task is not None else ErrorCode.TRANSACTION_ABORTABLE

    def _fits(self, request: pb.CompleteStepRequest, member: pb.StagedMember) -> bool:
        if self._match(request.query, member) is not _NONE:
            return False
        task = self._transactions.ids[member.transactional_id].task
        return task is not None and task.is_prepared and task.step == request.step

"""Staged writes: the tasks of a step write in separate transactions, which are committed or aborted together.

A *query* (such as a Spark streaming query) writes in numbered *steps*. Each task attempt of a step is a *member*. A
member is an ordinary transaction, whose transactional id is a *slot* of the query: the query's name, U+001F and a
number. Slots are reused with a higher epoch, so the number of producer ids is the number of tasks that run at the same
time. The transactional id with the name of the query stores the *ledger*, which contains the last complete step.

    open       A member gets a slot and an identity, unless its step is already complete.
    renew      An unprepared member has no transaction timeout, but is aborted if its lease is not renewed.
    prepare    The member has written all its records. From now on, it is decided only together with its step, and no
               partition can be added to it.
    complete   The listed members are committed, all other members of the query in this and earlier steps are aborted,
               and the ledger is updated.

All slots of a query and its ledger are in the same shard, and `complete` writes a single batch. A load replays either
the whole batch or nothing of it, so the append of this batch commits the step. The ledger makes a repeated step
harmless: the response to the repeated request is that the step is complete, and records that were written again are
aborted.

Prepared members are aborted after a timeout without any request for their step. A slow task whose lease is renewed
therefore keeps the other members of its step alive, and so does a process that renews prepared members. The query
chooses the timeout when it opens members, between the lease and `transaction.prepared.timeout.ms`. The timeout is in
the member's record, so that the next coordinator knows it. Leases, and the times of the last requests for steps, are in
memory only, and are restarted by a load.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from odradek_broker.coordinator_step import NOTHING, RequestId, Step, judges, respond
from odradek_broker.transactions.identity import CLIENT_EPOCH_MAX, Match, ProducerIdReserve
from odradek_broker.transactions.messages import (
    AbortStaged,
    AddPartitions,
    CompleteStep,
    ForgetSteps,
    MembersChecked,
    Opened,
    OpenStaged,
    Prepared,
    PrepareStaged,
    RenewStaged,
    SlotIdentity,
    StepCompleted,
    StepsForgotten,
)
from odradek_broker.transactions.settings import TransactionSettings
from odradek_broker.transactions.transaction import (
    NO_TIMEOUT_MS,
    EndedBy,
    Ledger,
    Staged,
    Transaction,
    TransactionalId,
    TransactionRecord,
    TransactionStatus,
    created,
    created_ledger,
)
from odradek_broker.transactions.transaction_table import (
    TransactionTable,
    partitions_bytes,
    record_bytes,
)
from odradek_protocol.identity import NO_PRODUCER_ID, SLOT_SEPARATOR, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode

TransactionStep: TypeAlias = Step[TransactionRecord]
SLOTS_MAX: Final = 10_000
QUERY_BYTES_MAX: Final = 32_000
MEMBER_BYTES_MAX: Final = 1_024
STEP_BYTES_MAX: Final = 8 * 1024 * 1024
"""The maximum size of the batch that completes a step. The host never splits a batch of this size."""


class Decisions(Protocol):
    """The operations of `TransactionShard` that `StagedSteps` uses to decide and write transactions."""

    settings: TransactionSettings
    table: TransactionTable
    reserve: ProducerIdReserve

    def move(
        self, transactional_id: TransactionalId, state: Transaction | None
    ) -> TransactionStep: ...

    def decide(
        self,
        transactional_id: TransactionalId,
        state: Transaction,
        *,
        is_commit: bool,
        ended_by: EndedBy,
        is_bumped: bool,
        now_ms: int,
        wall_ms: int,
    ) -> TransactionStep: ...


class _LastSign(NamedTuple):
    """The time of the last request for any member of a step, and the timeout of the step."""

    heard_ms: int  # monotonic time
    timeout_ms: int  # the longest of the members' timeouts


class StagedSteps:
    """The handlers of the staged writes of one shard."""

    __slots__ = ("_last_signs", "_shard")

    def __init__(self, shard: Decisions) -> None:
        self._shard = shard
        self._last_signs: dict[tuple[str, int], _LastSign] = {}
        """The last request for each open step, by query and number of the step."""

    def handle_open(
        self, request_id: RequestId, request: OpenStaged, *, now_ms: int, wall_ms: int
    ) -> TransactionStep:
        """Assign a slot of the query to a task attempt, which becomes a member of the step."""
        verdict = self._judge_open(request)
        if isinstance(verdict, Opened):
            return respond(request_id, verdict)
        state = self._shard.table.get(verdict)
        self._hear(request.query, _staged(request), now_ms)
        step: TransactionStep = NOTHING
        if not _is_of(state, request):
            state = self._opened(state, request, wall_ms)
            step = self._shard.move(verdict, state)
        assert state is not None
        self._renew(verdict, now_ms)
        slot = SlotIdentity(verdict, state.next_identity)
        return step + respond(request_id, Opened(slot=slot))

    def _opened(self, state: Transaction | None, request: OpenStaged, wall_ms: int) -> Transaction:
        reserve = self._shard.reserve
        if state is None:
            opened = created(reserve.take(), timeout_ms=NO_TIMEOUT_MS, wall_ms=wall_ms)
        else:
            opened = state.initialized(
                reserve.take() if _needs_id(state) else None,
                timeout_ms=NO_TIMEOUT_MS,
                is_same_producer=False,
                wall_ms=wall_ms,
            )
        return replace(opened, staged=_staged(request))

    @judges
    def _judge_open(self, request: OpenStaged) -> Opened | TransactionalId:
        """Return the slot for a member: the slot that it already has, or else the lowest free one. If the member gets
        no slot, return the response instead (an error, or that the step is complete).
        """
        has_long_name = len(request.member.encode()) > MEMBER_BYTES_MAX
        is_valid = request.step >= 0 and request.prepared_timeout_ms >= 0 and not has_long_name
        if not _is_query(request.query) or not is_valid:
            return Opened(error=ErrorCode.INVALID_REQUEST)
        ledger = self.ledger_of(request.query)
        if ledger is not None and request.step == ledger.last_step:
            return Opened(is_completed=True)
        if ledger is not None and request.step < ledger.last_step:
            return Opened(
                error=ErrorCode.INVALID_TXN_STATE,
                error_message=f"step {request.step} of {request.query} is older than step"
                f" {ledger.last_step}, which is already complete: the query probably runs from an old checkpoint",
            )
        table = self._shard.table
        for transactional_id, state in table.slots_of(request.query):
            if _is_of(state, request):
                return transactional_id
        for number in range(SLOTS_MAX):
            slot = TransactionalId(f"{request.query}{SLOT_SEPARATOR}{number}")
            state_of_slot = table.get(slot)
            if state_of_slot is None and len(table) >= self._shard.settings.ids_max:
                return Opened(
                    error=ErrorCode.POLICY_VIOLATION,
                    error_message=f"the coordinator of {request.query} has {len(table)} transactional ids, which is the"
                    " limit: raise transaction.ids.max on the brokers",
                )
            if state_of_slot is None and not self._has_room(request.query, record_bytes(slot)):
                return Opened(
                    error=ErrorCode.POLICY_VIOLATION,
                    error_message=f"step {request.step} of {request.query} has too many tasks and partitions: the"
                    f" limit is {STEP_BYTES_MAX} bytes of records; use fewer tasks in a step",
                )
            if state_of_slot is None or _is_free(state_of_slot):
                if _needs_id(state_of_slot) and not self._shard.reserve:
                    return Opened(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                return slot
        return Opened(
            error=ErrorCode.POLICY_VIOLATION,
            error_message=f"step {request.step} of {request.query} has {SLOTS_MAX} tasks, which is the limit: use fewer"
            " tasks in a step",
        )

    def ledger_of(self, query: str) -> Ledger | None:
        """Return the ledger of a query, or None if no step is known to be complete."""
        state = self._shard.table.get(TransactionalId(query))
        return None if state is None else state.ledger

    def has_room_for(self, add: AddPartitions) -> bool:
        """Return whether partitions may be added to this member, because the batch that completes its step would not
        be too large.
        """
        query, _, _ = add.transactional_id.partition(SLOT_SEPARATOR)
        return self._has_room(query, partitions_bytes(add.partitions))

    def _has_room(self, query: str, more_bytes: int) -> bool:
        return self._shard.table.slot_bytes(query) + more_bytes <= STEP_BYTES_MAX

    @judges
    def _match(self, member: SlotIdentity) -> tuple[Transaction | None, ErrorCode]:
        """Return the state of a member and NONE, or None and an error code if the member has left its step."""
        state = self._shard.table.get(member.transactional_id)
        match = Match.FOREIGN if state is None else state.match(member.identity)
        if state is None or match is Match.FOREIGN:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if match is Match.CURRENT and state.staged is not None:
            return state, ErrorCode.NONE
        if match is Match.STALE:
            return None, ErrorCode.PRODUCER_FENCED
        # The member was committed or aborted, or it lost its lease.
        return None, ErrorCode.TRANSACTION_ABORTABLE

    def handle_renew(
        self, request_id: RequestId, request: RenewStaged, *, now_ms: int
    ) -> TransactionStep:
        """Extend the leases of unprepared members. For all members, also restart the timeout of their step."""
        errors = {}
        for member in request.members:
            state, errors[member] = self._match(member)
            if state is not None and state.staged is not None:
                query, _, _ = member.transactional_id.partition(SLOT_SEPARATOR)
                self._hear(query, state.staged, now_ms)
                if state.has_lease:
                    self._renew(member.transactional_id, now_ms)
        return respond(request_id, MembersChecked(errors=errors))

    def handle_prepare(
        self, request_id: RequestId, request: PrepareStaged, *, now_ms: int, wall_ms: int
    ) -> TransactionStep:
        """Write that a member is prepared. From now on, the member is committed or aborted together with its step."""
        state, error = self._match(request.member)
        if state is None or state.staged is None:
            return respond(request_id, Prepared(error=error))
        transactional_id = request.member.transactional_id
        query, _, _ = transactional_id.partition(SLOT_SEPARATOR)
        self._hear(query, state.staged, now_ms)
        if state.is_prepared:
            return respond(request_id, Prepared())
        prepared = replace(
            state, staged=replace(state.staged, prepared_ms=wall_ms), update_ms=wall_ms
        )
        return self._shard.move(transactional_id, prepared) + respond(request_id, Prepared())

    def handle_complete(
        self, request_id: RequestId, request: CompleteStep, *, now_ms: int, wall_ms: int
    ) -> TransactionStep:
        """Commit the listed members of a step, and abort all other members of the query in this and earlier steps. All
        records are written as one batch.
        """
        refusal = self._refuse_complete(request)
        if refusal is not None:
            return respond(request_id, refusal)
        ledger = self.ledger_of(request.query)
        is_completed = ledger is not None and ledger.last_step >= request.step
        committed = (
            {} if is_completed else {member.transactional_id: None for member in request.members}
        )
        step: TransactionStep = NOTHING
        if not is_completed:
            step += self._move_ledger(request, wall_ms)
        for transactional_id, state in self._open_members(request.query, request.step):
            assert state.staged is not None
            # If the step was already complete, only its own members are aborted: they were opened by a repetition of
            # the step.
            if is_completed and state.staged.step != request.step:
                continue
            if transactional_id in committed:
                step += self._commit(transactional_id, state, now_ms=now_ms, wall_ms=wall_ms)
            else:
                step += self.abort(
                    transactional_id, state, EndedBy.CLIENT, now_ms=now_ms, wall_ms=wall_ms
                )
        return step + respond(request_id, StepCompleted(is_completed=is_completed))

    @judges
    def _refuse_complete(self, request: CompleteStep) -> StepCompleted | None:
        if not _is_query(request.query) or request.step < 0:
            return StepCompleted(error=ErrorCode.INVALID_REQUEST)
        ledger = self.ledger_of(request.query)
        if ledger is None or ledger.last_step < request.step:
            unfit = tuple(member for member in request.members if not self._fits(member, request))
            if unfit:
                return StepCompleted(error=ErrorCode.TRANSACTION_ABORTABLE, unfit=unfit)
            table = self._shard.table
            if (
                table.get(TransactionalId(request.query)) is None
                and len(table) >= self._shard.settings.ids_max
            ):
                return StepCompleted(error=ErrorCode.POLICY_VIOLATION)
        needed = sum(
            state.needs_fresh_id for _, state in self._open_members(request.query, request.step)
        )
        if needed > len(self._shard.reserve):
            return StepCompleted(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return None

    def _fits(self, member: SlotIdentity, request: CompleteStep) -> bool:
        query, _, _ = member.transactional_id.partition(SLOT_SEPARATOR)
        state, _ = self._match(member)
        return (
            query == request.query
            and state is not None
            and state.is_prepared
            and state.staged is not None
            and state.staged.step == request.step
        )

    def _open_members(self, query: str, step: int) -> list[tuple[TransactionalId, Transaction]]:
        """Return the undecided members of this and earlier steps."""
        return [
            (transactional_id, state)
            for transactional_id, state in self._shard.table.slots_of(query)
            if state.staged is not None and state.staged.step <= step
        ]

    def _move_ledger(self, request: CompleteStep, wall_ms: int) -> TransactionStep:
        query = TransactionalId(request.query)
        state = self._shard.table.get(query) or created_ledger(wall_ms=wall_ms)
        committed = {member.transactional_id for member in request.members}
        ledger = Ledger(request.step, len(committed), request.is_final)
        assert state.ledger is None or state.ledger.last_step < request.step, state.ledger
        return self._shard.move(query, replace(state, ledger=ledger, update_ms=wall_ms))

    def _commit(
        self, transactional_id: TransactionalId, state: Transaction, *, now_ms: int, wall_ms: int
    ) -> TransactionStep:
        if state.status is TransactionStatus.ONGOING:
            return self._shard.decide(
                transactional_id,
                state,
                is_commit=True,
                ended_by=EndedBy.CLIENT,
                is_bumped=True,
                now_ms=now_ms,
                wall_ms=wall_ms,
            )
        # The member has written nothing, so no markers are needed and its slot is free at once.
        freed = state.initialized(
            self._fresh_id(state),
            timeout_ms=NO_TIMEOUT_MS,
            is_same_producer=True,
            wall_ms=wall_ms,
        )
        return self._shard.move(transactional_id, replace(freed, staged=None))

    def abort(
        self,
        transactional_id: TransactionalId,
        state: Transaction,
        ended_by: EndedBy,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> TransactionStep:
        """Abort a member. If the abort needs a new producer id, the caller must have checked that there is one."""
        if state.status is TransactionStatus.ONGOING:
            return self._shard.decide(
                transactional_id,
                state,
                is_commit=False,
                ended_by=ended_by,
                is_bumped=True,
                now_ms=now_ms,
                wall_ms=wall_ms,
            )
        aborted = state.aborted_without_partitions(
            self._fresh_id(state), wall_ms=wall_ms, ended_by=ended_by
        )
        return self._shard.move(transactional_id, aborted)

    def _fresh_id(self, state: Transaction) -> ProducerId | None:
        return self._shard.reserve.take() if state.needs_fresh_id else None

    def handle_abort(
        self, request_id: RequestId, request: AbortStaged, *, now_ms: int, wall_ms: int
    ) -> TransactionStep:
        """Abort the given members. A member that is already decided is not an error."""
        step: TransactionStep = NOTHING
        errors = {}
        for member in request.members:
            state, _ = self._match(member)
            errors[member] = ErrorCode.NONE
            if state is None:
                continue
            if state.needs_fresh_id and not self._shard.reserve:
                errors[member] = ErrorCode.COORDINATOR_NOT_AVAILABLE
                continue
            step += self.abort(
                member.transactional_id, state, EndedBy.CLIENT, now_ms=now_ms, wall_ms=wall_ms
            )
        return step + respond(request_id, MembersChecked(errors=errors))

    def handle_forget(self, request_id: RequestId, request: ForgetSteps) -> TransactionStep:
        """Delete the record of a streaming query's completed steps (its ledger) when an administrator requests it. The
        query can then run from an older checkpoint.
        """
        query = TransactionalId(request.query)
        state = self._shard.table.get(query)
        if state is None or state.ledger is None:
            message = f"the cluster has no record of a complete step of {query}"
            refusal = StepsForgotten(
                error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, error_message=message
            )
            return respond(request_id, refusal)
        for _, member in self._shard.table.slots_of(query):
            if member.staged is not None:
                message = (
                    f"step {member.staged.step} of {query} is being written: stop the query first"
                )
                refusal = StepsForgotten(error=ErrorCode.INVALID_TXN_STATE, error_message=message)
                return respond(request_id, refusal)
        # If a producer uses the name of the query as its transactional id, only the ledger is deleted, and the producer
        # keeps its identity.
        is_ledger_only = state.producer_id == NO_PRODUCER_ID
        step = self._shard.move(query, None if is_ledger_only else replace(state, ledger=None))
        return step + respond(request_id, StepsForgotten())

    def tick(self, *, now_ms: int, wall_ms: int) -> TransactionStep:
        """Abort the members of each step for which no request arrived within the step's timeout. The timeout of a step
        is removed when all members of the step are decided.
        """
        step: TransactionStep = NOTHING
        for (query, number), sign in list(self._last_signs.items()):
            if not self._shard.table.has_members(query, number):
                del self._last_signs[query, number]
                continue
            if now_ms - sign.heard_ms < sign.timeout_ms:
                continue
            is_left = False
            for transactional_id, state in self._open_members(query, number):
                assert state.staged is not None
                if state.staged.step != number:
                    continue
                if state.needs_fresh_id and not self._shard.reserve:
                    is_left = True
                    continue
                step += self.abort(
                    transactional_id, state, EndedBy.TIMEOUT, now_ms=now_ms, wall_ms=wall_ms
                )
            if not is_left:
                del self._last_signs[query, number]
        return step

    def loaded(self, *, now_ms: int) -> None:
        """Start the timeout of every open step. This is called after a load."""
        for transactional_id, state in self._shard.table.slots():
            if state.staged is not None:
                query, _, _ = transactional_id.partition(SLOT_SEPARATOR)
                self._hear(query, state.staged, now_ms)

    def _hear(self, query: str, staged: Staged, now_ms: int) -> None:
        settings = self._shard.settings
        timeout_ms = settings.prepared_timeout_ms
        if staged.prepared_timeout_ms:
            # The timeout is at least as long as a lease. A shorter one could end between two renewals, of which clients
            # send several within a lease.
            wanted_ms = max(staged.prepared_timeout_ms, settings.staged_lease_ms)
            timeout_ms = min(wanted_ms, timeout_ms)
        last = self._last_signs.get((query, staged.step))
        if last is not None:
            timeout_ms = max(timeout_ms, last.timeout_ms)
        self._last_signs[query, staged.step] = _LastSign(now_ms, timeout_ms)

    def _renew(self, transactional_id: TransactionalId, now_ms: int) -> None:
        settings, table = self._shard.settings, self._shard.table
        table.start_timeout(transactional_id, now_ms + settings.staged_lease_ms)


def _is_query(query: str) -> bool:
    return bool(query) and SLOT_SEPARATOR not in query and len(query.encode()) <= QUERY_BYTES_MAX


def _is_free(state: Transaction) -> bool:
    return state.status.is_between and state.staged is None


def _needs_id(state: Transaction | None) -> bool:
    """Return whether a slot must get a new producer id when it is opened.

    The epoch is bumped when the slot is opened, and again when its step is decided. The slots of a query reach the last
    epoch at the same time. If the slots got new producer ids when the step is decided, one step could need more ids
    than the reserve can have.
    """
    return state is None or state.producer_epoch >= CLIENT_EPOCH_MAX - 1


def _is_of(state: Transaction | None, request: OpenStaged) -> bool:
    """Return whether an earlier copy of this request has opened the slot, and the slot has not been used since."""
    return (
        state is not None
        and state.status is TransactionStatus.EMPTY
        and state.staged is not None
        # The timeout is not compared, because an older release without this field may have written the record.
        and replace(state.staged, prepared_timeout_ms=0) == Staged(request.step, request.member)
    )


def _staged(request: OpenStaged) -> Staged:
    return Staged(request.step, request.member, prepared_timeout_ms=request.prepared_timeout_ms)

"""The request handlers for all transactional ids of one partition of `__transaction_state`.

`odradek_broker.coordination` hosts the shards. Every handler has already replayed the records of the `Step` that it
returns; otherwise `TransactionTable.replay` is called only during a load. `now_ms` is monotonic time, for timeouts;
`wall_ms` is wall-clock time, for records. Responses are sent and orders are carried out when the records of their step
are committed, so no producer gets a response, and no marker is written, before the decision is durable.

While markers are pending, a request for the producer's next transaction waits until they are acknowledged
(`HeldRequests`). The request is then handled in the same step as the completion, so that both become one append.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from odradek_broker.coordinator_step import NOTHING, RequestId, Response, Step, judges, respond
from odradek_broker.held_requests import HeldRequest, HeldRequests
from odradek_broker.settled_clock import SettledClock
from odradek_broker.transactions.identity import (
    Match,
    ProducerIdentity,
    ProducerIdReserve,
)
from odradek_broker.transactions.markers_due import MarkersDue
from odradek_broker.transactions.messages import (
    Aborted,
    AbortTransaction,
    Added,
    AddPartitions,
    Ended,
    EndTransaction,
    HoldableRequest,
    Initialized,
    InitProducer,
    SendMarkers,
    TransactionBegun,
    TransactionCompleted,
    Verified,
    VerifyPartitions,
)
from odradek_broker.transactions.settings import TransactionSettings
from odradek_broker.transactions.staged_steps import StagedSteps
from odradek_broker.transactions.transaction import (
    MOVES,
    NO_TIMEOUT_MS,
    EndedBy,
    Transaction,
    TransactionalId,
    TransactionPartition,
    TransactionRecord,
    TransactionStatus,
    created,
)
from odradek_broker.transactions.transaction_table import TransactionTable
from odradek_protocol.identity import NO_PRODUCER_ID, SLOT_SEPARATOR, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode

TransactionStep: TypeAlias = Step[TransactionRecord]
ID_BYTES_MAX: Final = 32_767
_MARKER_DONE: Final = frozenset(
    {
        ErrorCode.NONE,
        # The partition has a higher epoch, so it has the marker of this decision or of a later one.
        ErrorCode.INVALID_PRODUCER_EPOCH,
        # The topic was deleted: the sender's image cannot be too old to contain the topic (marker_sender.py).
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
_ABORTED_BY_OTHERS: Final = frozenset({EndedBy.TIMEOUT, EndedBy.OPERATOR})
_POSTPONED_MS: Final = 1_000
HELD_MS_MAX: Final = 60_000
"""The longest time for which a request may wait, even if the request has a higher limit."""


@dataclass(slots=True, kw_only=True)
class TransactionShard:
    """The handlers of one shard. `table` is its state, and the host fills `reserve` with producer ids. All shards of a
    process share `clock`, so that a shard which is loaded after a jump of the wall clock ignores the jump, too.
    """

    settings: TransactionSettings
    clock: SettledClock = field(default_factory=SettledClock)
    table: TransactionTable = field(init=False)
    held: HeldRequests[TransactionalId, HoldableRequest] = field(init=False)
    markers_due: MarkersDue = field(default_factory=MarkersDue)
    reserve: ProducerIdReserve = field(init=False)
    staged: StagedSteps = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.table = TransactionTable(settings=settings, clock=self.clock)
        self.held = HeldRequests(of_key_max=settings.held_of_id_max, total_max=settings.held_max)
        self.reserve = ProducerIdReserve(settings.reserve_size)
        self.staged = StagedSteps(self)

    def handle_init(
        self, request_id: RequestId, init: InitProducer, *, now_ms: int, wall_ms: int
    ) -> TransactionStep:
        """Handle InitProducerId. The producer gets an identity that fences all earlier producers of the id."""
        error = self._refuse_init(init)
        if error is not ErrorCode.NONE:
            return respond(request_id, Initialized(error=error))
        timeout_ms = NO_TIMEOUT_MS if init.is_two_phase else init.timeout_ms
        state = self.table.get(init.transactional_id)
        if state is None or state.producer_id == NO_PRODUCER_ID:
            ledger = None if state is None else state.ledger
            state = created(self.reserve.take(), timeout_ms=timeout_ms, wall_ms=wall_ms)
            state = replace(state, ledger=ledger)
            return self._initialized(request_id, init.transactional_id, state)
        if state.status is TransactionStatus.ONGOING:
            # The open transaction is aborted. It belongs to the previous producer or, if the request has an identity,
            # to the same producer.
            ended_by = EndedBy.FENCE if init.identity is None else EndedBy.CLIENT
            step = self.decide(
                init.transactional_id,
                state,
                is_commit=False,
                ended_by=ended_by,
                is_bumped=True,
                now_ms=now_ms,
                wall_ms=wall_ms,
            )
            return step + self._hold(request_id, init, now_ms=now_ms)
        if state.status.is_decided:
            return self._hold(request_id, init, now_ms=now_ms)
        if init.identity is not None and state.match(init.identity) is Match.RETRY:
            return respond(request_id, Initialized(identity=state.next_identity))
        fresh_id = self.reserve.take() if state.needs_fresh_id else None
        state = state.initialized(
            fresh_id,
            timeout_ms=timeout_ms,
            is_same_producer=init.identity is not None,
            wall_ms=wall_ms,
        )
        return self._initialized(request_id, init.transactional_id, state)

    def _initialized(
        self, request_id: RequestId, transactional_id: TransactionalId, state: Transaction
    ) -> TransactionStep:
        return self.move(transactional_id, state) + respond(
            request_id, Initialized(identity=state.next_identity)
        )

    @judges
    def _refuse_init(self, init: InitProducer) -> ErrorCode:
        # The slots of staged writes get their identities only from `OpenStaged`.
        if not _is_valid(init.transactional_id) or SLOT_SEPARATOR in init.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if not init.is_two_phase and not 0 < init.timeout_ms <= self.settings.max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        state = self.table.get(init.transactional_id)
        if state is None:
            if len(self.table) >= self.settings.ids_max:
                return ErrorCode.POLICY_VIOLATION
            return self._need_fresh_id()
        if state.producer_id == NO_PRODUCER_ID:
            return self._need_fresh_id()
        if init.identity is not None:
            match = state.match(init.identity)
            # A late copy of an earlier InitProducerId must not abort the transaction that the producer has begun in the
            # meantime.
            is_late = match is Match.RETRY and state.status is TransactionStatus.ONGOING
            if is_late or match not in (Match.CURRENT, Match.RETRY):
                return ErrorCode.PRODUCER_FENCED
            if match is Match.RETRY:
                return ErrorCode.NONE
        if state.needs_fresh_id and not state.status.is_decided:
            return self._need_fresh_id()
        return ErrorCode.NONE

    def _need_fresh_id(self) -> ErrorCode:
        # Old clients do not retry InitProducerId after other retriable error codes.
        return ErrorCode.NONE if self.reserve else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def handle_add(
        self, request_id: RequestId, add: AddPartitions, *, now_ms: int, wall_ms: int
    ) -> TransactionStep:
        """Handle AddPartitionsToTxn, AddOffsetsToTxn, and the registration that a partition leader sends before it
        writes a transaction's first batch.
        """
        error = self._refuse_add(add)
        if error is not ErrorCode.NONE:
            return respond(request_id, Added(error=error))
        state = self.table.get(add.transactional_id)
        assert state is not None
        if state.status.is_decided:
            return self._hold(request_id, add, now_ms=now_ms)
        added = respond(request_id, Added(last_outcome=state.last_outcome))
        if state.partitions.issuperset(add.partitions):
            return added
        begins = state.status is not TransactionStatus.ONGOING
        state = state.with_partitions(add.partitions, is_tv2=add.is_tv2, wall_ms=wall_ms)
        step = self.move(add.transactional_id, state)
        if begins:
            step += Step(orders=(TransactionBegun(transactional_id=add.transactional_id),))
        if begins and state.has_timeout:
            self.table.start_timeout(add.transactional_id, now_ms + state.timeout_ms)
        return step + added

    @judges
    def _refuse_add(self, add: AddPartitions) -> ErrorCode:
        state = self.table.get(add.transactional_id)
        error = self._refuse_identity(state, add.transactional_id, add.identity, is_tv2=add.is_tv2)
        if error is not ErrorCode.NONE:
            return error
        assert state is not None
        if state.is_prepared:
            return ErrorCode.INVALID_TXN_STATE
        if state.status.is_decided:
            return ErrorCode.NONE
        if len(state.partitions.union(add.partitions)) > self.settings.partitions_max:
            return ErrorCode.TRANSACTION_ABORTABLE
        if state.staged is not None and not self.staged.has_room_for(add):
            return ErrorCode.TRANSACTION_ABORTABLE
        return ErrorCode.NONE

    @judges
    def _refuse_identity(
        self,
        state: Transaction | None,
        transactional_id: TransactionalId,
        identity: ProducerIdentity,
        *,
        is_tv2: bool,
    ) -> ErrorCode:
        """Return NONE if the request has the current identity of the producer, or else an error code."""
        if not _is_valid(transactional_id):
            return ErrorCode.INVALID_REQUEST
        match = Match.FOREIGN if state is None else state.match(identity)
        if state is None or match is Match.FOREIGN:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if match is Match.CURRENT:
            return ErrorCode.NONE
        if match is Match.RETRY and _was_aborted_by_others(state):
            # After this error code, a client of transaction version 0 or 1 aborts its transaction, and sends
            # InitProducerId with its current identity.
            if not is_tv2:
                return ErrorCode.INVALID_PRODUCER_ID_MAPPING
            return ErrorCode.TRANSACTION_ABORTABLE
        return ErrorCode.PRODUCER_FENCED

    @judges
    def handle_verify(self, request_id: RequestId, verify: VerifyPartitions) -> TransactionStep:
        """Handle AddPartitionsToTxn with VerifyOnly. The response has NONE for each partition that belongs to the open
        transaction, so that a batch of the transaction may be written to it.
        """
        state = self.table.get(verify.transactional_id)
        error = self._refuse_identity(state, verify.transactional_id, verify.identity, is_tv2=True)
        if error is ErrorCode.NONE:
            assert state is not None
            if state.status.is_decided:
                error = ErrorCode.CONCURRENT_TRANSACTIONS
            elif state.status is not TransactionStatus.ONGOING:
                error = ErrorCode.TRANSACTION_ABORTABLE
        if error is not ErrorCode.NONE:
            return respond(request_id, Verified(errors=dict.fromkeys(verify.partitions, error)))
        assert state is not None
        errors = {
            partition: ErrorCode.NONE
            if partition in state.partitions
            else ErrorCode.TRANSACTION_ABORTABLE
            for partition in verify.partitions
        }
        return respond(request_id, Verified(errors=errors, last_outcome=state.last_outcome))

    def handle_end(
        self, request_id: RequestId, end: EndTransaction, *, now_ms: int, wall_ms: int
    ) -> TransactionStep:
        """Handle EndTxn. The producer's transaction is committed or aborted."""
        verdict = self._judge_end_tv2(end) if end.is_tv2 else self._judge_end(end)
        if isinstance(verdict, Ended):
            return respond(request_id, verdict)
        state = self.table.get(end.transactional_id)
        assert state is not None
        if state.status.is_decided:
            return self._hold(request_id, end, now_ms=now_ms)
        if state.status is TransactionStatus.ONGOING:
            step = self.decide(
                end.transactional_id,
                state,
                is_commit=end.is_commit,
                ended_by=EndedBy.CLIENT,
                is_bumped=end.is_tv2,
                now_ms=now_ms,
                wall_ms=wall_ms,
            )
        else:
            fresh_id = self.reserve.take() if state.needs_fresh_id else None
            step = self.move(
                end.transactional_id, state.aborted_without_partitions(fresh_id, wall_ms=wall_ms)
            )
        return step + respond(request_id, self._ended(end))

    def _ended(self, end: EndTransaction) -> Ended:
        state = self.table.get(end.transactional_id)
        assert state is not None
        return Ended(next_identity=state.next_identity if end.is_tv2 else None)

    @judges
    def _judge_end(self, end: EndTransaction) -> Ended | None:
        """Return the response to a client of transaction version 0 or 1, or None if its open transaction must be
        decided.
        """
        state = self.table.get(end.transactional_id)
        error = self._refuse_identity(state, end.transactional_id, end.identity, is_tv2=False)
        if error is not ErrorCode.NONE:
            return Ended(error=error)
        assert state is not None
        if state.staged is not None or state.status is TransactionStatus.EMPTY:
            return Ended(error=ErrorCode.INVALID_TXN_STATE)
        if state.status is TransactionStatus.ONGOING:
            return None
        # The identity cannot show whether this is a repeated request, because such a client has the same identity in
        # all its transactions. The request is treated as a repetition.
        if state.status.is_commit is end.is_commit:
            return Ended()
        return Ended(error=ErrorCode.INVALID_TXN_STATE)

    @judges
    def _judge_end_tv2(self, end: EndTransaction) -> Ended | None:
        """Return the response to a client of transaction version 2, or None if its transaction (with or without
        partitions) must be decided.
        """
        state = self.table.get(end.transactional_id)
        if not _is_valid(end.transactional_id):
            return Ended(error=ErrorCode.INVALID_REQUEST)
        match = Match.FOREIGN if state is None else state.match(end.identity)
        if state is None or match is Match.FOREIGN:
            return Ended(error=ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if match is Match.CURRENT:
            return self._judge_current_end(end, state)
        if match is Match.STALE or state.status in (
            TransactionStatus.EMPTY,
            TransactionStatus.ONGOING,
        ):
            # Another transaction has begun since the decision, or the producer has got a new identity.
            return Ended(error=ErrorCode.PRODUCER_FENCED)
        if state.status.is_commit is end.is_commit:
            return self._ended(end)
        if state.ended_by in _ABORTED_BY_OTHERS:
            return Ended(error=ErrorCode.TRANSACTION_ABORTABLE)
        return Ended(error=ErrorCode.INVALID_TXN_STATE)

    def _judge_current_end(self, end: EndTransaction, state: Transaction) -> Ended | None:
        is_open = state.status is TransactionStatus.ONGOING
        # Members of a step of staged writes are decided together, by CompleteStep.
        if state.staged is not None or (end.is_commit and not is_open):
            return Ended(error=ErrorCode.INVALID_TXN_STATE)
        if state.needs_fresh_id and not state.status.is_decided and not self.reserve:
            return Ended(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return None

    def handle_abort(
        self, request_id: RequestId, abort: AbortTransaction, *, now_ms: int, wall_ms: int
    ) -> TransactionStep:
        """Abort a transaction on request of an operator. The producer is not fenced: it may still send an abort of this
        transaction, and then begin its next one.
        """
        refusal = self._refuse_abort(abort)
        if refusal is not None:
            return respond(request_id, refusal)
        state = self.table.get(abort.transactional_id)
        assert state is not None
        if state.staged is not None:
            step = self.staged.abort(
                abort.transactional_id, state, EndedBy.OPERATOR, now_ms=now_ms, wall_ms=wall_ms
            )
            return step + respond(request_id, Aborted())
        step = self.decide(
            abort.transactional_id,
            state,
            is_commit=False,
            ended_by=EndedBy.OPERATOR,
            is_bumped=True,
            now_ms=now_ms,
            wall_ms=wall_ms,
        )
        return step + respond(request_id, Aborted())

    @judges
    def _refuse_abort(self, abort: AbortTransaction) -> Aborted | None:
        name, state = abort.transactional_id, self.table.get(abort.transactional_id)
        if state is None:
            return Aborted(
                error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                error_message=f"the transactional id {name} does not exist",
            )
        if state.status is not TransactionStatus.ONGOING and state.staged is None:
            return Aborted(
                error=ErrorCode.INVALID_TXN_STATE,
                error_message=f"{name} has no open transaction; its state is {state.status.kafka_name}",
            )
        if state.is_prepared and not abort.is_forced:
            return Aborted(
                error=ErrorCode.INVALID_TXN_STATE,
                error_message=f"{name} is prepared and waits for its step: to abort it anyway, set is_forced (--force)",
            )
        if state.needs_fresh_id and not self.reserve:
            return Aborted(
                error=ErrorCode.COORDINATOR_NOT_AVAILABLE,
                error_message="the coordinator waits for new producer ids from the controller: try again",
            )
        return None

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
    ) -> TransactionStep:
        """Decide an open transaction. The caller must have checked that there is a new producer id if one is needed."""
        fresh_id: ProducerId | None = None
        if is_bumped and state.needs_fresh_id:
            fresh_id = self.reserve.take()
        decided = state.decided(
            fresh_id, is_commit=is_commit, ended_by=ended_by, is_bumped=is_bumped, wall_ms=wall_ms
        )
        order = self._send_markers(transactional_id, decided, now_ms=now_ms)
        return self.move(transactional_id, decided) + Step(orders=(order,))

    def _send_markers(
        self, transactional_id: TransactionalId, state: Transaction, *, now_ms: int
    ) -> SendMarkers:
        assert state.partitions, f"a decision of {transactional_id} without partitions"
        decision = self.markers_due.begin(transactional_id, state.partitions, now_ms=now_ms)
        return SendMarkers(
            decision=decision,
            transactional_id=transactional_id,
            producer_id=state.producer_id,
            marker_epoch=state.producer_epoch,
            is_commit=state.status.is_commit,
            is_bumped=state.is_bumped,
            partitions=state.partitions,
        )

    def handle_marked(
        self,
        decision: int,
        partition: TransactionPartition,
        error: ErrorCode,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> TransactionStep:
        """Handle the response of a partition leader to a marker. The last acknowledgement completes the transaction.

        After some error codes the marker sender sends the marker again; this method ignores these codes.
        """
        if error not in _MARKER_DONE:
            return NOTHING
        due = self.markers_due.acknowledge(decision, partition)
        if due is None:
            return NOTHING
        state = self.table.get(due.transactional_id)
        assert state is not None, f"{due.transactional_id} was deleted before its completion"
        completed = state.completed(wall_ms=wall_ms)
        report = TransactionCompleted(
            transactional_id=due.transactional_id,
            is_commit=completed.status.is_commit,
            ended_by=completed.ended_by,
            open_ms=max(state.update_ms - state.start_ms, 0),
            decided_for_ms=now_ms - due.decided_ms,
        )
        step = self.move(due.transactional_id, completed) + Step(orders=(report,))
        for held in self.held.take(due.transactional_id):
            step += self._handle_held(held, now_ms=now_ms, wall_ms=wall_ms)
        return step

    def _hold(
        self, request_id: RequestId, request: HoldableRequest, *, now_ms: int
    ) -> TransactionStep:
        deadline_ms = now_ms + self.settings.completion_wait_max_ms
        if request.wait_until_ms is not None:
            deadline_ms = min(request.wait_until_ms, now_ms + HELD_MS_MAX)
        held = HeldRequest(request_id, request)
        if self.held.hold(request.transactional_id, held, deadline_ms=deadline_ms):
            return NOTHING
        return respond(request_id, _refusal(request, ErrorCode.CONCURRENT_TRANSACTIONS))

    def _handle_held(
        self, held: HeldRequest[HoldableRequest], *, now_ms: int, wall_ms: int
    ) -> TransactionStep:
        match held.request:
            case InitProducer() as init:
                return self.handle_init(held.request_id, init, now_ms=now_ms, wall_ms=wall_ms)
            case AddPartitions() as add:
                return self.handle_add(held.request_id, add, now_ms=now_ms, wall_ms=wall_ms)
            case EndTransaction() as end:
                return self.handle_end(held.request_id, end, now_ms=now_ms, wall_ms=wall_ms)

    def tick(self, *, now_ms: int, wall_ms: int, can_write: bool = True) -> TransactionStep:
        """Refuse requests that have waited too long, abort transactions that timed out, and delete expired ids.

        The host calls this a few times a second. `can_write` is False if the partition has too few in-sync replicas.
        Nothing is decided then, because the shard would be loaded again after each failed write.
        """
        step: TransactionStep = Step(
            responses=tuple(
                Response(held.request_id, _refusal(held.request, ErrorCode.CONCURRENT_TRANSACTIONS))
                for held in self.held.take_expired(now_ms)
            )
        )
        if not can_write:
            return step
        for _ in range(self.settings.steps_of_tick_max):
            transactional_id = self.table.timed_out(now_ms)
            if transactional_id is None:
                break
            step += self._time_out(transactional_id, now_ms=now_ms, wall_ms=wall_ms)
        step += self.staged.tick(now_ms=now_ms, wall_ms=wall_ms)
        for transactional_id in self.table.expired(now_ms=now_ms, wall_ms=wall_ms):
            step += self.move(transactional_id, None)
        return step

    def _time_out(
        self, transactional_id: TransactionalId, *, now_ms: int, wall_ms: int
    ) -> TransactionStep:
        state = self.table.get(transactional_id)
        assert state is not None, f"{transactional_id} has a deadline and no state"
        assert state.has_timeout or state.has_lease, f"{transactional_id} has a deadline: {state}"
        if state.needs_fresh_id and not self.reserve:
            self.table.start_timeout(transactional_id, now_ms + _POSTPONED_MS)
            return NOTHING
        if state.has_lease:
            return self.staged.abort(
                transactional_id, state, EndedBy.TIMEOUT, now_ms=now_ms, wall_ms=wall_ms
            )
        return self.decide(
            transactional_id,
            state,
            is_commit=False,
            ended_by=EndedBy.TIMEOUT,
            is_bumped=True,
            now_ms=now_ms,
            wall_ms=wall_ms,
        )

    def loaded(self, *, now_ms: int, wall_ms: int) -> TransactionStep:
        """Finish a load: send the markers of all decided transactions that are not complete, and start all timeouts."""
        self.table.loaded(now_ms=now_ms, wall_ms=wall_ms)
        self.staged.loaded(now_ms=now_ms)
        orders = [
            self._send_markers(transactional_id, state, now_ms=now_ms)
            for transactional_id, state in self.table.decided()
        ]
        return Step(orders=tuple(orders))

    def move(self, transactional_id: TransactionalId, state: Transaction | None) -> TransactionStep:
        """Replay the record of a state change, and return the step that appends it. `MOVES` must allow the change,
        unless only the ledger (which steps of a staged write are complete) changes.
        """
        before = self.table.get(transactional_id)
        moved_from = None if before is None else before.status
        moved_to = None if state is None else state.status
        is_of_ledger = (
            before is not None
            and state is not None
            and replace(before, ledger=state.ledger, update_ms=state.update_ms) == state
        )
        assert is_of_ledger or moved_to in MOVES[moved_from], (
            f"{transactional_id}: {moved_from} to {moved_to}"
        )
        record = TransactionRecord(transactional_id, state)
        self.table.replay(record)
        return Step((record,))


def _is_valid(transactional_id: str) -> bool:
    return bool(transactional_id) and len(transactional_id.encode()) <= ID_BYTES_MAX


def _was_aborted_by_others(state: Transaction) -> bool:
    is_of_last = state.status.is_decided or state.status is TransactionStatus.COMPLETE_ABORT
    return is_of_last and state.ended_by in _ABORTED_BY_OTHERS


def _refusal(request: HoldableRequest, error: ErrorCode) -> Any:
    match request:
        case InitProducer():
            return Initialized(error=error)
        case AddPartitions():
            return Added(error=error)
        case EndTransaction():
            return Ended(error=error)


def partition_key(transactional_id: str) -> str:
    """Return the text whose hash determines the partition: the id or, for a slot of staged writes, the name of its
    query, so that all slots are in the same partition as the ledger.
    """
    return transactional_id.partition(SLOT_SEPARATOR)[0]

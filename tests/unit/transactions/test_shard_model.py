"""A coordinator's shard compared with a model of what clients see, for any order of requests,
acknowledgements, failovers and clocks.

The model has no records, and no previous and next producer ids. It has the producer id and epoch of
the owner, those of the previous owner if it may still repeat its request, and whether a transaction
is open, ending or neither.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs

from odradek_broker.coordinator_step import RequestId
from odradek_broker.transactions.identity import ProducerIdentity
from odradek_broker.transactions.messages import (
    AbortTransaction,
    AddPartitions,
    EndTransaction,
    InitProducer,
)
from odradek_broker.transactions.transaction import TransactionPartition
from odradek_protocol.identity import ProducerEpoch
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.transactions.coordinator import (
    FIRST,
    ORDERS,
    SECOND,
    THIRD,
    TIMEOUT_MS,
    Coordinator,
    identity,
)

HELD = "held"
FRESH = identity(-7, 0)  # the model does not know which producer id comes next
WAIT_MS, GRACE_MS = 200, 3_000


@dataclass
class Model:
    """What clients may see of one transactional id."""

    owner: ProducerIdentity
    before: ProducerIdentity | None = None
    open: set[TransactionPartition] = field(default_factory=set)
    unmarked: set[TransactionPartition] | None = None
    outcome: bool | None = None  # of the last transaction, if no producer took over since
    was_aborted_by_others: bool = False
    deadline_ms: int = 0
    began_wall_ms: int = 0
    held: list[tuple[RequestId, Any, int]] = field(default_factory=list)

    def bump(self, *, forgets: bool) -> None:
        self.before = None if forgets else self.owner
        if self.owner.epoch == 32_766:
            self.owner = FRESH
        else:
            self.owner = structs.replace(self.owner, epoch=ProducerEpoch(self.owner.epoch + 1))

    def decide(self, is_commit: bool, *, bumps: bool, by: str = "client") -> None:
        self.unmarked, self.open = set(self.open), set()
        self.outcome, self.was_aborted_by_others = is_commit, by in ("time-out", "operator")
        if bumps:
            self.bump(forgets=by == "fence")

    def init(self, present: ProducerIdentity | None) -> Any:
        is_owner = present is None or present == self.owner
        if not is_owner and (present != self.before or self.open):
            return ErrorCode.PRODUCER_FENCED
        if self.open:
            self.decide(False, bumps=True, by="fence" if present is None else "client")
        if self.unmarked is not None:
            return HELD
        if is_owner:
            self.bump(forgets=present is None)
            self.outcome = None
        return ErrorCode.NONE

    def add(self, request: AddPartitions, now_ms: int, wall_ms: int) -> Any:
        if request.identity != self.owner:
            return self.refused(request.identity, is_tv2=request.is_tv2)
        if self.unmarked is not None:
            return HELD
        if not self.open:
            self.deadline_ms, self.began_wall_ms = now_ms + TIMEOUT_MS, wall_ms
            self.outcome = None
        self.open |= set(request.partitions)
        return ErrorCode.NONE

    def refused(self, present: ProducerIdentity, *, is_tv2: bool) -> ErrorCode:
        if present == self.before and self.outcome is False and self.was_aborted_by_others:
            if is_tv2:
                return ErrorCode.TRANSACTION_ABORTABLE
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.PRODUCER_FENCED

    def end(self, request: EndTransaction) -> Any:
        is_owner, is_commit = request.identity == self.owner, request.is_commit
        if is_owner and self.open:
            self.decide(is_commit, bumps=request.is_tv2)
            return ErrorCode.NONE
        if not request.is_tv2:
            if not is_owner:
                return self.refused(request.identity, is_tv2=False)
            return ErrorCode.NONE if self.outcome is is_commit else ErrorCode.INVALID_TXN_STATE
        if is_owner:
            if is_commit:
                return ErrorCode.INVALID_TXN_STATE
            if self.unmarked is not None:
                return HELD
            self.outcome, self.was_aborted_by_others = False, False
            self.bump(forgets=False)
            return ErrorCode.NONE
        if request.identity != self.before or self.outcome is None:
            return ErrorCode.PRODUCER_FENCED
        if self.outcome is is_commit:
            return ErrorCode.NONE
        if self.was_aborted_by_others:
            return ErrorCode.TRANSACTION_ABORTABLE
        return ErrorCode.INVALID_TXN_STATE


class ShardMachine(RuleBasedStateMachine):
    """Runs a shard and the model side by side.

    The transactional id starts a few epochs before they run out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator()
        self.coordinator.init()
        state = structs.replace(self.coordinator.state, producer_epoch=ProducerEpoch(32_763))
        self.coordinator.put(state)
        self.model = Model(owner=identity(1_000, 32_763))
        self.told = [self.model.owner]
        self.acknowledged: list[tuple[int, TransactionPartition]] = []

    def present(self, choice: int) -> ProducerIdentity:
        """Return the newest producer id and epoch for choice 0, and older ones for higher
        choices.
        """
        return self.told[max(0, len(self.told) - 1 - choice)]

    def predict(self, request: Any) -> Any:
        match request:
            case InitProducer():
                return self.model.init(request.identity)
            case AddPartitions():
                return self.model.add(request, self.coordinator.now_ms, self.coordinator.wall_ms)
            case EndTransaction():
                return self.model.end(request)

    def settle_owner(self) -> None:
        """Learn which new producer id the shard allocated; it must never have been used before."""
        if self.model.owner != FRESH:
            return
        owner = self.coordinator.state.next_identity
        assert owner.epoch == 0
        assert owner.producer_id not in {seen.producer_id for seen in self.told}
        self.model.owner = owner

    def check(self, request_id: RequestId, request: Any, expected: Any) -> None:
        self.settle_owner()
        if expected == HELD:
            assert request_id not in self.coordinator.responses
            deadline_ms = self.coordinator.now_ms + WAIT_MS
            self.model.held.append((request_id, request, deadline_ms))
            return
        response = self.coordinator.responses[request_id]
        # Which of the two says that an identity is gone depends on how long it has been gone.
        gone = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if expected is ErrorCode.PRODUCER_FENCED and not isinstance(request, InitProducer):
            assert response.error in gone
        else:
            assert response.error is expected, (request, expected)
        if expected is not ErrorCode.NONE or isinstance(request, AddPartitions):
            return
        is_old = isinstance(request, EndTransaction) and not request.is_tv2
        identity_told = (
            response.identity if isinstance(request, InitProducer) else response.next_identity
        )
        assert identity_told == (None if is_old else self.model.owner)
        if not is_old and identity_told != self.told[-1]:
            assert identity_told not in self.told, "an identity was given out twice"
            self.told.append(identity_told)

    def ask(self, request: Any) -> None:
        self.settle_owner()
        expected = self.predict(request)
        self.check(self.coordinator.ask_later(request), request, expected)

    @rule(choice=st.none() | st.integers(0, 3))
    def init(self, choice: int | None) -> None:
        present = None if choice is None else self.present(choice)
        self.ask(InitProducer(transactional_id=ORDERS, timeout_ms=TIMEOUT_MS, identity=present))

    @rule(
        choice=st.sampled_from([0, 0, 0, 1, 2]),
        partitions=st.sets(st.sampled_from([FIRST, SECOND, THIRD]), min_size=1).map(sorted),
        is_tv2=st.booleans(),
    )
    def add(self, choice: int, partitions: list[TransactionPartition], is_tv2: bool) -> None:
        self.ask(
            AddPartitions(
                transactional_id=ORDERS,
                identity=self.present(choice),
                partitions=tuple(partitions),
                is_tv2=is_tv2,
            )
        )

    @rule(choice=st.sampled_from([0, 0, 0, 1, 2]), is_commit=st.booleans(), is_tv2=st.booleans())
    def end(self, choice: int, is_commit: bool, is_tv2: bool) -> None:
        self.ask(
            EndTransaction(
                transactional_id=ORDERS,
                identity=self.present(choice),
                is_commit=is_commit,
                is_tv2=is_tv2,
            )
        )

    @rule()
    def operator_aborts(self) -> None:
        is_open = bool(self.model.open)
        response = self.coordinator.ask(AbortTransaction(transactional_id=ORDERS))
        assert (response.error is ErrorCode.NONE) == is_open
        if is_open:
            self.model.decide(False, bumps=True, by="operator")
            self.settle_owner()

    @rule(choice=st.integers(0, 2))
    def acknowledge(self, choice: int) -> None:
        if self.model.unmarked is None:
            return
        order = self.coordinator.markers[-1]
        partition = sorted(self.model.unmarked)[choice % len(self.model.unmarked)]
        self.model.unmarked.discard(partition)
        is_last = not self.model.unmarked
        held, expected = [], []
        if is_last:
            self.model.unmarked = None
            held, self.model.held = self.model.held, []
        step = self.coordinator.shard.handle_marked(
            order.decision, partition, ErrorCode.NONE, **self.coordinator._clocks
        )
        self.coordinator.take(step)
        self.acknowledged.append((order.decision, partition))
        for request_id, request, _ in held:
            # A request that waits again keeps its id and gets a new deadline.
            expected.append((request_id, request, self.predict(request)))
            self.settle_owner_of_held()
        for request_id, request, prediction in expected:
            self.check_held(request_id, request, prediction)

    def settle_owner_of_held(self) -> None:
        if self.model.owner == FRESH:
            # Later held requests may have bumped its epoch already.
            self.model.owner = identity(self.coordinator.state.next_identity.producer_id, 0)

    def check_held(self, request_id: RequestId, request: Any, expected: Any) -> None:
        if expected == HELD:
            self.check(request_id, request, expected)
            return
        response = self.coordinator.responses[request_id]
        if expected is ErrorCode.PRODUCER_FENCED:
            assert response.error is not ErrorCode.NONE
            return
        assert response.error is expected
        told = getattr(response, "identity", None) or getattr(response, "next_identity", None)
        if expected is ErrorCode.NONE and told is not None and told not in self.told:
            self.told.append(told)

    @rule(choice=st.integers(0, 20))
    def acknowledge_late(self, choice: int) -> None:
        if self.acknowledged:
            decision, partition = self.acknowledged[choice % len(self.acknowledged)]
            before = self.coordinator.state
            step = self.coordinator.shard.handle_marked(
                decision, partition, ErrorCode.NONE, **self.coordinator._clocks
            )
            self.coordinator.take(step)
            assert self.coordinator.state == before

    @rule(elapsed_ms=st.sampled_from([1, 100, 200, 3_000, TIMEOUT_MS]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.coordinator.tick(elapsed_ms)
        now_ms, held = self.coordinator.now_ms, self.model.held
        for request_id, _, deadline_ms in held:
            if deadline_ms <= now_ms:
                error = self.coordinator.responses[request_id].error
                assert error is ErrorCode.CONCURRENT_TRANSACTIONS
        self.model.held = [waiting for waiting in held if waiting[2] > now_ms]
        if self.model.open and now_ms >= self.model.deadline_ms:
            self.model.decide(False, bumps=True, by="time-out")
        self.settle_owner()

    @rule(jump_ms=st.sampled_from([-3_600_000, 3_600_000]))
    def wall_clock_jumps(self, jump_ms: int) -> None:
        self.coordinator.wall_ms += jump_ms

    @rule()
    def coordinator_moves(self) -> None:
        self.coordinator.move()
        model = self.model
        model.held.clear()
        self.acknowledged.clear()
        if model.unmarked is not None:
            model.unmarked = set(self.coordinator.markers[-1].partitions)
        left_ms = model.began_wall_ms + TIMEOUT_MS - self.coordinator.wall_ms
        left_ms = max(min(left_ms, TIMEOUT_MS), GRACE_MS)
        model.deadline_ms = self.coordinator.now_ms + left_ms

    @invariant()
    def states_agree(self) -> None:
        state, model = self.coordinator.state, self.model
        assert state.next_identity == model.owner
        if model.unmarked is not None:
            assert state.status.is_decided
            assert state.status.is_commit is model.outcome
        else:
            assert not state.status.is_decided
            assert state.partitions == model.open

    @invariant()
    def no_decision_was_revised(self) -> None:
        statuses = [record.state.status for record in self.coordinator.log if record.state]
        for status, following in itertools.pairwise(statuses):
            if status.is_decided and not following.is_decided:
                assert following.is_commit is status.is_commit
                assert following.name.startswith("COMPLETE")


TestShard = ShardMachine.TestCase
TestShard.settings = settings(max_examples=60, stateful_step_count=40)

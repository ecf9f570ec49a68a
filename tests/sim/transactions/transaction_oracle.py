"""The invariants of transactions that must be true after each event (T1-T11 and T14), checked with all logs.

The oracle reads the appends of each leader and the committed records, in `__transaction_state`, `__consumer_offsets`
and the data partitions. It decodes records with the production code's codecs, and checks them with its own code:

    T1    clients get no producer id and epoch twice; epochs of a producer id only rise
    T2    a marker has the outcome of a decision that was committed before
    T3    a transaction has one decision, and a marker ends no other transaction
    T4    when a transaction is over, each of its partitions has a marker below the high watermark
    T5    a batch's transaction has registered the partition before the batch, and has its marker after the batch
    T6    no batch of a producer has an epoch below that of an earlier marker
    T7    a read_committed reader passes no record of an open transaction
    T8    a read_committed reader gets exactly the committed records of its range
    T9    the end of a transaction that is confirmed to a client is committed; no broker appends a
          marker of a coordinator that it knows to be replaced
    T10   the committed and pending offsets of a group coordinator are those in its log
    T11   steps of a query only rise, members of a step are committed only with the query's ledger,
          and no prepared member times out
    T14   no transaction times out before its time-out has passed by the true clock

An append is checked when it is made, against the records that are committed then. A violation counts only when the
append is committed, because the appends of a deposed leader are truncated."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from odradek_broker.coordination.placement import absolute_java_hash
from odradek_broker.partition.effects import Role
from odradek_broker.transactions import transaction_codec
from odradek_broker.transactions.identity import MARKER_EPOCH_MAX, ProducerIdentity
from odradek_broker.transactions.messages import EndTransaction
from odradek_broker.transactions.transaction import (
    EndedBy,
    Transaction,
    TransactionalId,
    TransactionStatus,
)
from odradek_broker.transactions.transaction_shard import partition_key
from odradek_protocol.identity import SLOT_SEPARATOR, TopicIdPartition
from odradek_protocol.records import (
    BatchHeader,
    ControlType,
    decode_batch,
    read_control,
)
from odradek_protocol.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.sim.invariants import Invariants
from tests.sim.scheduler import MS
from tests.sim.transactions.log_fold import batches, values_of
from tests.sim.transactions.offset_fold import FoldedOffsets

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess, ObservedHost
    from tests.sim.cluster import Cluster

STAGED_LEASE_MS: Final = 2_500
_LOAD_GRACE_MS: Final = 3_000
_SLACK_MS: Final = 2
When = tuple[int, int]
"""The time at which a record was appended, and the leader epoch."""


@dataclass(slots=True, eq=False)
class Known:
    """One transaction, as `__transaction_state` has it. `outcome` is None until a decision is committed."""

    transactional_id: TransactionalId
    identity: ProducerIdentity
    registered: set[TopicIdPartition]
    begun: When  # of its first record
    outcome: bool | None = None
    marker_epoch: int = -1
    start_ms: int = -1
    is_over: bool = False
    ended: set[TopicIdPartition] = field(default_factory=set)

    def __str__(self) -> str:
        outcome = {None: "open", True: "committed", False: "aborted"}[self.outcome]
        return f"{outcome} transaction {self.identity} of {self.transactional_id}"


@dataclass(slots=True)
class CommittedLog:
    """The committed records of one partition."""

    end: int = 0
    offsets: list[int] = field(default_factory=list)
    values: dict[int, tuple[int, Known]] = field(default_factory=dict)
    open: dict[int, Known] = field(default_factory=dict)  # by producer id
    epochs: dict[int, int] = field(default_factory=dict)  # of the last marker, by producer id


class TransactionOracle(Invariants):
    """The invariants of a cluster whose clients use transactions."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.transactions: dict[int, list[Known]] = defaultdict(list)  # by producer id
        self.states: dict[TransactionalId, Transaction] = {}
        self.present: dict[TransactionalId, Known] = {}
        self.logs: dict[TopicIdPartition, CommittedLog] = defaultdict(CommittedLog)
        self.topics: dict[TopicIdPartition, str] = {}
        self._epochs: dict[int, int] = {}  # the highest committed epoch of each producer id
        self._told: set[ProducerIdentity] = set()
        self._scanned: dict[tuple[bytes, TopicIdPartition, int], int] = {}
        self._judged: dict[tuple[TopicIdPartition, int, int], Known | str] = {}
        self._appended_us: dict[tuple[TopicIdPartition, int, int], int] = {}
        self._heard: dict[tuple[bytes, int], int] = {}
        self._impatient: set[bytes] = set()

    # --- appends and commits ----------------------------------------------------------------------

    def after_step(self, broker: BrokerProcess, host: ObservedHost) -> None:
        super().after_step(broker, host)
        self._shorten_leases(broker)
        replica, partition = host.replica, host.partition
        if replica.role is not Role.LEADER:
            return
        self.topics.setdefault(partition, host.topic)
        key = (broker.incarnation, partition, replica.leader_epoch)
        start = min(self._scanned.get(key, replica.high_watermark), replica.log_end)
        committed = self.logs[partition]
        if start == replica.log_end and replica.high_watermark <= committed.end:
            self._scanned[key] = start
            return
        storage = broker.node.disk.storage
        # The disk faults are for the broker, not for the reads of the oracle.
        fault, storage.fault = storage.fault, None
        try:
            for data, at, header in batches(host.log, start, replica.log_end):
                if header.partition_leader_epoch == replica.leader_epoch:
                    self._append(broker, host, data, at, header)
            self._scanned[key] = replica.log_end
            while committed.end < replica.high_watermark:
                for data, at, header in batches(host.log, committed.end, replica.high_watermark):
                    self._commit(partition, host.topic, data, at, header)
                    committed.end = header.next_offset
        finally:
            storage.fault = fault

    def _shorten_leases(self, broker: BrokerProcess) -> None:
        """Shorten the lease of staged members on this broker, so that they time out within a run. A replica's first
        step comes before any transaction is coordinated here, so this call is early enough."""
        if broker.incarnation not in self._impatient and broker.broker is not None:
            self._impatient.add(broker.incarnation)
            kind = broker.broker.transactions.coordinator._kind
            kind._settings = replace(kind._settings, staged_lease_ms=STAGED_LEASE_MS)

    def _append(
        self,
        broker: BrokerProcess,
        host: ObservedHost,
        data: bytes,
        at: int,
        header: BatchHeader,
    ) -> None:
        place = (host.partition, header.base_offset, header.partition_leader_epoch)
        if host.topic == TRANSACTIONS_TOPIC:
            self._appended_us[place] = self.cluster.scheduler.now_us
        elif header.is_control:
            known = self._judged[place] = self._decided(host.partition, data, at, header)
            control = read_control(data, at)
            # The group coordinator checks the epoch in the event loop iteration before the append.
            is_ordered = host.topic == OFFSETS_TOPIC
            if isinstance(known, Known) and control.coordinator_epoch >= 0 and not is_ordered:
                self._fenced(broker, host, known, control.coordinator_epoch)
        elif header.is_transactional:
            self._judged[place] = self._registered(host.partition, header)

    def _registered(self, partition: TopicIdPartition, header: BatchHeader) -> Known | str:
        """Check T5: return the transaction of a batch that is being appended, or the violation."""
        identity = ProducerIdentity(header.producer_id, header.producer_epoch)
        for known in reversed(self.transactions[header.producer_id]):
            if known.identity == identity and partition in known.registered:
                if known.is_over:
                    return f"T5: batch of {known}, which is over"
                return known
        return f"T5: batch of {identity} in {partition}, which no transaction has registered"

    def _decided(
        self, partition: TopicIdPartition, data: bytes, at: int, header: BatchHeader
    ) -> Known | str:
        """Check T2: return the transaction of a marker that is being appended, or the violation."""
        control = read_control(data, at)
        is_commit = control.type is ControlType.COMMIT
        is_own = control.coordinator_epoch < 0
        for known in reversed(self.transactions[header.producer_id]):
            epoch = known.identity.epoch if is_own else known.marker_epoch
            if epoch == header.producer_epoch and partition in known.registered:
                if known.outcome is is_commit:
                    return known
                if is_own:
                    return f"T2: the leader of {partition} ends {known} by itself"
        what = "commit" if is_commit else "abort"
        epoch = header.producer_epoch
        return f"T2: {what} marker of ({header.producer_id}, {epoch}) without a decision"

    def _fenced(self, broker: BrokerProcess, host: ObservedHost, known: Known, epoch: int) -> None:
        """Check T9: a broker that knows a newer coordinator appends no marker of an older one."""
        topic = broker.table.image.topic(TRANSACTIONS_TOPIC)
        index = absolute_java_hash(partition_key(known.transactional_id)) % len(topic.partitions)
        key = (broker.incarnation, index)
        heard = max(self._heard.get(key, -1), topic.partitions[index].leader_epoch)
        if epoch < heard:
            text = f"marker of {known} in {host.partition} from coordinator epoch {epoch}, but {heard} is known"
            self.fail("T9", text)
        self._heard[key] = epoch

    def _commit(
        self, partition: TopicIdPartition, topic: str, data: bytes, at: int, header: BatchHeader
    ) -> None:
        if topic == TRANSACTIONS_TOPIC:
            self._states_committed(partition, data, at, header)
            return
        if not header.is_transactional:
            return
        log = self.logs[partition]
        producer = header.producer_id
        place = (partition, header.base_offset, header.partition_leader_epoch)
        judged = self._judged.pop(place, None)
        if judged is None:
            # A leader that was killed in the middle of the append was not observed.
            judged = (
                self._decided(partition, data, at, header)
                if header.is_control
                else self._registered(partition, header)
            )
        if isinstance(judged, str):
            name, _, text = judged.partition(": ")
            self.fail(name, f"{text} at {header.base_offset}")
        present = log.open.get(producer)
        where = f"at {header.base_offset} of {partition}"
        if present is not None and present is not judged:
            self.fail("T3", f"batch or marker of {judged} {where} meets {present}")
        if header.is_control:
            log.open.pop(producer, None)
            log.epochs[producer] = max(log.epochs.get(producer, -1), header.producer_epoch)
            judged.ended.add(partition)
            return
        if header.producer_epoch < log.epochs.get(producer, -1):
            self.fail("T6", f"batch of {judged} {where} after epoch {log.epochs[producer]}")
        if partition in judged.ended:
            self.fail("T5", f"batch of {judged} {where} after its marker")
        log.open[producer] = judged
        if topic != OFFSETS_TOPIC:
            for offset, value in values_of(data, at, header):
                log.offsets.append(offset)
                log.values[offset] = (value, judged)

    # --- __transaction_state ----------------------------------------------------------------------

    def _states_committed(
        self, partition: TopicIdPartition, data: bytes, at: int, header: BatchHeader
    ) -> None:
        place = (partition, header.base_offset, header.partition_leader_epoch)
        appended_us = self._appended_us.get(place, -1)
        records = [
            record
            for raw in decode_batch(data, at)
            if (record := transaction_codec.decode(raw.key or b"", raw.value)) is not None
        ]
        steps = {
            record.transactional_id: record.state.ledger.last_step
            for record in records
            if record.state is not None and record.state.ledger is not None
        }
        for record in records:
            if record.state is not None:
                self._moved(
                    record.transactional_id,
                    record.state,
                    (appended_us, header.partition_leader_epoch),
                    steps,
                )

    def _moved(
        self,
        name: TransactionalId,
        state: Transaction,
        when: When,
        steps: dict[TransactionalId, int],
    ) -> None:
        before = self.states.get(name)
        self.states[name] = state
        if before is not None and before.producer_id == state.producer_id:
            if state.producer_epoch < before.producer_epoch:
                self.fail("T1", f"{name} goes back from {before} to {state}")
        elif any(held.transactional_id != name for held in self.transactions[state.producer_id]):
            self.fail("T1", f"{name} gets producer id {state.producer_id} of another id")
        self._check_ledger(name, before, state, steps)
        for given in (
            ProducerIdentity(state.producer_id, state.producer_epoch),
            state.next_identity,
        ):
            epoch = self._epochs.get(given.producer_id, -1)
            self._epochs[given.producer_id] = max(epoch, given.epoch)
        present = self.present.get(name)
        if state.status is TransactionStatus.ONGOING:
            identity = ProducerIdentity(state.producer_id, state.producer_epoch)
            if present is None or present.outcome is not None:
                self._over(present)
                present = self._begin(name, identity, when)
            elif present.identity != identity:
                self.fail("T3", f"{present} becomes {state} without a decision")
            present.registered, present.start_ms = _places(state), state.start_ms
        elif state.status.is_decided:
            self._decide(name, present, state, when)
        elif present is not None:
            if present.outcome is None:
                self.fail("T3", f"{present} becomes {state} without a decision")
            self._over(present)

    def _begin(self, name: TransactionalId, identity: ProducerIdentity, when: When) -> Known:
        known = Known(name, identity, set(), when)
        self.present[name] = known
        self.transactions[identity.producer_id].append(known)
        return known

    def _decide(
        self, name: TransactionalId, present: Known | None, state: Transaction, when: When
    ) -> None:
        assert state.last_outcome is not None, state
        identity = state.last_outcome.identity
        began = None if present is None or present.outcome is None else present.start_ms
        is_next = began not in (None, state.start_ms)
        if present is None or present.is_over or present.identity != identity or is_next:
            # The transaction began and was decided in one iteration of the event loop, so this is its first record.
            # If the transaction before it was completed in that iteration too, there is no record of its completion.
            if present is not None and present.outcome is None:
                self.fail("T3", f"{present} becomes {state} without a decision")
            self._over(present)
            present = self._begin(name, identity, when)
        if present.outcome is not None and present.outcome is not state.status.is_commit:
            self.fail("T3", f"{present} is decided again: {state}")
        if present.outcome is None and state.ended_by is EndedBy.TIMEOUT:
            self._timed_out(present, state, when)
        present.registered, present.start_ms = _places(state), state.start_ms
        present.outcome = state.status.is_commit
        present.marker_epoch = state.producer_epoch

    def _timed_out(self, known: Known, state: Transaction, when: When) -> None:
        """Check T14: an open transaction times out only after its whole timeout. If a coordinator has loaded the
        transaction since it began, a grace period suffices."""
        if when[0] < 0 or known.begun[0] < 0 or SLOT_SEPARATOR in known.transactional_id:
            return
        elapsed_ms = (when[0] - known.begun[0]) // MS
        least_ms = state.timeout_ms if when[1] == known.begun[1] else 0
        if elapsed_ms < min(least_ms, state.timeout_ms) - _SLACK_MS and not self._was_loaded(known):
            self.fail("T14", f"{known} timed out after {elapsed_ms} of {state.timeout_ms} ms")
        if elapsed_ms < min(_LOAD_GRACE_MS, state.timeout_ms) - _SLACK_MS:
            self.fail("T14", f"{known} timed out after {elapsed_ms} ms")

    def _was_loaded(self, known: Known) -> bool:
        """Return whether a coordinator failed and was loaded again in the same leader epoch. Then only the grace period
        counts."""
        return any(
            hosted.breaks
            for node in self.cluster.brokers.values()
            if node.life is not None and node.life.broker is not None
            for hosted in node.life.broker.transactions.coordinator._host._hosted.values()
        )

    def _over(self, known: Known | None) -> None:
        """Check T4: when a transaction is over, each of its partitions that still exists has its committed marker."""
        if known is None or known.is_over:
            return
        known.is_over = True
        image = self.cluster.log.image
        for partition in known.registered:
            if partition.topic_id in image.topics and partition not in known.ended:
                self.fail("T4", f"{known} is over without its marker in {partition}")

    def _check_ledger(
        self,
        name: TransactionalId,
        before: Transaction | None,
        state: Transaction,
        steps: dict[TransactionalId, int],
    ) -> None:
        """Check T11: the steps of a query only rise, and members of a step are committed only with the
        query's ledger."""
        if before is None:
            return
        if before.ledger is not None and (
            state.ledger is None or state.ledger.last_step < before.ledger.last_step
        ):
            self.fail("T11", f"the ledger of {name} goes from {before.ledger} to {state.ledger}")
        query, is_slot, _ = name.partition(SLOT_SEPARATOR)
        if not is_slot or before.staged is None or not state.status.is_decided:
            return
        if before.status is not TransactionStatus.ONGOING:
            return
        if state.status.is_commit and steps.get(TransactionalId(query), -1) < before.staged.step:
            self.fail("T11", f"{name} commits step {before.staged.step} without its ledger")
        if before.is_prepared and state.ended_by is EndedBy.TIMEOUT:
            self.fail("T11", f"{name} was prepared for step {before.staged.step}, and timed out")

    # --- responses to clients ---------------------------------------------------------------------

    def identity_told(self, name: str, identity: ProducerIdentity | None) -> None:
        """Check T1 and T9: the producer id and epoch that a client receives are committed, and no other client has
        them. Requests that waited for the same completion are decided in one step, which commits only the last of their
        epochs; the others are already fenced when their producers receive them."""
        assert identity is not None
        if identity in self._told:
            self.fail("T1", f"{name} receives {identity}, which was given before")
        if identity.epoch >= MARKER_EPOCH_MAX:
            self.fail("T1", f"{name} receives {identity}, whose epoch is too high")
        if identity.epoch > self._epochs.get(identity.producer_id, -1):
            self.fail("T9", f"{name} receives {identity}, which is not committed")
        self._told.add(identity)

    def end_told(self, request: EndTransaction) -> None:
        """Check T9: the end of a transaction that is confirmed to its client is committed."""
        outcomes = {
            known.outcome
            for known in self.transactions[request.identity.producer_id]
            if known.identity == request.identity
        }
        # An abort of a transaction without a registered partition has no outcome.
        if request.is_commit in outcomes or (not request.is_commit and outcomes <= {False}):
            return
        self.fail("T9", f"{request} is confirmed, but {outcomes} is committed")

    def committed_read(
        self,
        partition: TopicIdPartition,
        position: int,
        next_offset: int,
        records: tuple[tuple[int, int], ...],
    ) -> None:
        """Check T7 and T8: a reader passes no open transaction, and gets just the committed records of its range."""
        log = self.logs[partition]
        first, end = bisect_left(log.offsets, position), bisect_left(log.offsets, next_offset)
        expected = []
        for offset in log.offsets[first:end]:
            value, known = log.values[offset]
            if partition not in known.ended:
                self.fail(
                    "T7",
                    f"a reader passes offset {offset} of {partition}, which belongs to {known}",
                )
            if known.outcome:
                expected.append((offset, value))
        if list(records) != expected:
            text = f"[{position}, {next_offset}) of {partition} is {records}, not {expected}"
            self.fail("T8", text)

    # --- groups -----------------------------------------------------------------------------------

    def look_at_groups(self, broker: BrokerProcess) -> None:
        """Check T10 at coordinators that do not wait for an append: their committed and pending offsets are those in
        the log."""
        assert broker.broker is not None
        host = broker.broker.groups._host
        topic = self.cluster.log.image.topic(OFFSETS_TOPIC)
        for hosted in host._hosted.values():
            if hosted.state.value != "active" or hosted._writes or topic is None:
                continue
            replica = broker.host(TopicIdPartition(topic.topic_id, hosted.partition))
            if (
                replica is None
                or replica.is_failed
                or replica.replica.leader_epoch != hosted.leader_epoch
            ):
                continue
            folded = FoldedOffsets(replica.log)
            offsets = hosted.shard.table.offsets
            committed = {
                (group, str(partition)): commit.offset
                for group in offsets.groups()
                for partition, commit in offsets.of(group).items()
            }
            if committed != folded.committed:
                self.fail(
                    "T10",
                    f"the committed offsets are {committed}, but by the log {folded.committed}",
                )
            pending = {
                (group, str(partition))
                for group in offsets.pending.groups()
                for partition in offsets.pending.partitions_of(group)
            }
            if pending != folded.pending:
                self.fail(
                    "T10", f"the pending offsets are {pending}, but by the log {folded.pending}"
                )

    def unfinished(self) -> list[Known]:
        """Return the transactions that are not over yet (T13)."""
        return [known for known in self.present.values() if not known.is_over]


def _places(state: Transaction) -> set[TopicIdPartition]:
    return {TopicIdPartition(place.topic_id, place.partition) for place in state.partitions}

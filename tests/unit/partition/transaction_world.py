"""One partition with its leader's core and its log, and a coordinator; the test delivers the
messages.

The oracle checks each append: T2, T3 (a marker's outcome is what was decided), T5 (a batch belongs
to a transaction that was registered and has no marker in this log yet), T6 (no batch has an epoch
below an earlier marker's), and T9 (no marker of a coordinator is appended after this broker has
learned of a newer one).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from odradek_broker.log.producer_state import NO_COORDINATOR_EPOCH, ProducerStates, StoredBatch
from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.partition.events import Marker, ProducerBatch, RegistrationMode
from odradek_broker.partition.log_positions import LogAtOpen
from odradek_broker.partition.marker_writes import CoordinatorEpochs
from odradek_broker.partition.replica import Replica
from odradek_broker.partition.settings import ReplicaSettings
from odradek_protocol.identity import LeaderEpoch, Offset, ProducerEpoch
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.partition.story import PARTITION, view
from tests.worlds.transactions import PRODUCER, TRANSACTIONS, Coordinator, Transaction

HERE = "the partition"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch in the log, and the number of its transaction."""

    batch: ProducerBatch
    number: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A marker in the log; `number` is None if the leader wrote it by itself."""

    marker: Marker
    number: int | None


@dataclass(frozen=True, slots=True)
class Response:
    """A coordinator's response to a registration, in flight to the broker that sent the
    registration.
    """

    generation: int
    event: ev.TransactionVerified


@dataclass(frozen=True, slots=True)
class MarkerSent:
    """A marker in flight to the broker that led the partition when it was sent."""

    generation: int
    number: int
    marker: Marker


@dataclass(slots=True)
class Sent:
    """A batch that a client has sent, and its outcome."""

    batch: ProducerBatch
    number: int | None  # None: its transaction is known by its epoch
    code: ErrorCode | None = None


class TransactionWorld:
    """One partition and its coordinator.

    The partition has one replica in sync, so every append is committed.
    """

    def __init__(self, *, mode: RegistrationMode = RegistrationMode.ADD) -> None:
        self.mode = mode
        self.coordinator = Coordinator()
        self.log: list[Batch | Mark] = []
        self.now_ms = 0
        self.registrations: list[tuple[int, fx.RegisterTransaction]] = []
        self.responses: list[Response] = []
        self.markers: list[MarkerSent] = []
        self.sent: dict[int, Sent] = {}
        self.reports: list[fx.Effect] = []
        self.generation = 0
        self._requests = itertools.count(1)
        self._marking: dict[int, MarkerSent] = {}
        self._heard = 0
        self._lead()

    def _lead(self) -> None:
        """Let a broker become leader: its state is computed from the log, and its metadata is up to
        date.
        """
        self.generation += 1
        self.producers = ProducerStates()
        for offset, entry in enumerate(self.log):
            self._fold(offset, entry)
        coordinators = CoordinatorEpochs()
        coordinators.heard(TRANSACTIONS, LeaderEpoch(self.coordinator.coordinator_epoch))
        self._heard = self.coordinator.coordinator_epoch
        self.replica = Replica(
            partition=PARTITION,
            broker_id=1,
            settings=ReplicaSettings(),
            log=LogAtOpen(
                log_start=Offset(0),
                log_end=Offset(len(self.log)),
                durable_end=Offset(len(self.log)),
                high_watermark=Offset(len(self.log)),
                epochs=((LeaderEpoch(0), Offset(0)),) if self.log else (),
            ),
            producers=self.producers,
            attach_seqs=itertools.count(1),
            coordinators=coordinators,
        )
        self._step(
            ev.PartitionChanged(
                leader=1,
                leader_epoch=self.generation,
                partition_epoch=self.generation,
                replicas=(1,),
                isr=(1,),
                elr=(),
                min_insync_replicas=1,
                is_recovering=False,
                brokers=(view(1),),
            )
        )

    # What tests do.

    def send(
        self,
        epoch: int,
        sequence: int,
        *,
        number: int | None = None,
        acks: int = -1,
        timeout_ms: int = 60_000,
        mode: RegistrationMode | None = None,
    ) -> Sent:
        """Let a client send a batch of one record; the returned object shows its outcome."""
        request_id = next(self._requests)
        batch = ProducerBatch(PRODUCER, ProducerEpoch(epoch), sequence, sequence, True)
        sent = self.sent[request_id] = Sent(batch, number)
        produce = ev.ProduceRequested(
            request_id=request_id,
            record_count=1,
            acks=acks,
            deadline_ms=self.now_ms + timeout_ms,
            producer=batch,
        )
        self._step(
            ev.TransactionalProduceRequested(
                produce=produce, transactional_id="id", mode=mode or self.mode
            )
        )
        return sent

    def respond(self, index: int = 0) -> None:
        """Let the coordinator handle a registration; its response is then in flight."""
        generation, asked = self.registrations.pop(index)
        coordinator = self.coordinator
        code = coordinator.register(asked.mode, asked.producer_epoch, HERE)
        event = ev.TransactionVerified(
            guard=asked.guard,
            error_code=code,
            coordinator_partition=TRANSACTIONS,
            coordinator_epoch=LeaderEpoch(coordinator.coordinator_epoch),
            last_outcome=coordinator.last_outcome,
        )
        self.responses.append(Response(generation, event))

    def hear(self, index: int = 0) -> None:
        """Deliver a coordinator's response to the leader."""
        response = self.responses.pop(index)
        if response.generation == self.generation:
            self._heard = max(self._heard, response.event.coordinator_epoch)
            self._step(response.event)

    def register_all(self) -> None:
        """Deliver all registrations and their responses, and those that follow from them."""
        while self.registrations or self.responses:
            if self.registrations:
                self.respond()
            if self.responses:
                self.hear()

    def send_markers(self) -> None:
        """Let the coordinator send the markers that are due.

        It does not send a marker twice that has no response yet.
        """
        marker, deciding = self.coordinator.marker(), self.coordinator.deciding()
        if marker is None or deciding is None:
            return
        if HERE not in self.coordinator.unmarked:
            self.coordinator.marked(deciding.number, HERE, ErrorCode.NONE)
            return
        message = MarkerSent(self.generation, deciding.number, marker)
        if message not in self.markers:
            self.markers.append(message)

    def mark(self, index: int = 0, *, loses_response: bool = False, again: bool = False) -> None:
        """Deliver a marker to the leader; the response arrives at the coordinator unless it is lost."""
        message = self.markers[index] if again else self.markers.pop(index)
        if message.generation != self.generation:
            return
        request_id = next(self._requests)
        if not loses_response:
            self._marking[request_id] = message
        self._step(
            ev.MarkersRequested(
                request_id=request_id,
                markers=(message.marker,),
                deadline_ms=self.now_ms + 60_000,
            )
        )

    def end(self, *, is_commit: bool, is_bumped: bool | None = None) -> None:
        """Let the client end its transaction at the coordinator."""
        is_bumped = self.mode is RegistrationMode.ADD if is_bumped is None else is_bumped
        self.coordinator.end(is_commit=is_commit, is_bumped=is_bumped)

    def finish(self, *, is_commit: bool) -> None:
        """Complete the transaction, with its marker."""
        self.end(is_commit=is_commit)
        self.send_markers()
        self.mark()

    def move_leader(self, *, lost: int = 0) -> None:
        """Let another broker become leader, with all of the log except the last `lost` entries."""
        if lost:
            del self.log[-lost:]
        self.replica.step(ev.PartitionRemoved(), self.now_ms)
        for sent in self.sent.values():
            sent.code = sent.code or ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._lead()

    def tick(self, ms: int = 100) -> None:
        """Let time pass."""
        self.now_ms += ms
        self._step(ev.Tick())

    def settle(self) -> None:
        """End all faults: every message arrives, and lost messages are sent again."""
        for _ in range(10):
            self.register_all()
            self.send_markers()
            while self.markers:
                self.mark()
            self.tick()

    def shown(self) -> list[str]:
        """Return the log as short texts:

        `b0.1` is a batch of epoch 0 with sequence 1, `c1` and `a1` are commit and abort markers of
        epoch 1.
        """
        return [
            f"b{entry.batch.producer_epoch}.{entry.batch.base_sequence}"
            if isinstance(entry, Batch)
            else f"{'c' if entry.marker.is_commit else 'a'}{entry.marker.producer_epoch}"
            for entry in self.log
        ]

    # What the shell does.

    def _step(self, event: ev.Event) -> None:
        self._do(event, list(self.replica.step(event, self.now_ms)))

    def _do(self, event: ev.Event, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Append(request_id=request_id) if request_id is not None:
                    sent = self.sent[request_id]
                    number = sent.number
                    if number is None:
                        number = self._number_of(sent.batch.producer_epoch)
                    self._append([Batch(sent.batch, number)])
                    self._step(ev.Appended(end_offset=Offset(len(self.log))))
                case fx.AppendMarkers(markers=markers):
                    numbers = [self._number_of_marker(marker) for marker in markers]
                    self._append(
                        [Mark(marker, n) for marker, n in zip(markers, numbers, strict=True)]
                    )
                    self._step(ev.MarkersAppended(end_offset=Offset(len(self.log))))
                case fx.RespondToProduce():
                    self.sent[effect.request_id].code = effect.error_code
                case fx.AnswerMarkers():
                    message = self._marking.pop(effect.request_id, None)
                    (code,) = effect.error_codes
                    if message is not None and not self._is_of_a_deposed_one(message):
                        self.coordinator.marked(message.number, HERE, code)
                case fx.RegisterTransaction():
                    self.registrations.append((self.generation, effect))
                case fx.OrphanEnded() | fx.TransactionTorn():
                    self.reports.append(effect)

    def _is_of_a_deposed_one(self, message: MarkerSent) -> bool:
        """Return whether the response belongs to a deposed coordinator, which can no longer
        complete the transaction.
        """
        return message.marker.coordinator_epoch < self.coordinator.coordinator_epoch

    def _number_of(self, epoch: int) -> int:
        """Return the transaction of that epoch: with KIP-890 an epoch has at most one."""
        numbers = [t.number for t in self.coordinator.transactions if t.epoch == epoch]
        assert numbers, f"T5: a batch of epoch {epoch}, which has no transaction"
        return numbers[-1]

    def _number_of_marker(self, marker: Marker) -> int | None:
        if marker.coordinator_epoch == NO_COORDINATOR_EPOCH:
            return None
        numbers = [
            t.number
            for t in self.coordinator.transactions
            if t.outcome is marker.is_commit and t.marker_epoch == marker.producer_epoch
        ]
        assert numbers, f"T2: {marker} was never decided"
        return numbers[-1]

    def _append(self, entries: list[Batch | Mark]) -> None:
        for entry in entries:
            if isinstance(entry, Batch):
                self._check_batch(entry)
            else:
                self._check_marker(entry)
            self._fold(len(self.log), entry)
            self.log.append(entry)

    def _check_batch(self, entry: Batch) -> None:
        transaction = self.coordinator.transactions[entry.number]
        assert HERE in transaction.registered, f"T5: {entry} was not registered"
        for earlier in self.log:
            if isinstance(earlier, Mark):
                assert earlier.number != entry.number, f"T5: {entry} after its marker"
                assert earlier.marker.producer_epoch <= entry.batch.producer_epoch, f"T6: {entry}"
        open_one = self._open()
        assert open_one is None or open_one.number == entry.number, f"T5: {entry} joins {open_one}"

    def _check_marker(self, entry: Mark) -> None:
        marker, open_one = entry.marker, self._open()
        if open_one is not None:
            assert open_one.outcome is marker.is_commit, f"T3: {marker} ends {open_one}"
        if entry.number is not None:
            assert marker.coordinator_epoch >= self._heard, f"T9: {marker} after {self._heard}"
            self._heard = marker.coordinator_epoch

    def _open(self) -> Transaction | None:
        """Return the transaction that is open in the log; None if there is none."""
        open_one = None
        for entry in self.log:
            open_one = entry.number if isinstance(entry, Batch) else None
        return None if open_one is None else self.coordinator.transactions[open_one]

    def _fold(self, offset: int, entry: Batch | Mark) -> None:
        if isinstance(entry, Batch):
            batch = entry.batch
            stored = StoredBatch(
                batch.base_sequence, batch.last_sequence, Offset(offset), Offset(offset), 0
            )
            self.producers.note_batch(
                batch.producer_id, batch.producer_epoch, stored, is_transactional=True
            )
        else:
            marker = entry.marker
            self.producers.note_marker(
                marker.producer_id,
                marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                is_abort=not marker.is_commit,
                offset=Offset(offset),
                timestamp_ms=0,
            )

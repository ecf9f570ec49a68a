"""The leader: the work of a replica while it leads in one leader epoch.

A replica becomes the leader when the image names it with a higher leader epoch (rule R1). It adds the epoch at its log
end, keeps its high watermark, and knows nothing of its followers yet. It stops leading when the next epoch begins, or
the replica is removed or fails. The next epoch begins without anything that this leader knew of its followers.

    produce:   ProduceRequested -> Append -> Appended -> (wait) -> RespondToProduce
    several:   ProducesRequested -> Append of all their batches, then as above
    the same in a transaction: TransactionalProduceRequested -> RegisterTransaction -> TransactionVerified -> Append ..
    markers:   MarkersRequested -> AppendMarkers -> MarkersAppended -> (wait) -> AnswerMarkers
    deletes:   DeleteRecordsRequested -> AdvanceLogStart -> (wait) -> RespondToDelete
    followers: AttachReceived -> SendAttached -> data_due .. DataSent -> AckReceived
    ISR:       an ack or a Tick -> ProposeIsr -> PartitionChanged with a higher partition epoch

Invariants:

- The high watermark moves only in `_advance`, by the rule in high_watermark.py; it never falls.
- A follower's position is what it acknowledged in this epoch, in the session in which it is attached, with a broker
  epoch not older than the one in the image (rule R7). An Attach alone gives no position.
- Whether the ISR is large enough for acks=all follows from the image, never from the response to an ISR proposal.

What cannot happen: an acks=all response for records that an electable replica lacks. An electable replica is in the
maximal ISR (isr.py) or in the ELR. A member of the maximal ISR has acknowledged the records. A member of the ELR left
the ISR while the high watermark could not move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from odradek_broker.partition.deletes import Deletes
from odradek_broker.partition.effects import (
    AdvanceLogStart,
    Append,
    AppendMarkers,
    AssignEpoch,
    DataDue,
    Effect,
    HighWatermarkMoved,
    OrphanEnded,
    ProposeIsr,
    SendRefused,
    Sync,
)
from odradek_broker.partition.events import (
    AckReceived,
    AttachReceived,
    BrokerView,
    DataSent,
    DeleteRecordsRequested,
    DetachReceived,
    FollowerSession,
    FollowerSessionClosed,
    HangingTransactionResolved,
    IsrChangeResponded,
    LeaderStalled,
    MarkersRequested,
    PartitionChanged,
    ProducerBatch,
    ProduceRequested,
    ProducesRequested,
    TransactionalProduceRequested,
    TransactionVerified,
)
from odradek_broker.partition.followers import NO_ROUND, FollowerProgress, Followers
from odradek_broker.partition.high_watermark import next_high_watermark
from odradek_broker.partition.isr import Isr
from odradek_broker.partition.log_positions import LogPositions
from odradek_broker.partition.marker_writes import CoordinatorEpochs, MarkerWrites
from odradek_broker.partition.produces import ProducerSequences, Produces
from odradek_broker.partition.settings import ReplicaSettings
from odradek_broker.partition.transaction_gate import TransactionGate
from odradek_broker.partition.truncation import Lineage, attach_response, compare
from odradek_protocol.identity import NO_BROKER_EPOCH, BrokerEpoch, BrokerId, Offset
from odradek_protocol.kafka.error_codes import ErrorCode


class Leader:
    """The state and the event handlers of a leader in one leader epoch."""

    __slots__ = (
        "_broker_id",
        "_deletes",
        "_followers",
        "_gate",
        "_log",
        "_markers",
        "_own_broker_epoch",
        "_produces",
        "_settings",
        "epoch_start",
        "isr",
        "leader_epoch",
    )

    def __init__(
        self,
        view: PartitionChanged,
        brokers: Mapping[BrokerId, BrokerView],
        *,
        broker_id: BrokerId,
        log: LogPositions,
        producers: ProducerSequences,
        coordinators: CoordinatorEpochs,
        guards: Iterator[int],
        settings: ReplicaSettings,
        now_ms: int,
    ) -> None:
        self.leader_epoch = view.leader_epoch
        self.epoch_start: Offset = log.log_end
        self.isr = Isr(view)
        self._broker_id = broker_id
        self._own_broker_epoch = NO_BROKER_EPOCH
        self._log = log
        self._settings = settings
        self._produces = Produces(view.leader_epoch, log=log, producers=producers)
        self._gate = TransactionGate(
            view.leader_epoch,
            guards=guards,
            producers=producers,
            coordinators=coordinators,
            timeout_ms=settings.transaction_verification_timeout_ms,
        )
        self._markers = MarkerWrites(
            view.leader_epoch, log=log, producers=producers, coordinators=coordinators
        )
        self._deletes = Deletes(view.leader_epoch, log=log)
        self._followers = Followers(lag_max_ms=settings.replica_lag_time_max_ms)
        self._see_replicas(view, brokers, now_ms)

    def begin(self, now_ms: int) -> list[Effect]:
        """Begin the epoch (rule R1). After an unclean election the log end becomes the high watermark (rule R22)."""
        log = self._log
        log.epochs.enter(self.leader_epoch, log.log_end)
        effects: list[Effect] = [AssignEpoch(leader_epoch=self.leader_epoch)]
        if self.isr.is_recovering:
            if log.log_end > log.high_watermark:
                log.high_watermark = log.log_end
                effects.append(HighWatermarkMoved(high_watermark=log.log_end))
            effects.append(self._propose({self._broker_id}, now_ms))
        self._advance(effects)
        self._sync(effects)
        return effects

    def adopt(
        self, view: PartitionChanged, brokers: Mapping[BrokerId, BrokerView], now_ms: int
    ) -> list[Effect]:
        """Apply a change of the image within this leader epoch: a new ISR, or a new min.insync.replicas (rule R18)."""
        effects: list[Effect] = []
        self.isr.adopt(view)
        self._see_replicas(view, brokers, now_ms)
        self._advance(effects)
        self._expand(effects, self._followers, now_ms)
        self._sync(effects)
        return effects

    def see_broker(self, broker: BrokerView, now_ms: int) -> list[Effect]:
        """Apply a change of a broker's registration in the image."""
        if broker.broker_id == self._broker_id:
            self._own_broker_epoch = broker.broker_epoch
        follower = self._followers.get(broker.broker_id)
        if follower is None:
            return []
        self._followers.note_caught_up(self._log.log_end, now_ms)
        follower.see(broker)
        effects: list[Effect] = []
        self._stop_waiting(effects)
        self._expand(effects, (follower,), now_ms)
        return effects

    def resign(self, error_code: ErrorCode) -> list[Effect]:
        """End the epoch (rule R2): fail all requests in progress, and send followers no more data."""
        effects = self._produces.resign(error_code)
        effects.extend(self._gate.resign(error_code))
        effects.extend(self._markers.resign(error_code))
        effects.extend(self._deletes.resign(error_code))
        for follower in self._followers:
            if follower.session is not None:
                effects.append(self._refusal(follower.session, 0, error_code))
                follower.detach()
        return effects

    def on_produce(self, event: ProduceRequested) -> list[Effect]:
        """Refuse the request, recognize it as a duplicate, or append its batches (rule R12)."""
        return self._produces.request(event, is_under_min_isr=self.isr.is_under_min)

    def begin_lone(
        self, acks: int, producer: ProducerBatch | None, expected_leader_epoch: int
    ) -> Offset | None:
        """Begin an append to which the host itself responds. None: the host must pass the request as an event."""
        must_wait = self._followers.counted or self._log.is_fsync or self.isr.is_under_min
        if acks == -1 and must_wait:
            return None
        return self._produces.begin_lone(producer, expected_leader_epoch)

    def on_produces(self, event: ProducesRequested) -> list[Effect]:
        """Handle several requests; the batches of all that are accepted are appended together."""
        return self._produces.request_all(event.requests, is_under_min_isr=self.isr.is_under_min)

    def on_transactional_produce(
        self, event: TransactionalProduceRequested, now_ms: int
    ) -> list[Effect]:
        """Append a batch of an open transaction; the first batch of a transaction waits for its coordinator."""
        effects = self._gate.request(event, now_ms)
        if effects is not None:
            return effects
        return self._produces.request(
            event.produce, is_under_min_isr=self.isr.is_under_min, is_transactional=True
        )

    def on_transaction_verified(self, event: TransactionVerified, now_ms: int) -> list[Effect]:
        """Append the batches that waited for this response of the coordinator, or refuse them."""
        effects = self._gate.verified(event)
        self._append_ready(effects)
        return effects

    def on_markers(self, event: MarkersRequested, now_ms: int) -> list[Effect]:
        """Append the markers that end transactions, as their coordinator has decided."""
        effects = self._markers.request(event, is_under_min_isr=self.isr.is_under_min)
        if isinstance(effects[-1], AppendMarkers):
            effects[-1:-1] = [
                effect
                for marker in effects[-1].markers
                for effect in self._gate.ended(
                    marker.producer_id, marker.producer_epoch - marker.is_bumped
                )
            ]
        return effects

    def on_hanging_transaction(
        self, event: HangingTransactionResolved, now_ms: int
    ) -> list[Effect]:
        """End a transaction that no coordinator will end."""
        return self._markers.end_hanging(
            event,
            is_registering=self._gate.is_registering(event.producer_id),
            is_under_min_isr=self.isr.is_under_min,
        )

    def on_appended(self, end_offset: Offset, now_ms: int) -> list[Effect]:
        """Respond to requests with acks=0 or 1, because their batches are in the log; acks=all keeps waiting."""
        self._followers.appended(self._log.log_end, now_ms)
        effects = self._produces.appended(end_offset)
        self._advance(effects)
        if self._gate.ready and self._append_ready(effects):
            return effects
        self._sync(effects)
        return effects

    def on_markers_appended(self, end_offset: Offset, now_ms: int) -> list[Effect]:
        """Let the request wait for the high watermark. If the leader wrote a marker of its own, append the batches that
        waited for that marker.
        """
        self._followers.appended(self._log.log_end, now_ms)
        self._markers.appended(end_offset)
        effects: list[Effect] = []
        self._advance(effects)
        if not self._append_ready(effects):
            self._sync(effects)
        return effects

    def on_append_refused(self) -> list[Effect]:
        """Fail the requests of the refused append, and those to be appended after it. Otherwise a later batch could
        join an orphaned transaction whose marker was refused, or leave a gap in the producer's sequence numbers.
        """
        return [*self.on_append_failed(), *self._gate.fail_ready(ErrorCode.KAFKA_STORAGE_ERROR)]

    def on_append_failed(self) -> list[Effect]:
        """Fail the requests of the append in progress, because it failed or was refused."""
        return [*self._produces.failed(), *self._markers.failed()]

    def _append_ready(self, effects: list[Effect]) -> bool:
        """Begin the next append that the transaction gate allows. Return whether an append is in progress now."""
        ready = self._gate.ready
        is_under_min_isr = self.isr.is_under_min
        while ready:
            item = ready.pop(0)
            if not isinstance(item, OrphanEnded):
                refusal = self._gate.refusal(item)
                effects.extend(
                    [refusal]
                    if refusal is not None
                    else self._produces.request(
                        item.produce, is_under_min_isr=is_under_min_isr, is_transactional=True
                    )
                )
            elif not is_under_min_isr:
                effects.extend(self._markers.end_orphan(item))
            if effects and isinstance(effects[-1], Append | AppendMarkers):
                return True
        return False

    def on_synced(self) -> list[Effect]:
        """Advance the high watermark, because more of the log is synced. Sync again if records were appended since."""
        effects: list[Effect] = []
        self._advance(effects)
        self._sync(effects)
        return effects

    def on_delete_records(self, event: DeleteRecordsRequested, now_ms: int) -> list[Effect]:
        """Raise the log start offset, which Data messages contain. The response waits for the low watermark."""
        log_start_before = self._log.log_start
        refusal = self._deletes.request(event)
        if refusal is not None:
            return [refusal]
        effects: list[Effect] = []
        if self._log.log_start > log_start_before:
            effects.append(AdvanceLogStart(log_start=self._log.log_start))
            effects.extend(self.on_log_start_advanced())
        effects.extend(self._deletes.reached(self._low_watermark()))
        return effects

    def _low_watermark(self) -> Offset:
        """Return the lowest log start offset of the replicas that are live or may be elected."""
        electable = self.isr.maximal | self.isr.eligible
        return self._followers.lowest_start(self._log.log_start, electable)

    def on_attach(self, event: AttachReceived, now_ms: int) -> list[Effect]:
        """Check the leader epoch, the broker epoch and the attach number, then compare the lineages (rule R3)."""
        session = event.session
        if event.leader_epoch != self.leader_epoch:
            code = (
                ErrorCode.FENCED_LEADER_EPOCH
                if event.leader_epoch < self.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            return [self._refusal(session, event.attach_seq, code)]
        follower = self._followers.get(session.broker_id)
        # This leader's image may be older than the image that made the sender a replica.
        if follower is None:
            return [self._refusal(session, event.attach_seq, ErrorCode.UNKNOWN_LEADER_EPOCH)]
        if session.broker_epoch < max(follower.broker_epoch, follower.attached_epoch):
            return [self._refusal(session, event.attach_seq, ErrorCode.STALE_BROKER_EPOCH)]
        self._followers.note_caught_up(self._log.log_end, now_ms)
        if not follower.hear(session.broker_epoch, event.attach_seq):
            return []
        log = self._log
        verdict = compare(log, event.log_end, event.last_epoch)
        if verdict is Lineage.SHARED:
            follower.attach(
                session,
                event.log_end,
                high_watermark=log.high_watermark,
                log_start=log.log_start,
            )
        effects: list[Effect] = [attach_response(verdict, event, log, self.leader_epoch)]
        self._stop_waiting(effects)
        return effects

    def on_ack(self, event: AckReceived, now_ms: int) -> list[Effect]:
        """Record a follower's position and log start, which may move the high watermark or change the ISR."""
        follower = self._followers.get(event.session.broker_id)
        if follower is None:
            return []
        if follower.log_start != event.log_start:
            return [
                *self._hear_log_start(event, follower),
                *self._hear_ack(event, follower, now_ms),
            ]
        return self._hear_ack(event, follower, now_ms)

    def _hear_log_start(self, event: AckReceived, follower: FollowerProgress) -> list[Effect]:
        if event.leader_epoch != self.leader_epoch or not follower.is_attached_in(event.session):
            return []
        follower.log_start = event.log_start
        return [*self._deletes.reached(self._low_watermark())] if self._deletes else []

    def _hear_ack(
        self, event: AckReceived, follower: FollowerProgress, now_ms: int
    ) -> list[Effect]:
        if not self._counts(event, follower) or not follower.acknowledged(
            event.ack_to, is_synced=event.is_synced, log_end=self._log.log_end, now_ms=now_ms
        ):
            return []
        effects: list[Effect] = []
        if follower.broker_id in self.isr.maximal:
            self._advance(effects)
        else:
            self._expand(effects, (follower,), now_ms)
            self._wait_for(follower, now_ms)
        return effects

    def on_detached(
        self, event: DetachReceived | FollowerSessionClosed, now_ms: int
    ) -> list[Effect]:
        """Stop sending data to the follower. Its earlier acknowledgements still count."""
        effects: list[Effect] = []
        follower = self._followers.attached(event.session)
        if follower is not None:
            follower.detach()
            self._stop_waiting(effects)
        return effects

    def on_data_sent(self, event: DataSent, now_ms: int) -> list[Effect]:
        """Record how far a follower was sent data."""
        follower = self._followers.attached(event.session)
        if follower is not None:
            log = self._log
            follower.sent(
                event.end_offset, event.high_watermark, log_end=log.log_end, now_ms=now_ms
            )
            follower.log_start_sent = log.log_start
        return []

    def on_log_start_advanced(self) -> list[Effect]:
        """Detach each follower whose next data is below the log start. It starts an empty log after its next Attach."""
        effects: list[Effect] = []
        for follower in self._followers:
            if follower.session is not None and follower.sent_to < self._log.log_start:
                code = ErrorCode.UNKNOWN_LEADER_EPOCH
                effects.append(self._refusal(follower.session, 0, code))
                follower.detach()
        self._stop_waiting(effects)
        return effects

    def data_due(self, session: FollowerSession) -> DataDue | None:
        """Return the Data message that the follower must be sent next in this session; None if there is none."""
        follower = self._followers.attached(session)
        return follower.due(self._log, self.leader_epoch) if follower is not None else None

    def _counts(self, event: AckReceived, follower: FollowerProgress) -> bool:
        """Return whether an acknowledgement counts (rule R7): it must not be above the data sent in this session."""
        return (
            follower.is_attached_in(event.session)
            and event.leader_epoch == self.leader_epoch
            and event.ack_to <= follower.sent_to
        )

    def _refusal(
        self, session: FollowerSession, attach_seq: int, error_code: ErrorCode
    ) -> SendRefused:
        return SendRefused(
            session=session,
            attach_seq=attach_seq,
            error_code=error_code,
            leader_epoch=self.leader_epoch,
        )

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Check deadlines and lag, and repeat an ISR proposal that is due."""
        effects = self._produces.expire(now_ms, is_under_min_isr=self.isr.is_under_min)
        if self._gate:
            effects.extend(self._gate.on_tick(now_ms))
        if self._markers:
            effects.extend(self._markers.expire(now_ms))
        # The low watermark may have risen, because a follower that a DeleteRecords request waits for was fenced.
        if self._deletes:
            effects.extend(self._deletes.reached(self._low_watermark()))
            effects.extend(self._deletes.expire(now_ms))
        proposal = self.isr.resend_due(now_ms, self._settings.isr_resend_ms)
        if proposal is not None:
            effects.append(proposal)
        if self._followers.is_any_waited_for:
            for follower in self._followers:
                follower.join_wait.expire(now_ms)
            self._stop_waiting(effects)
        self._shrink(effects, now_ms)
        # A follower outside the ISR may join. (The ISR includes the leader, and `_followers` does not.)
        if len(self.isr.committed) <= len(self._followers):
            self._expand(effects, self._followers, now_ms)
        return effects

    @property
    def waits_for_time(self) -> bool:
        """Whether the leader waits for a point in time: a later `on_tick` can have an effect by itself."""
        waiting = (self._produces.is_waiting, self._gate, self._markers, self._deletes)
        isr = self.isr
        return (any(waiting) or isr.is_pending) or self._followers.wait_for_time(
            self._log.log_end, len(isr.committed)
        )

    def on_stalled(self, event: LeaderStalled, now_ms: int) -> list[Effect]:
        """Do not count as followers' lag the time in which this broker's event loop did not run (rule R10)."""
        for follower in self._followers:
            follower.excuse(event.stall_ms, now_ms=now_ms)
        return []

    def on_isr_answered(self, event: IsrChangeResponded, now_ms: int) -> list[Effect]:
        """Handle a response to the pending ISR proposal. If the controller could still accept a copy of the proposal
        later, propose the committed ISR again, which makes all copies invalid (isr.py).
        """
        if not self.isr.must_withdraw(event.leader_epoch, event.partition_epoch, event.error_code):
            return []
        return [self._propose(self.isr.committed, now_ms, is_withdrawal=True)]

    def _shrink(self, effects: list[Effect], now_ms: int) -> None:
        """Propose an ISR without the followers that lag (rule R10). The leader itself always stays in the ISR."""
        lagging = self.isr.committed & self._followers.lagging(self._log.log_end, now_ms)
        if lagging and not self.isr.is_pending:
            effects.append(self._propose(self.isr.committed - lagging, now_ms))

    def _expand(
        self, effects: list[Effect], candidates: Iterable[FollowerProgress], now_ms: int
    ) -> None:
        """Propose to add those `candidates` to the ISR that have caught up."""
        if self.isr.is_pending or self.isr.is_recovering:
            return
        joining = [f for f in candidates if self._has_reached(f) and self._may_join(f)]
        if joining:
            added = {follower.broker_id for follower in joining}
            effects.append(self._propose(self.isr.committed | added, now_ms))
            for follower in joining:
                follower.join_wait.end()
            self._followers.count(self.isr.maximal)

    def _has_reached(self, follower: FollowerProgress) -> bool:
        """Return whether the follower has enough records to join the ISR.

        The follower must have reached the high watermark, because a member of the ISR may be elected, and also
        the start of the epoch, because consumers may have seen a greater high watermark at the previous leader.
        """
        return follower.ack_to >= max(self._log.high_watermark, self.epoch_start)

    def _may_join(self, follower: FollowerProgress) -> bool:
        """Return whether a follower may join the ISR as soon as its position is high enough."""
        session = follower.session
        return (
            session is not None
            and session.broker_epoch == follower.broker_epoch
            and follower.is_eligible
            and follower.broker_id not in self.isr.committed
        )

    def _wait_for(self, follower: FollowerProgress, now_ms: int) -> None:
        """Let the high watermark wait for a follower outside the ISR that keeps up (high_watermark.py)."""
        round_ms, follower.round_ms = follower.round_ms, NO_ROUND
        if (
            round_ms != NO_ROUND
            and follower.join_wait.round_ended(round_ms, now_ms)
            and not self.isr.is_pending
            and not self.isr.is_recovering
            and self._may_join(follower)
        ):
            follower.join_wait.begin(round_ms, now_ms)
            self._followers.count(self.isr.maximal)

    def _stop_waiting(self, effects: list[Effect]) -> None:
        """Move the high watermark if there is a follower that it no longer has to wait for."""
        if self._followers.is_any_waited_for:
            self._followers.count(self.isr.maximal)
            self._advance(effects)

    def _propose(
        self, isr: Iterable[BrokerId], now_ms: int, *, is_withdrawal: bool = False
    ) -> ProposeIsr:
        return self.isr.propose(
            tuple((broker_id, self._epoch_named(broker_id)) for broker_id in sorted(isr)),
            is_recovering=False,
            now_ms=now_ms,
            is_withdrawal=is_withdrawal,
        )

    def _epoch_named(self, broker_id: BrokerId) -> BrokerEpoch:
        """Return the broker epoch to name for this broker in an ISR proposal (KIP-903): that of the follower's session,
        or that in the image if the follower is not attached.
        """
        follower = self._followers.get(broker_id)
        if follower is None:
            return self._own_broker_epoch
        session = follower.session
        return session.broker_epoch if session is not None else follower.broker_epoch

    def _see_replicas(
        self, view: PartitionChanged, brokers: Mapping[BrokerId, BrokerView], now_ms: int
    ) -> None:
        """Make the followers those of the image: add new replicas, and delete those that are no longer listed."""
        own = brokers.get(self._broker_id)
        if own is not None:
            self._own_broker_epoch = own.broker_epoch
        self._followers.note_caught_up(self._log.log_end, now_ms)
        self._followers.keep(
            [broker_id for broker_id in view.replicas if broker_id != self._broker_id],
            brokers,
            now_ms,
            is_fsync=self._log.is_fsync,
        )
        self._followers.count(self.isr.maximal)

    def _sync(self, effects: list[Effect]) -> None:
        log = self._log
        if log.log_end - log.durable_end >= log.unsynced_max and not log.is_syncing:
            log.is_syncing = True
            effects.append(Sync())

    def _advance(self, effects: list[Effect]) -> None:
        """Move the high watermark as far as rule R8 allows, and respond to the requests below it (rules R9, R12)."""
        log = self._log
        own, counted = log.durable_end if log.is_fsync else log.log_end, self._followers.counted
        moved_to = own  # correct if no follower counts, which is the usual case without replication
        if counted or own < log.high_watermark or self.isr.is_under_min:
            moved_to = next_high_watermark(
                log.high_watermark, own, counted, is_under_min_isr=self.isr.is_under_min
            )
        if moved_to > log.high_watermark:
            log.high_watermark = moved_to
            effects.append(HighWatermarkMoved(high_watermark=moved_to))
            effects.extend(self._produces.committed(moved_to))
            if self._markers:
                effects.extend(self._markers.committed(moved_to))

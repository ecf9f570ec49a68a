"""The controller: what every member of the quorum replays, and what its active one decides.

    STANDBY  --became_active(epoch)-->  OPENING  --its first batch is replayed-->  ACTIVE
       ^                                   |                                         |
       +---------- resigned() -------------+-----------------------------------------+

In every state `replay` applies committed records to the committed image, and heartbeats and broken
streams are noted, so that a new active controller knows who was dead before its time (R24).

OPENING proposes one batch of its own (a NoOp; on a cluster's first start also the initial feature
levels, the log's incarnation and the initial configs) and decides nothing until it comes back. When
it does, everything older is in the committed image, the controller knows that it is the active one,
and the offset of whatever it proposes next is one more.

ACTIVE decides. `handle_*` and `tick` give `Decision`s; the caller must

1. propose the payloads of all decisions that have records, in the order in which they were made, in
   the epoch of `became_active`;
2. answer a decision only when its records, and those of all decisions before it, are committed and
   replayed here;
3. call `resigned` as soon as the quorum says so, or any proposal fails: nothing that is undecided
   then is ever answered with success.

How decisions see those before them that are not committed yet: workspace.py. If a handler fails, by
a bug or because its batch is too large, what it had written is undone and nothing is proposed.

No method waits, reads a clock or draws at random: `now_ms` is the caller's monotonic clock, `draws`
the caller's source. The same calls give the same decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from odradek_metadata_quorum.controller import (
    brokers,
    controllers,
    leaders,
    partitions,
    producer_ids,
    reassignment,
    recovery,
    registration,
    topics,
)
from odradek_metadata_quorum.controller.administration import (
    access,
    configs,
    credentials,
    features,
    quotas,
)
from odradek_metadata_quorum.controller.decision import (
    BatchTooLarge,
    ControllerSettings,
    Decision,
    Draws,
    Outcome,
)
from odradek_metadata_quorum.controller.liveness import Liveness
from odradek_metadata_quorum.controller.requests import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    PartitionResult,
    Reassignment,
    RegisterControllerRequest,
    RegisterRequest,
    RegisterResponse,
    ReportLogEndsRequest,
    TopicResult,
)
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import BrokerId, MetadataOffset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.codec import encode_batch
from odradek_protocol.metadata.delta import MetadataDelta
from odradek_protocol.metadata.features import METADATA_VERSION, METADATA_VERSION_WITH_IDENTITY
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import (
    NO_LEADER,
    Config,
    ConfigResourceType,
    FeatureLevel,
    MetadataBatch,
    MetadataRecord,
    NoOp,
)

T = TypeVar("T")


@dataclass(slots=True)
class _Opening:
    epoch: int
    now_ms: int
    records_left: int  # of the first batch, to be replayed


class Controller:
    """One member's controller. See the module's text for its states and its caller's duties."""

    def __init__(self, settings: ControllerSettings, draws: Draws) -> None:
        self.settings = settings
        self.committed = MetadataImage()
        self._draws = draws
        self._liveness = Liveness(
            session_ms=settings.session_ms,
            grace_ms=settings.grace_ms,
            stall_ms_min=settings.stall_ms_min,
        )
        self._opening: _Opening | None = None
        self._work: Workspace | None = None
        self._in_flight: deque[tuple[MetadataOffset, tuple[MetadataRecord, ...]]] = deque()

    # --- state

    @property
    def is_active(self) -> bool:
        """Whether `handle_*` may be called."""
        return self._work is not None

    @property
    def epoch(self) -> int | None:
        """The epoch in which this controller is active or opening."""
        if self._work is not None:
            return self._work.epoch
        return None if self._opening is None else self._opening.epoch

    @property
    def is_repairing(self) -> bool:
        """Whether the last `tick` left partitions that the next one has to settle."""
        return self._work is not None and (self._work.is_repair_due or bool(self._work.unsettled))

    @property
    def image(self) -> MetadataImage:
        """The working image while active, else the committed one."""
        return self.committed if self._work is None else self._work.image

    # --- the quorum's side

    def became_active(self, epoch: int, now_ms: int) -> list[Decision[None]]:
        """This member leads the quorum in `epoch`, and all older entries are replayed here."""
        assert self.epoch is None, f"active twice: {self.epoch}, {epoch}"
        records: list[MetadataRecord] = [NoOp()]
        metadata_version = self.committed.metadata_version
        if not self.committed.features:
            levels = self.settings.initial_features
            records += [FeatureLevel(name=name, level=level) for name, level in levels]
            metadata_version = dict(levels)[METADATA_VERSION]
            if metadata_version >= METADATA_VERSION_WITH_IDENTITY:
                records.append(features.new_incarnation(self._draws))
            records += [
                Config(
                    resource_type=ConfigResourceType.BROKER,
                    resource_name="",
                    name=name,
                    value=value,
                )
                for name, value in self.settings.initial_configs
            ]
        self._opening = _Opening(epoch=epoch, now_ms=now_ms, records_left=len(records))
        return [_decision(None, tuple(records), epoch, metadata_version)]

    def resigned(self) -> None:
        """This member leads no longer: forget all that was decided and not committed."""
        self._opening = self._work = None
        self._in_flight.clear()
        self._liveness.deactivate()

    def replay(
        self,
        offset: MetadataOffset,
        epoch: int,
        record: MetadataRecord,
        delta: MetadataDelta | None = None,
    ) -> None:
        """Apply one committed record of the entry at `offset`; `delta` notes what it changed."""
        if self._work is not None and epoch == self._work.epoch and offset > self.committed.offset:
            expected = self._in_flight.popleft()[0] if self._in_flight else None
            assert offset == expected, f"proposed for {expected}, committed at {offset}"
        self.committed.replay(offset, epoch, record, delta)
        if self._opening is not None and epoch == self._opening.epoch:
            self._opening.records_left -= 1
            if self._opening.records_left == 0:
                self._open(self._opening)

    def advance(self, offset: MetadataOffset, epoch: int) -> None:
        """Pass a committed entry that holds no records."""
        self.committed.advance(offset, epoch)

    def restore(self, image: MetadataImage) -> None:
        """Take over a snapshot's image; only a standby does."""
        assert self.epoch is None, f"a snapshot for the active controller of epoch {self.epoch}"
        self.committed = image

    def _open(self, opening: _Opening) -> None:
        self._opening = None
        self._work = Workspace(
            settings=self.settings,
            draws=self._draws,
            liveness=self._liveness,
            committed=self.committed,
            image=self.committed.copy(),
            epoch=opening.epoch,
            next_offset=MetadataOffset(self.committed.offset + 1),
            leaders_checked_at_ms=opening.now_ms,
        )
        unfenced = [b.broker_id for b in self.committed.brokers.values() if not b.fenced]
        self._liveness.activate(unfenced, now_ms=opening.now_ms)

    # --- time

    def tick(self, now_ms: int) -> list[Decision[None]]:
        """Judge what time has brought: deaths, unfinished repairs, elections, the balance.

        Call it every 50 ms or so, after the heartbeats that wait were handed in, and at once again
        while `is_repairing`. Standbys: nothing.
        """
        work = self._work
        if work is None:
            return []
        decisions: list[Decision[None]] = []
        unfenced = [b.broker_id for b in work.image.brokers.values() if not b.fenced]
        self._liveness.keep_watching(unfenced, now_ms=now_ms)
        fences = self._liveness.tick(now_ms=now_ms)
        if fences:
            decisions.append(self._decide(lambda w: brokers.fence_dead(w, fences, now_ms=now_ms)))
        decisions.append(self._decide(lambda w: recovery.pursue(w, now_ms=now_ms)))
        decisions.append(self._decide(_repair))
        decisions.append(self._decide(lambda w: leaders.rebalance(w, now_ms=now_ms)))
        return [decision for decision in decisions if decision.records]

    # --- brokers

    def handle_register(self, request: RegisterRequest, now_ms: int) -> Decision[RegisterResponse]:
        """A broker's life begins."""
        return self._decide(lambda work: registration.register(work, request, now_ms=now_ms))

    def handle_heartbeat(
        self, request: HeartbeatRequest, now_ms: int
    ) -> Decision[HeartbeatResponse]:
        """A heartbeat, at the active controller or a standby; a standby's renews no lease."""
        if self._work is not None:
            return self._decide(lambda work: brokers.heartbeat(work, request, now_ms=now_ms))
        known = self.committed.brokers.get(request.broker_id)
        if brokers.stale_life(known, request.broker_epoch):
            return Decision(
                response=HeartbeatResponse(error=ErrorCode.STALE_BROKER_EPOCH, seq=request.seq)
            )
        if known is not None:  # strangers take no memory here
            self._liveness.heartbeat(request.broker_id, now_ms=now_ms)
        return Decision(response=HeartbeatResponse(seq=request.seq))

    def stream_broken(self, broker_id: BrokerId, now_ms: int) -> None:
        """The last open heartbeat stream of a broker ended; at every controller."""
        self._liveness.stream_broken(broker_id, now_ms=now_ms)

    def handle_unregister_broker(self, broker_id: BrokerId) -> Decision[Outcome]:
        """A broker will not come back."""
        return self._decide(lambda work: registration.unregister(work, broker_id))

    def handle_report_log_ends(self, request: ReportLogEndsRequest) -> Decision[ErrorCode]:
        """A broker tells what it holds, because it was asked (R22)."""
        return self._decide(lambda work: recovery.report_log_ends(work, request))

    def handle_allocate_producer_ids(
        self, request: AllocateProducerIdsRequest
    ) -> Decision[AllocateProducerIdsResponse]:
        """A broker wants producer ids."""
        return self._decide(lambda work: producer_ids.allocate_producer_ids(work, request))

    def why_fenced(self, broker_id: BrokerId) -> str:
        """For people: why this controller, while active, fenced a broker last; empty: it did not."""
        memory = None if self._work is None else self._work.memories.get(broker_id)
        return "" if memory is None else memory.fenced_because

    # --- controllers

    def handle_register_controller(
        self, request: RegisterControllerRequest, now_ms: int
    ) -> Decision[Outcome]:
        """A voter says which feature levels it supports."""
        return self._decide(
            lambda work: controllers.register_controller(work, request, now_ms=now_ms)
        )

    # --- partitions

    def handle_alter_partition(
        self, request: AlterPartitionRequest
    ) -> Decision[AlterPartitionResponse]:
        """A leader proposes in-sync replicas."""
        return self._decide(lambda work: partitions.alter_partitions(work, request))

    def handle_elect_leaders(
        self, request: ElectLeadersRequest
    ) -> Decision[tuple[PartitionResult, ...]]:
        """Preferred or unclean elections by command."""
        return self._decide(lambda work: leaders.elect_leaders(work, request))

    def handle_alter_reassignments(
        self, reassignments: tuple[Reassignment, ...], *, keep_replication_factor: bool = False
    ) -> Decision[tuple[PartitionResult, ...]]:
        """Partitions move to other brokers."""
        return self._decide(
            lambda work: reassignment.alter_reassignments(
                work, reassignments, keep_replication_factor=keep_replication_factor
            )
        )

    # --- topics

    def handle_create_topics(
        self, request: CreateTopicsRequest
    ) -> Decision[tuple[TopicResult, ...]]:
        """Topics to create."""
        return self._decide(lambda work: topics.create_topics(work, request))

    def handle_delete_topics(
        self, request: DeleteTopicsRequest
    ) -> Decision[tuple[TopicResult, ...]]:
        """Topics to delete."""
        return self._decide(lambda work: topics.delete_topics(work, request))

    def handle_create_partitions(
        self, request: CreatePartitionsRequest
    ) -> Decision[tuple[TopicResult, ...]]:
        """Partitions to add."""
        return self._decide(lambda work: topics.create_partitions(work, request))

    # --- administration

    def handle_alter_configs(
        self, request: configs.AlterConfigsRequest
    ) -> Decision[tuple[Outcome, ...]]:
        """Configs to change."""
        return self._decide(lambda work: configs.alter_configs(work, request))

    def handle_create_acls(
        self, entries: tuple[access.AclEntry, ...]
    ) -> Decision[tuple[Outcome, ...]]:
        """Access control entries to add."""
        return self._decide(lambda work: access.create_acls(work, entries))

    def handle_delete_acls(
        self, filters: tuple[access.AclEntry, ...]
    ) -> Decision[tuple[tuple[Outcome, tuple[access.AclEntry, ...]], ...]]:
        """Access control entries to delete."""
        return self._decide(lambda work: access.delete_acls(work, filters))

    def handle_alter_scram_users(
        self,
        upsertions: tuple[credentials.ScramUpsertion, ...],
        deletions: tuple[credentials.ScramDeletion, ...],
    ) -> Decision[tuple[tuple[str, Outcome], ...]]:
        """SCRAM credentials to set and remove."""
        return self._decide(lambda work: credentials.alter_scram_users(work, upsertions, deletions))

    def handle_alter_quotas(
        self, alterations: tuple[quotas.QuotaAlteration, ...], *, validate_only: bool = False
    ) -> Decision[tuple[Outcome, ...]]:
        """Quotas to set and remove."""
        return self._decide(
            lambda work: quotas.alter_quotas(work, alterations, validate_only=validate_only)
        )

    def handle_update_feature(
        self,
        name: str,
        level: int,
        now_ms: int,
        *,
        allow_downgrade: bool = False,
    ) -> Decision[Outcome]:
        """A feature level to change."""
        return self._decide(
            lambda work: features.update_feature(
                work,
                name,
                level,
                now_ms=now_ms,
                allow_downgrade=allow_downgrade,
            )
        )

    def handle_describe_features(
        self, now_ms: int
    ) -> Decision[tuple[tuple[features.FeatureDescription, ...], MetadataOffset]]:
        """All features of this program, and the metadata offset that they are read at."""
        return self._decide(
            lambda work: (features.describe_features(work, now_ms=now_ms), work.committed.offset)
        )

    def _decide(self, handler: Callable[[Workspace], T]) -> Decision[T]:
        """Run a handler; its records go into flight, or, if it fails, are undone."""
        work = self._work
        assert work is not None, "a standby decides nothing"
        offset = work.next_offset
        try:
            response = handler(work)
            decision = _decision(
                response, tuple(work.written), work.epoch, work.image.metadata_version
            )
            if len(decision.payload) > self.settings.batch_bytes_max:
                raise BatchTooLarge(
                    f"this request needs {len(decision.payload)} bytes of metadata at once, at "
                    f"most {self.settings.batch_bytes_max} are possible: split it"
                )
        except Exception:
            self._undo(work)
            raise
        if work.take_written():
            self._in_flight.append((offset, decision.records))
        return decision

    def _undo(self, work: Workspace) -> None:
        work.written.clear()
        work.image = self.committed.copy()
        for offset, records in self._in_flight:
            for record in records:
                work.image.replay(offset, work.epoch, record)


def _decision(
    response: T, records: tuple[MetadataRecord, ...], epoch: int, metadata_version: int
) -> Decision[T]:
    if not records:
        return Decision(response=response)
    batch = MetadataBatch(controller_epoch=epoch, records=records)
    payload = encode_batch(batch, level=metadata_version)
    return Decision(response=response, records=records, payload=payload)


def _repair(work: Workspace) -> None:
    """Settle partitions that an earlier batch, or an earlier controller, left unsettled."""
    if work.is_repair_due and not work.unsettled:
        work.is_repair_due = False
        work.unsettled = work.elections_first(
            state
            for state in work.image.partitions()
            if state.leader == NO_LEADER or not all(work.image.is_live(b) for b in state.isr)
        )
    work.settle_next(work.unsettled)

"""The state that all handlers of an active controller share: the working image, and the soft state, which is not in
the log.

There are two images. `committed` is what the quorum has committed, on every controller. `image` adds the changes that
this active controller has decided and that are not committed yet. Decisions are validated against `image`, so two
requests that are in flight together cannot both take a topic's name. `write` adds a record to the decision under way
and replays it into `image` at once. (KRaft's QuorumController uses timeline data structures for this; two images cost
a few MiB and are simpler.)

Events are handled one after the other. Decisions are proposed in the order in which they were made, the
Raft log keeps that order, and no other member may append in this term. So the working image is exactly
what the committed one will be, unless this controller is deposed; then the whole working image is
discarded (`Controller.resigned`). A decision is committed at the offset `next_offset`, which
`Controller.replay` asserts, because a broker's epoch is that offset.

A decision that fails is undone in the records and in the working image. Soft state is not undone, so each
rule must tolerate soft state that is ahead of the records: the next heartbeat repeats what the last one said,
and `Controller.tick` watches brokers that an undone decision left unwatched.

Soft state is not in the log: which brokers are connected, how far they have read, which ones flapped, which
replicas failed on an internal error, which log ends were reported. A new active controller begins without
it, and each rule says what that means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from odradek_metadata_quorum.controller.election import Standing, StandingOf, settle
from odradek_metadata_quorum.controller.liveness import Liveness
from odradek_metadata_quorum.controller.requests import ControllerSettings, Draws
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ControllerId,
    MetadataOffset,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import cluster_config
from odradek_protocol.metadata.features import FeatureLevels
from odradek_protocol.metadata.image import MetadataImage, PartitionKey, PartitionState
from odradek_protocol.metadata.records import MetadataRecord, PartitionChange


@dataclass(slots=True)
class BrokerMemory:
    """What a controller has noted in its own memory about one broker; none of it is in the log."""

    image_offset: int = -1  # the offset that the broker's image has reached
    # The times of the last few fencings, for the delay of a broker that flaps.
    fenced_at_ms: list[int] = field(default_factory=list)
    fenced_because: str = ""  # the reason, as text for people
    # Whether its last heartbeat says that it cannot write, and does not ask for a shutdown.
    is_read_only: bool = False
    shutdown_offset: int | None = None  # the metadata offset at which its leaderships moved away
    shutdown_since_ms: int = 0
    judged_at: int | None = (
        None  # the offset at which the next two fields were computed, which takes long
    )
    leads_what_can_move: bool = False
    is_missed: bool = False


@dataclass(slots=True)
class ControllerMemory:
    """The last registration that a voter sent to this controller while it was active."""

    features: FeatureLevels
    registered_at_ms: int


@dataclass(slots=True)
class Inquiry:
    """A partition without a leader whose replicas are asked for their log ends (rule R22)."""

    leaderless_since_ms: int
    asked_at_ms: int | None = None
    log_ends: dict[BrokerId, tuple[BrokerEpoch, int, int]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Workspace:
    """The state that handlers read and change. It is created when a controller opens, and discarded when it
    resigns.
    """

    settings: ControllerSettings
    draws: Draws
    liveness: Liveness
    committed: MetadataImage
    image: MetadataImage
    epoch: int
    next_offset: MetadataOffset
    now_ms: int = 0  # the caller's monotonic clock at the decision under way
    memories: dict[BrokerId, BrokerMemory] = field(default_factory=dict)
    controllers: dict[ControllerId, ControllerMemory] = field(default_factory=dict)
    inquiries: dict[PartitionKey, Inquiry] = field(default_factory=dict)
    log_ends_wanted: dict[BrokerId, list[TopicIdPartition]] = field(default_factory=dict)
    # The partitions of each broker whose replica failed because of an internal error.
    broken: dict[BrokerId, frozenset[TopicIdPartition]] = field(default_factory=dict)
    is_repair_due: bool = True  # whether a partition that is in no queue may have to be changed
    # Partitions that the next ticks check.
    unsettled: deque[PartitionKey] = field(default_factory=deque)
    leaders_checked_at_ms: int = 0
    leaderless_checked_at_ms: int | None = None
    # Offset of the image that was last searched for leaderless partitions.
    leaderless_checked_offset: MetadataOffset | None = None
    written: list[MetadataRecord] = field(default_factory=list)
    survey: object | None = (
        None  # the counts that topics.py computed for the last request, while they are valid
    )
    # The entries that access.py read for the last request, while they are valid.
    acl_records: object | None = None

    def write(self, *records: MetadataRecord) -> None:
        """Add records to the decision in progress, and replay them into the working image."""
        if records:
            self.written += records
            self.image.replay_all(self.next_offset, self.epoch, records)

    def take_written(self) -> tuple[MetadataRecord, ...]:
        """Return the decision's records and advance the offset for the next one."""
        records = tuple(self.written)
        self.written.clear()
        if records:
            self.next_offset = MetadataOffset(self.next_offset + 1)
        return records

    def memory(self, broker_id: BrokerId) -> BrokerMemory:
        """Return what this controller has noted in its own memory about a broker; none of it is in the log."""
        return self.memories.setdefault(broker_id, BrokerMemory())

    def standing_of(self, broker_id: BrokerId) -> Standing:
        """Return the present Standing of a broker, without regard to replicas that failed (`standing_in`)."""
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker.fenced:
            return Standing.FENCED
        if broker.in_shutdown:
            memory = self.memories.get(broker_id)
            is_read_only = memory is not None and memory.is_read_only
            return Standing.READ_ONLY if is_read_only else Standing.LEAVING
        return Standing.STREAMING if self.liveness.is_connected(broker_id) else Standing.LIVE

    def standing_in(self, state: PartitionState) -> StandingOf:
        """Return the Standing of each broker for this partition. It is FENCED if the broker's replica failed because of
        an internal error.

        A broker reports such replicas with each heartbeat until it restarts. A new controller may elect one before it
        knows that; the replica then serves nothing, and is replaced.
        """
        if not self.broken:
            return self.standing_of
        partition = TopicIdPartition(state.topic_id, state.partition)

        def standing_of(broker_id: BrokerId) -> Standing:
            if partition in self.broken.get(broker_id, ()):
                return Standing.FENCED
            return self.standing_of(broker_id)

        return standing_of

    def broker_error(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> ErrorCode:
        """Return NONE if this is the present registration of a broker, or else the error.

        NOT_CONTROLLER means that the broker registered later than any registration which this controller knows. So it
        registered with another controller, which deposed this one.
        """
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            is_ahead = broker_epoch > self.committed.offset
            return ErrorCode.NOT_CONTROLLER if is_ahead else ErrorCode.BROKER_ID_NOT_REGISTERED
        if broker_epoch < broker.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        return ErrorCode.NONE if broker_epoch == broker.broker_epoch else ErrorCode.NOT_CONTROLLER

    def partitions_of(self, broker_id: BrokerId) -> list[PartitionState]:
        """Return the partitions of which this broker has a replica."""
        return [state for state in self.image.partitions() if broker_id in state.replicas]

    def settled(
        self,
        state: PartitionState,
        lost: Iterable[BrokerId] = (),
        *,
        emptied: Iterable[BrokerId] = (),
        min_insync_replicas: int | None = None,
    ) -> PartitionChange | None:
        """Return the change that a partition needs because of the present state of its brokers (election.py), or
        because its minimum becomes `min_insync_replicas`; None if it needs none.
        """
        minimum = min_insync_replicas
        return settle(
            state,
            standing_of=self.standing_in(state),
            min_insync_replicas=(
                self.image.min_insync_replicas(state) if minimum is None else minimum
            ),
            lost=lost,
            emptied=emptied,
        )

    def settle_all(self, states: Iterable[PartitionState]) -> None:
        """Write the changes that partitions need, elections first, as many as `settle_next` writes.

        The next ticks write the others (`is_repair_due`).
        """
        waiting = self.elections_first(states)
        self.settle_next(waiting)
        if waiting:
            self.is_repair_due = True

    def settle_next(self, waiting: deque[PartitionKey]) -> None:
        """Remove partitions from the queue and write the changes that they need, one batch at most.

        The number of partitions that are examined is bounded: a controller that blocked its event loop for an election
        timeout would be deposed before it had proposed anything.
        """
        changes: list[PartitionChange] = []
        for _ in range(min(len(waiting), self.settings.partitions_looked_at_max)):
            if len(changes) == self.settings.partitions_per_batch_max:
                break
            state = self.image.partition(*waiting.popleft())
            if state is not None and (change := self.settled(state)) is not None:
                changes.append(change)
        # The sort is stable, and puts elections first.
        changes.sort(key=lambda change: change.leader is None)
        self.write(*changes)

    def elections_first(self, states: Iterable[PartitionState]) -> deque[PartitionKey]:
        """Return the partitions in their order, but those without a live leader first."""
        live = {broker.broker_id for broker in self.image.brokers.values() if broker.is_live}
        ordered = sorted(states, key=lambda state: state.leader in live)
        return deque((state.topic_id, state.partition) for state in ordered)

    def config(self, name: str) -> bool | int | float | str | tuple[str, ...]:
        """Return the present value of a cluster-wide config."""
        return cluster_config(self.image, name)

    def state_of(self, partition: TopicIdPartition) -> PartitionState | None:
        """Return a partition's state in the working image."""
        return self.image.partition(partition.topic_id, partition.partition)


_FIRST_DELAY_MS: Final = 1_000


def note_fencing(work: Workspace, broker_id: BrokerId) -> None:
    """Record that a broker is fenced now because it died, or seemed to have died."""
    memory = work.memory(broker_id)
    since = work.now_ms - work.settings.flap_window_ms
    memory.fenced_at_ms = [*[at for at in memory.fenced_at_ms if at > since][-15:], work.now_ms]


def unfence_delay_ms(work: Workspace, broker_id: BrokerId) -> int:
    """Return how long a broker stays fenced, in ms: 0 after one fencing within the window, 1000 after two, and twice as
    long after each further one, up to a limit.

    Each death of a broker moves leaderships, and so does each return.
    """
    since = work.now_ms - work.settings.flap_window_ms
    times = sum(at > since for at in work.memory(broker_id).fenced_at_ms)
    if times < 2:
        return 0
    return min(_FIRST_DELAY_MS << (times - 2), work.settings.flap_delay_ms_max)


def is_calm(work: Workspace, broker_id: BrokerId) -> bool:
    """Return whether a broker was fenced at most once in the last `flap_window_ms`.

    Only such a broker becomes the leader of its partitions again without being needed.
    """
    since = work.now_ms - work.settings.flap_window_ms
    return sum(at > since for at in work.memory(broker_id).fenced_at_ms) < 2

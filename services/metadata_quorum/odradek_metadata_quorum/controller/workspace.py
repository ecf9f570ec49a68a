"""The state that all handlers of an active controller share: the working image, and soft state, which is not in the
log.

There are two images. The committed image (`committed`) has all committed records, on every controller. The working
image (`image`) also has the records of decisions that are not committed yet. Handlers validate requests against the
working image, so two concurrent requests cannot both create a topic of the same name. `write` adds a record to the
decision in progress and replays it into the working image at once. (KRaft's QuorumController uses timeline data
structures for this purpose; two images take a few MiB and are simpler.)

Requests are handled one after the other. Decisions are proposed in the order in which they were made, the Raft log
keeps that order, and no other member may append in this term. So the committed image will become equal to the working
image, unless this controller is deposed. In that case the working image is discarded (`Controller.resigned`). The batch
of a decision is committed at the offset that `next_offset` has at the decision. `Controller.replay` asserts this,
because that offset determines broker epochs.

If a decision fails, its records and their effect on the working image are undone. Soft state is not undone, so each
rule must tolerate soft state that is ahead of the records. For example, the next heartbeat of a broker repeats the
content of the last one, and `Controller.tick` watches brokers again if the decision to fence them was undone.

Soft state is only in memory: the connections of brokers, the offsets that they have replayed, times of fencing,
replicas that failed on an internal error, and reported log ends. A new active controller begins with empty soft state,
and each rule describes what follows from that.
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
    """The soft state of one broker: facts that the active controller keeps in memory and that are not in the log."""

    image_offset: int = -1  # the metadata offset up to which the broker has replayed
    # The times when the broker was fenced recently, from which the delay of its unfencing is computed.
    fenced_at_ms: list[int] = field(default_factory=list)
    fenced_because: str = ""  # the reason of the last fencing, as text for people
    # Whether the broker's last heartbeat reported that the broker cannot write, and did not ask for a shutdown.
    is_read_only: bool = False
    # The metadata offset at which all leaderships of the broker have moved to other brokers.
    shutdown_offset: int | None = None
    shutdown_since_ms: int = 0
    # The metadata offset for which `brokers.py` computed the next two fields, which takes long. None: they must be
    # computed again.
    judged_at: int | None = None
    leads_what_can_move: bool = False
    is_missed: bool = False


@dataclass(slots=True)
class ControllerMemory:
    """The last registration that a voter has sent to this active controller."""

    features: FeatureLevels
    registered_at_ms: int


@dataclass(slots=True)
class Inquiry:
    """A partition without a leader, and the log ends that its replicas have reported (rule R22).

    `asked_at_ms` is None until the controller requests the log ends. `log_ends` has the broker epoch, the last leader
    epoch and the log end offset of each report.
    """

    leaderless_since_ms: int
    asked_at_ms: int | None = None
    log_ends: dict[BrokerId, tuple[BrokerEpoch, int, int]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Workspace:
    """The state that handlers read and change. A controller creates it when it becomes active, and discards it when it
    resigns.
    """

    settings: ControllerSettings
    draws: Draws
    liveness: Liveness
    committed: MetadataImage
    image: MetadataImage
    epoch: int
    next_offset: MetadataOffset
    now_ms: int = 0  # time of the caller's monotonic clock at the decision in progress
    memories: dict[BrokerId, BrokerMemory] = field(default_factory=dict)
    controllers: dict[ControllerId, ControllerMemory] = field(default_factory=dict)
    inquiries: dict[PartitionKey, Inquiry] = field(default_factory=dict)
    log_ends_wanted: dict[BrokerId, list[TopicIdPartition]] = field(default_factory=dict)
    # For each broker, the partitions whose replica on this broker failed because of an internal error.
    broken: dict[BrokerId, frozenset[TopicIdPartition]] = field(default_factory=dict)
    # Whether the next tick must check all partitions, because some may need a change and are not in `unsettled`.
    is_repair_due: bool = True
    # Partitions that the next ticks check and settle.
    unsettled: deque[PartitionKey] = field(default_factory=deque)
    leaders_checked_at_ms: int = 0
    leaderless_checked_at_ms: int | None = None
    # Offset of the image that was last searched for leaderless partitions.
    leaderless_checked_offset: MetadataOffset | None = None
    written: list[MetadataRecord] = field(default_factory=list)
    # A cache of topics.py: the counts that it computed for the last request.
    survey: object | None = None
    # A cache of access.py: the access control entries that it read for the last request.
    acl_records: object | None = None

    def write(self, *records: MetadataRecord) -> None:
        """Add records to the decision in progress, and replay them into the working image."""
        if records:
            self.written += records
            self.image.replay_all(self.next_offset, self.epoch, records)

    def take_written(self) -> tuple[MetadataRecord, ...]:
        """Return the records of the decision in progress and end it. If there are records, the next decision has the
        next offset.
        """
        records = tuple(self.written)
        self.written.clear()
        if records:
            self.next_offset = MetadataOffset(self.next_offset + 1)
        return records

    def memory(self, broker_id: BrokerId) -> BrokerMemory:
        """Return the soft state of a broker. It is created if there is none."""
        return self.memories.setdefault(broker_id, BrokerMemory())

    def standing_of(self, broker_id: BrokerId) -> Standing:
        """Return the present Standing of a broker. Unlike in `standing_in`, failed replicas are not considered."""
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker.fenced:
            return Standing.FENCED
        if broker.in_shutdown:
            memory = self.memories.get(broker_id)
            is_read_only = memory is not None and memory.is_read_only
            return Standing.READ_ONLY if is_read_only else Standing.LEAVING
        return Standing.STREAMING if self.liveness.is_connected(broker_id) else Standing.LIVE

    def standing_in(self, state: PartitionState) -> StandingOf:
        """Return a function that returns the Standing of a broker for this partition. It is FENCED if the broker's
        replica of the partition failed because of an internal error.

        A broker reports failed replicas in each heartbeat until it restarts. A new active controller may elect a failed
        replica before it has received such a heartbeat. Such a leader refuses all requests until it is replaced.
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
        """Return NONE if this is the present epoch of a registered broker, otherwise the error for the broker.

        The error is NOT_CONTROLLER if the epoch is higher than the one that this controller knows. The broker must have
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
        """Return all partitions of which this broker has a replica."""
        return [state for state in self.image.partitions() if broker_id in state.replicas]

    def settled(
        self,
        state: PartitionState,
        lost: Iterable[BrokerId] = (),
        *,
        emptied: Iterable[BrokerId] = (),
        min_insync_replicas: int | None = None,
    ) -> PartitionChange | None:
        """Return the change that a partition needs because of the present state of its brokers (`election.settle`), or
        None if it needs none.

        `min_insync_replicas` replaces the partition's effective minimum, for a config change that is not written yet.
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
        """Write the changes that these partitions need, elections first, up to the limits of `settle_next`. The next
        ticks write the other changes (`is_repair_due`).
        """
        waiting = self.elections_first(states)
        self.settle_next(waiting)
        if waiting:
            self.is_repair_due = True

    def settle_next(self, waiting: deque[PartitionKey]) -> None:
        """Remove partitions from the queue, and write the changes that they need, at most one batch.

        The number of partitions that are examined is limited. If a controller blocked its event loop for an election
        timeout, it would be deposed before it had proposed the changes.
        """
        changes: list[PartitionChange] = []
        for _ in range(min(len(waiting), self.settings.partitions_looked_at_max)):
            if len(changes) == self.settings.partitions_per_batch_max:
                break
            state = self.image.partition(*waiting.popleft())
            if state is not None and (change := self.settled(state)) is not None:
                changes.append(change)
        # Elections come first. The sort is stable, so the order is otherwise kept.
        changes.sort(key=lambda change: change.leader is None)
        self.write(*changes)

    def elections_first(self, states: Iterable[PartitionState]) -> deque[PartitionKey]:
        """Return the keys of the partitions, those without a live leader first, otherwise in the same order."""
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
    """Record the time when a broker is fenced because it died or seems to have died."""
    memory = work.memory(broker_id)
    since = work.now_ms - work.settings.flap_window_ms
    memory.fenced_at_ms = [*[at for at in memory.fenced_at_ms if at > since][-15:], work.now_ms]


def unfence_delay_ms(work: Workspace, broker_id: BrokerId) -> int:
    """Return for how long a broker must stay fenced, in ms.

    The delay is 0 if the broker was fenced once within `flap_window_ms`, 1,000 ms if twice, and doubles with each
    further time, up to `flap_delay_ms_max`. Without the delay, each death and each return of a broker that dies again
    and again would move leaderships.
    """
    since = work.now_ms - work.settings.flap_window_ms
    times = sum(at > since for at in work.memory(broker_id).fenced_at_ms)
    if times < 2:
        return 0
    return min(_FIRST_DELAY_MS << (times - 2), work.settings.flap_delay_ms_max)


def is_calm(work: Workspace, broker_id: BrokerId) -> bool:
    """Return whether a broker was fenced at most once in the last `flap_window_ms`.

    Leader balancing moves leaderships only to such brokers.
    """
    since = work.now_ms - work.settings.flap_window_ms
    return sum(at > since for at in work.memory(broker_id).fenced_at_ms) < 2

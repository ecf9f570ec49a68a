"""Brokers come, live, leave and die: registration, heartbeats, fencing, controlled shutdown.

    (unknown) --register--> FENCED --heartbeat says ready--> UNFENCED --want_shutdown--> IN SHUTDOWN
                              ^  ^                              |                            |
                register again|  +--------- fence (R20) --------+----------------------------+
                (a new life)  +---- from any state

A registration is one batch: the new life begins fenced, what the old one led moves (or is without a
leader) with a new leader epoch, and a broker that may have lost bytes leaves every ISR and ELR
(REPLICATION.md section 8). It never waits for the old life to be fenced. The old life gets
STALE_BROKER_EPOCH from its next heartbeat on, and its acknowledgements carry an old epoch.

Whoever claims to have lost nothing must prove it: class CLEAN names the broker epoch of the life
that ended cleanly, and it must be the last one; class PROCESS must come with the directories of the
last life. Otherwise the class is POWER.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek_metadata_quorum.controller.decision import GOOD, Outcome
from odradek_metadata_quorum.controller.election import Standing
from odradek_metadata_quorum.controller.recovery import wanted_log_ends
from odradek_metadata_quorum.controller.requests import (
    HeartbeatRequest,
    HeartbeatResponse,
    RegisterRequest,
    RegisterResponse,
)
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import BrokerEpoch, BrokerId, DirectoryId, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import BrokerState, PartitionState
from odradek_protocol.metadata.records import (
    NO_LEADER,
    BrokerRegistrationChange,
    PartitionChange,
    RegisterBroker,
    RestartClass,
    UnregisterBroker,
)

_FIRST_FLAP_DELAY_MS = 1_000


def register(work: Workspace, request: RegisterRequest, *, now_ms: int) -> RegisterResponse:
    """Begin a life of a broker; the same incarnation gets the same answer again."""
    before = work.image.brokers.get(request.broker_id)
    if before is not None and before.incarnation_id == request.incarnation_id:
        return RegisterResponse(broker_epoch=before.broker_epoch)
    refusal = _refusal(work, request, before)
    if refusal is not None:
        return RegisterResponse(outcome=refusal)
    restart_class = _proven_class(request, before)
    if before is not None and not _fits_one_batch(work, request, before, restart_class, now_ms):
        return RegisterResponse(
            outcome=Outcome(
                error=ErrorCode.REQUEST_TIMED_OUT,
                message=f"broker {request.broker_id} has more partitions than one batch takes: "
                "the first ones are settled, register again",
            )
        )
    work.write(
        RegisterBroker(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            directory_ids=request.directory_ids,
            restart_class=restart_class,
            endpoints=request.endpoints,
            rack=request.rack,
            features=request.features,
        )
    )
    work.write(*_registration_changes(work, request, restart_class))
    memory = work.memory(request.broker_id)
    memory.image_offset, memory.shutdown_offset = -1, None
    work.broken.pop(request.broker_id, None)
    if before is not None and not before.fenced:
        _note_fencing(work, request.broker_id, now_ms)
    work.liveness.unwatch(request.broker_id)
    return RegisterResponse(broker_epoch=work.image.brokers[request.broker_id].broker_epoch)


def _registration_changes(
    work: Workspace, request: RegisterRequest, restart_class: RestartClass
) -> list[PartitionChange]:
    """What becomes of the partitions of a broker that is fenced, and may have lost bytes."""
    changes = []
    for state in work.partitions_of(request.broker_id):
        key = TopicIdPartition(state.topic_id, state.partition)
        has_lost = restart_class is RestartClass.POWER or key in request.lost_partitions
        change = work.settled(state, (request.broker_id,) if has_lost else ())
        if change is not None:
            changes.append(change)
    return changes


def _fits_one_batch(
    work: Workspace,
    request: RegisterRequest,
    before: BrokerState,
    restart_class: RestartClass,
    now_ms: int,
) -> bool:
    """Whether the registration can be decided now; if not, a part of what it needs is written.

    The old life is fenced first, then its partitions are settled piece by piece, each piece with
    one attempt to register. That is safe at any point: a fenced broker leads nothing, and nobody
    may join an ISR under the new life before that is registered.
    """
    changes_max = work.settings.registration_changes_max
    if len(work.partitions_of(request.broker_id)) <= changes_max:
        return True
    if not before.fenced:
        work.write(_registration_change(before, fenced=True))
        work.liveness.unwatch(before.broker_id)
    changes = _registration_changes(work, request, restart_class)
    if len(changes) <= changes_max:
        return True
    if not before.fenced:
        _note_fencing(work, before.broker_id, now_ms)
    changes.sort(key=lambda change: change.leader is None)  # elections first
    work.write(*changes[:changes_max])
    return False


def _refusal(
    work: Workspace, request: RegisterRequest, before: BrokerState | None
) -> Outcome | None:
    if request.cluster_id != work.settings.cluster_id:
        return Outcome(
            error=ErrorCode.INCONSISTENT_CLUSTER_ID,
            message=f"broker {request.broker_id} belongs to cluster {request.cluster_id}, this is "
            f"cluster {work.settings.cluster_id}: point it at its own controllers, or give it an "
            "empty data directory",
        )
    if request.broker_id < 0 or not request.directory_ids or len(request.incarnation_id) != 16:
        return Outcome(
            error=ErrorCode.INVALID_REGISTRATION,
            message="a broker has an id from 0, a directory id, and an incarnation id of 16 bytes",
        )
    for name, level in work.image.features.items():
        if dict(request.features).get(name, level) < level:
            return Outcome(
                error=ErrorCode.UNSUPPORTED_VERSION,
                message=f"this cluster uses {name} at level {level}, broker {request.broker_id} "
                f"knows it to {dict(request.features)[name]}: upgrade the broker",
            )
    if (
        before is not None
        and not before.fenced
        and not set(before.directory_ids) & set(request.directory_ids)
        and work.liveness.is_connected(request.broker_id)
    ):
        return Outcome(
            error=ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            message=f"broker id {request.broker_id} is in use by a live broker with another data "
            "directory: give this one its own broker.id, or stop the other",
        )
    return None


def _proven_class(request: RegisterRequest, before: BrokerState | None) -> RestartClass:
    if before is None or set(before.directory_ids) != set(request.directory_ids):
        return RestartClass.POWER
    if before.offline_directory_ids:
        return RestartClass.POWER
    if (
        request.restart_class is RestartClass.CLEAN
        and request.previous_broker_epoch != before.broker_epoch
    ):
        return RestartClass.POWER
    return request.restart_class


def heartbeat(work: Workspace, request: HeartbeatRequest, *, now_ms: int) -> HeartbeatResponse:
    """Take note of a heartbeat and do what it asks for: fence, unfence, let go.

    A broker that cannot write is, to its partitions, one that is about to stop: it leads only what nobody else
    can lead, and leaves each ISR that stays at its minimum without it.
    """
    error = work.broker_error(request.broker_id, request.broker_epoch)
    if error is not ErrorCode.NONE:
        return HeartbeatResponse(
            error=error, seq=request.seq, is_active=True, controller_epoch=work.epoch
        )
    work.liveness.heartbeat(request.broker_id, now_ms=now_ms)
    memory = work.memory(request.broker_id)
    memory.image_offset = max(memory.image_offset, request.image_offset)
    broker = work.image.brokers[request.broker_id]
    _note_offline_directories(work, broker, request)
    _note_broken_partitions(work, request)
    broker = work.image.brokers[request.broker_id]
    leaves = request.want_shutdown or request.cannot_write
    if not broker.fenced and leaves and not broker.in_shutdown:
        _begin_shutdown(work, broker, now_ms)
    elif broker.in_shutdown and not leaves:
        _end_shutdown(work, broker)
    elif not broker.fenced and request.want_fence:
        fence(work, (request.broker_id,))
    elif broker.fenced and _may_unfence(work, broker, request, now_ms):
        _unfence(work, broker, now_ms)
    return _heartbeat_response(work, request, now_ms)


def _heartbeat_response(
    work: Workspace, request: HeartbeatRequest, now_ms: int
) -> HeartbeatResponse:
    broker = work.image.brokers[request.broker_id]
    committed = work.committed.brokers.get(request.broker_id)
    is_fenced = (
        broker.fenced
        or committed is None
        or committed.broker_epoch != broker.broker_epoch
        or committed.fenced
    )
    return HeartbeatResponse(
        seq=request.seq,
        is_active=True,
        is_fenced=is_fenced,
        may_shutdown=request.want_shutdown and _may_shutdown(work, broker, now_ms),
        controller_epoch=work.epoch,
        report_log_ends=wanted_log_ends(work, request.broker_id),
    )


def _note_offline_directories(
    work: Workspace, broker: BrokerState, request: HeartbeatRequest
) -> None:
    """R11: a broker without a directory that works is fenced and its copies count as lost.

    What does not fit into this batch follows with its next heartbeats, which say it again.
    """
    offline = {*broker.offline_directory_ids, *request.offline_directory_ids}
    offline &= {*broker.directory_ids}
    if offline == {*broker.offline_directory_ids}:
        return
    if offline != {*broker.directory_ids}:
        work.write(_registration_change(broker, offline_directory_ids=tuple(sorted(offline))))
        return
    if not broker.fenced:
        work.write(_registration_change(broker, fenced=True))
        work.liveness.unwatch(broker.broker_id)
    settled = (work.settled(s, (broker.broker_id,)) for s in work.partitions_of(broker.broker_id))
    changes = [change for change in settled if change is not None]
    work.write(*changes[: work.settings.registration_changes_max])
    if len(changes) <= work.settings.registration_changes_max:
        work.write(_registration_change(broker, offline_directory_ids=tuple(sorted(offline))))


def _registration_change(
    broker: BrokerState,
    *,
    fenced: bool | None = None,
    in_shutdown: bool | None = None,
    offline_directory_ids: tuple[DirectoryId, ...] | None = None,
) -> BrokerRegistrationChange:
    return BrokerRegistrationChange(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        fenced=fenced,
        in_shutdown=in_shutdown,
        offline_directory_ids=offline_directory_ids,
    )


def _note_broken_partitions(work: Workspace, request: HeartbeatRequest) -> None:
    """Others lead what a bug ended there; its copies stay as good as they were."""
    if not request.broken_partitions:
        work.broken.pop(request.broker_id, None)
        return
    work.broken[request.broker_id] = request.broken_partitions
    told = sorted(request.broken_partitions, key=lambda one: (one.topic_id, one.partition))
    states = [state for one in told if (state := work.state_of(one)) is not None]
    work.settle_all(states, changes_max=work.settings.partitions_per_batch_max)


def fence(work: Workspace, broker_ids: Iterable[BrokerId]) -> None:
    """R20: fence brokers; what does not fit into this batch is due at the next tick."""
    fenced = set(broker_ids)
    for broker_id in sorted(fenced):
        broker = work.image.brokers[broker_id]
        work.write(_registration_change(broker, fenced=True))
        work.liveness.unwatch(broker_id)
    states = [state for state in work.image.partitions() if not fenced.isdisjoint(state.replicas)]
    work.settle_all(states, changes_max=work.settings.partitions_per_batch_max)


def fence_dead(work: Workspace, broker_ids: Iterable[BrokerId], *, now_ms: int) -> None:
    """Fence brokers whose stream broke or that were silent too long, and remember it."""
    dead = [b for b in broker_ids if b in work.image.brokers and not work.image.brokers[b].fenced]
    for broker_id in dead:
        _note_fencing(work, broker_id, now_ms)
    if dead:
        fence(work, dead)


def _note_fencing(work: Workspace, broker_id: BrokerId, now_ms: int) -> None:
    memory = work.memory(broker_id)
    since = now_ms - work.settings.flap_window_ms
    memory.fenced_at_ms = [*[at for at in memory.fenced_at_ms if at > since][-15:], now_ms]


def _unfence_delay_ms(work: Workspace, broker_id: BrokerId, now_ms: int) -> int:
    """0, 1, 2, 4 ... s for the first, second, third, fourth fencing within the window."""
    since = now_ms - work.settings.flap_window_ms
    times = sum(at > since for at in work.memory(broker_id).fenced_at_ms)
    if times < 2:
        return 0
    return min(_FIRST_FLAP_DELAY_MS << (times - 2), work.settings.flap_delay_ms_max)


def is_calm(work: Workspace, broker_id: BrokerId, *, now_ms: int) -> bool:
    """Whether a broker has not flapped lately: only then it gets preferred leaderships back."""
    since = now_ms - work.settings.flap_window_ms
    return sum(at > since for at in work.memory(broker_id).fenced_at_ms) < 2


def _may_unfence(
    work: Workspace, broker: BrokerState, request: HeartbeatRequest, now_ms: int
) -> bool:
    """R23."""
    if request.want_fence or request.want_shutdown or broker.in_shutdown:
        return False
    if request.image_offset < broker.broker_epoch:
        return False
    if {*broker.offline_directory_ids, *request.offline_directory_ids} >= {*broker.directory_ids}:
        return False
    fenced_at_ms = work.memory(broker.broker_id).fenced_at_ms
    delay_ms = _unfence_delay_ms(work, broker.broker_id, now_ms)
    return not fenced_at_ms or now_ms >= fenced_at_ms[-1] + delay_ms


def _unfence(work: Workspace, broker: BrokerState, now_ms: int) -> None:
    work.write(_registration_change(broker, fenced=False))
    work.liveness.watch(broker.broker_id, now_ms=now_ms)
    leaderless = [s for s in work.partitions_of(broker.broker_id) if s.leader == NO_LEADER]
    work.settle_all(leaderless, changes_max=work.settings.partitions_per_batch_max)


def _begin_shutdown(work: Workspace, broker: BrokerState, now_ms: int) -> None:
    work.write(_registration_change(broker, in_shutdown=True))
    work.settle_all(
        work.partitions_of(broker.broker_id),
        changes_max=work.settings.partitions_per_batch_max,
    )
    memory = work.memory(broker.broker_id)
    memory.shutdown_offset, memory.shutdown_since_ms = work.next_offset, now_ms


def _end_shutdown(work: Workspace, broker: BrokerState) -> None:
    """A broker that could not write can again."""
    work.write(_registration_change(broker, in_shutdown=False))
    work.memory(broker.broker_id).shutdown_offset = None
    leaderless = [s for s in work.partitions_of(broker.broker_id) if s.leader == NO_LEADER]
    work.settle_all(leaderless, changes_max=work.settings.partitions_per_batch_max)


def _may_shutdown(work: Workspace, broker: BrokerState, now_ms: int) -> bool:
    """Whether its leaderships have moved and the live brokers know, or have had time to."""
    if broker.fenced:
        return True
    if not broker.in_shutdown:
        return False
    memory = work.memory(broker.broker_id)
    if memory.shutdown_offset is None:  # begun under another controller
        memory.shutdown_offset, memory.shutdown_since_ms = work.next_offset, now_ms
    led = (s for s in work.image.partitions() if s.leader == broker.broker_id)
    if any(_can_move(work, state) for state in led):
        memory.shutdown_offset = work.next_offset  # a later batch moves the rest
        work.is_repair_due = True
        return False
    if any(_is_missed(work, state, broker.broker_id) for state in work.image.partitions()):
        memory.shutdown_since_ms = now_ms  # it waits for as long as it is configured to
        return False
    if now_ms >= memory.shutdown_since_ms + work.settings.shutdown_wait_ms:
        return True
    return work.committed.offset >= memory.shutdown_offset and all(
        work.memory(other.broker_id).image_offset >= memory.shutdown_offset
        for other in work.image.brokers.values()
        if other.is_live and other.broker_id != broker.broker_id
    )


def _can_move(work: Workspace, state: PartitionState) -> bool:
    standing_of = work.standing_in(state)
    return any(standing_of(b) >= Standing.LIVE for b in state.isr if b != state.leader)


def _is_missed(work: Workspace, state: PartitionState, leaving: BrokerId) -> bool:
    """Whether acks=all would stop without this member of the ISR, and a live replica may soon replace it.

    In a rolling restart the one before may still be catching up. Where nobody can come, nor is
    awaited: the last brokers of a cluster that is shut down go at once.
    """
    if leaving not in state.isr:
        return False
    standing_of = work.standing_in(state)
    others = sum(standing_of(b) >= Standing.LIVE for b in state.isr if b != leaving)
    if others >= work.image.min_insync_replicas(state):
        return False
    return any(standing_of(b) >= Standing.LIVE for b in {*state.replicas} - {*state.isr})


def unregister(work: Workspace, broker_id: BrokerId) -> Outcome:
    """Forget a broker that will not come back; it must be fenced, and lead nothing by then."""
    broker = work.image.brokers.get(broker_id)
    if broker is None:
        return Outcome(
            error=ErrorCode.BROKER_ID_NOT_REGISTERED, message=f"there is no broker {broker_id}"
        )
    if not broker.fenced:
        return Outcome(
            error=ErrorCode.INVALID_REQUEST,
            message=f"broker {broker_id} is alive: stop it first, then unregister it",
        )
    work.write(UnregisterBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch))
    work.memories.pop(broker_id, None)
    work.broken.pop(broker_id, None)
    work.liveness.forget(broker_id)
    return GOOD


def stale_life(known: BrokerState | None, broker_epoch: BrokerEpoch) -> bool:
    """Whether a later life of the same broker is committed; a standby may tell that, too."""
    return known is not None and 0 <= broker_epoch < known.broker_epoch

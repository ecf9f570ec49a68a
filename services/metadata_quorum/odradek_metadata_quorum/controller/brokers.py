"""Heartbeats, fencing, unfencing and controlled shutdown of registered brokers.

    (unknown) --register--> FENCED --heartbeat says ready--> UNFENCED --want_shutdown--> IN SHUTDOWN
                              ^  ^                            |    ^    cannot_write         |   |
                              |  |                            |    +--- can write again -----+   |
                              |  +--------- fence (R20) ------+----------------------------------+
                              +---- register again, from any state

registration.py describes how brokers register and are unregistered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from odradek_metadata_quorum.controller.election import Standing
from odradek_metadata_quorum.controller.leaders import wanted_log_ends
from odradek_metadata_quorum.controller.liveness import Connection, Fence
from odradek_metadata_quorum.controller.requests import HeartbeatRequest, HeartbeatResponse
from odradek_metadata_quorum.controller.workspace import Workspace, note_fencing, unfence_delay_ms
from odradek_protocol.identity import BrokerEpoch, BrokerId, DirectoryId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import BrokerState, PartitionState
from odradek_protocol.metadata.records import NO_LEADER, BrokerRegistrationChange


def heartbeat(work: Workspace, request: HeartbeatRequest) -> HeartbeatResponse:
    """Handle a broker's heartbeat: fence or unfence the broker, or begin or end its shutdown.

    A broker that cannot write is treated like a broker that shuts down: it leaves each ISR that has enough other
    members, and remains the leader only of partitions that no other broker can lead. Unlike a broker that shuts down,
    it may also be elected leader of such a partition, because consumers need a leader.
    """
    error = work.broker_error(request.broker_id, request.broker_epoch)
    if error is not ErrorCode.NONE:
        return HeartbeatResponse(
            error=error, seq=request.seq, is_active=True, controller_epoch=work.epoch
        )
    work.liveness.heartbeat(request.broker_id, now_ms=work.now_ms)
    memory = work.memory(request.broker_id)
    memory.image_offset = max(memory.image_offset, request.image_offset)
    broker = work.image.brokers[request.broker_id]
    _note_offline_directories(work, broker, request)
    _note_broken_partitions(work, request)
    is_read_only = request.cannot_write and not request.want_shutdown
    if is_read_only and not memory.is_read_only:
        # This broker may be elected now for partitions without a leader.
        work.is_repair_due = True
    memory.is_read_only = is_read_only
    broker = work.image.brokers[request.broker_id]
    leaves = request.want_shutdown or request.cannot_write
    if not broker.fenced and leaves and not broker.in_shutdown:
        _begin_shutdown(work, broker)
    elif broker.in_shutdown and not leaves:
        _end_shutdown(work, broker)
    elif not broker.fenced and request.want_fence:
        _fence(work, {request.broker_id: "the broker asked to be fenced"})
    elif broker.fenced and _may_unfence(work, broker, request):
        _unfence(work, broker)
    return _heartbeat_response(work, request)


def _heartbeat_response(work: Workspace, request: HeartbeatRequest) -> HeartbeatResponse:
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
        may_shutdown=request.want_shutdown and _may_shutdown(work, broker),
        controller_epoch=work.epoch,
        report_log_ends=wanted_log_ends(work, request.broker_id),
    )


def _note_offline_directories(
    work: Workspace, broker: BrokerState, request: HeartbeatRequest
) -> None:
    """Record the offline data directories of a broker. If all its directories are offline, fence the broker, and treat
    its replicas as having lost records.

    If the changes do not fit into this batch, the next heartbeats of the broker, which report the same directories,
    cause further batches.
    """
    offline = {*broker.offline_directory_ids, *request.offline_directory_ids}
    offline &= {*broker.directory_ids}
    if offline == {*broker.offline_directory_ids}:
        return
    if offline != {*broker.directory_ids}:
        work.write(_registration_change(broker, offline_directory_ids=tuple(sorted(offline))))
        return
    if not broker.fenced:
        memory = work.memory(broker.broker_id)
        memory.fenced_because = "all its data directories are offline"
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
    """Record the replicas of a broker that failed because of an internal error, and settle their partitions. For these
    partitions the broker counts as FENCED (`Workspace.standing_in`).
    """
    if request.broken_partitions != work.broken.get(request.broker_id, frozenset()):
        for memory in work.memories.values():
            memory.judged_at = None
    if not request.broken_partitions:
        work.broken.pop(request.broker_id, None)
        return
    work.broken[request.broker_id] = request.broken_partitions
    partitions = sorted(request.broken_partitions, key=lambda p: (p.topic_id, p.partition))
    states = [state for p in partitions if (state := work.state_of(p)) is not None]
    work.settle_all(states)


def _fence(work: Workspace, reasons: Mapping[BrokerId, str]) -> None:
    """Fence brokers, for the given reasons (rule R20). Partitions whose changes do not fit into this batch are changed
    by later ticks.
    """
    for broker_id, reason in sorted(reasons.items()):
        broker = work.image.brokers[broker_id]
        work.memory(broker_id).fenced_because = reason
        work.write(_registration_change(broker, fenced=True))
        work.liveness.unwatch(broker_id)
    fenced = reasons.keys()
    work.settle_all(s for s in work.image.partitions() if not fenced.isdisjoint(s.replicas))


def fence_dead(work: Workspace, fences: Iterable[Fence]) -> None:
    """Fence brokers whose heartbeat stream broke or that sent no heartbeat for too long.

    The time of each fencing is recorded, because a broker that is fenced repeatedly must wait before it is unfenced.
    """
    reasons = {}
    for fence in fences:
        broker = work.image.brokers.get(fence.broker_id)
        if broker is None or broker.fenced:
            continue
        note_fencing(work, fence.broker_id)
        reason = (
            "the connection of its heartbeat stream broke"
            if fence.found is Connection.BROKEN
            else f"no heartbeat arrived for {work.settings.session_ms} ms"
        )
        if delay_ms := unfence_delay_ms(work, fence.broker_id):
            reason += f"; it was fenced before, so it stays fenced for at least {delay_ms} ms"
        reasons[fence.broker_id] = reason
    if reasons:
        _fence(work, reasons)


def _may_unfence(work: Workspace, broker: BrokerState, request: HeartbeatRequest) -> bool:
    """Return whether a fenced broker may be unfenced now (rule R23).

    The broker must not ask to stay fenced or to shut down, its image must include its registration, and a data
    directory must work. A broker that was fenced repeatedly must also wait (`unfence_delay_ms`).
    """
    if request.want_fence or request.want_shutdown:
        return False
    if request.image_offset < broker.broker_epoch:
        return False
    if {*broker.offline_directory_ids, *request.offline_directory_ids} >= {*broker.directory_ids}:
        return False
    fenced_at_ms = work.memory(broker.broker_id).fenced_at_ms
    delay_ms = unfence_delay_ms(work, broker.broker_id)
    return not fenced_at_ms or work.now_ms >= fenced_at_ms[-1] + delay_ms


def _unfence(work: Workspace, broker: BrokerState) -> None:
    """Unfence a broker. If the broker cannot write, it may become leader of partitions now; its next heartbeat moves
    these leaderships to other brokers.
    """
    in_shutdown = False if broker.in_shutdown else None
    work.write(_registration_change(broker, fenced=False, in_shutdown=in_shutdown))
    work.liveness.watch(broker.broker_id, now_ms=work.now_ms)
    leaderless = [s for s in work.partitions_of(broker.broker_id) if s.leader == NO_LEADER]
    work.settle_all(leaderless)


def _begin_shutdown(work: Workspace, broker: BrokerState) -> None:
    work.write(_registration_change(broker, in_shutdown=True))
    work.settle_all(work.partitions_of(broker.broker_id))
    memory = work.memory(broker.broker_id)
    memory.shutdown_offset, memory.shutdown_since_ms = work.next_offset, work.now_ms


def _end_shutdown(work: Workspace, broker: BrokerState) -> None:
    """End the shutdown state of a broker that can write again or that no longer asks for a shutdown."""
    work.write(_registration_change(broker, in_shutdown=False))
    work.memory(broker.broker_id).shutdown_offset = None
    leaderless = [s for s in work.partitions_of(broker.broker_id) if s.leader == NO_LEADER]
    work.settle_all(leaderless)


def _may_shutdown(work: Workspace, broker: BrokerState) -> bool:
    """Return whether a broker may stop now: its leaderships have moved to other brokers, and the live brokers have
    replayed these changes or had enough time to do so.
    """
    if broker.fenced:
        return True
    if not broker.in_shutdown:
        return False
    memory = work.memory(broker.broker_id)
    # The offset is None if the shutdown began under another controller.
    if memory.shutdown_offset is None:
        memory.shutdown_offset, memory.shutdown_since_ms = work.next_offset, work.now_ms
    # `leads_what_can_move` and `is_missed` are computed from all partitions, which takes long. Only a new record or a
    # change of the failed replicas (`_note_broken_partitions`) can change them.
    if memory.judged_at != work.next_offset:
        memory.judged_at = work.next_offset
        led = (s for s in work.image.partitions() if s.leader == broker.broker_id)
        memory.leads_what_can_move = any(_can_move(work, state) for state in led)
        memory.is_missed = any(
            _is_missed(work, state, broker.broker_id) for state in work.image.partitions()
        )
    if memory.leads_what_can_move:
        # Some leaderships are not moved yet. A later batch moves them, so the wait begins again.
        memory.shutdown_offset = work.next_offset
        work.is_repair_due = True
        return False
    if memory.is_missed:
        # The broker does not wait for ever: after controlled.shutdown.timeout.ms it stops without permission.
        memory.shutdown_since_ms = work.now_ms
        return False
    if work.now_ms >= memory.shutdown_since_ms + work.settings.shutdown_wait_ms:
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
    """Return whether a broker should wait before it stops, because without it writes with acks=all would fail, and a
    live replica that is out of sync may soon replace it in the ISR.

    In a rolling restart, the broker that restarted last may still be catching up. If no other replica is live, as when
    a whole cluster is shut down, the broker need not wait.
    """
    if leaving not in state.isr:
        return False
    standing_of = work.standing_in(state)
    others = sum(standing_of(b) >= Standing.LIVE for b in state.isr if b != leaving)
    if others >= work.image.min_insync_replicas(state):
        return False
    return any(standing_of(b) >= Standing.LIVE for b in {*state.replicas} - {*state.isr})


def is_stale_epoch(broker: BrokerState | None, broker_epoch: BrokerEpoch) -> bool:
    """Return whether the broker has registered again since it got this broker epoch.

    `broker` is the broker's committed registration, so a standby controller can decide this, too.
    """
    return broker is not None and 0 <= broker_epoch < broker.broker_epoch

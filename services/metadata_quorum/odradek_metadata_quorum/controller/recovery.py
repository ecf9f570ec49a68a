"""Leaderless partitions that no clean election can help: whose log is the longest? (R22)

A partition is without a leader and stays so while a replica of its ISR or ELR that lost no bytes
may come back. Two ways lead on from here; both ask replicas for (last epoch, log end), through the
answers to their heartbeats, and take the greatest:

    all lost     every member of ISR and ELR has lost bytes (`lost`: power cut at all copies). Once
                 all of ISR, ELR and `lost` are live again and have told, the greatest leads. Nobody
                 else can have more, and without one of them the greatest may be missing.
    unclean      unclean.leader.election.enable is on for the topic, and nobody came back for
                 `unclean.recovery.wait.ms`: the greatest of those that are live leads.

The chosen one becomes the whole ISR, RECOVERING, and says by AlterPartition when its high watermark
is at its log end. What a broker told in an earlier life does not count: bytes may be gone since.

What a new active controller does not know of this (soft state) it asks for again; its waits begin
at its activation.
"""

from __future__ import annotations

from odradek_metadata_quorum.controller.election import (
    Standing,
    clean_candidate_exists,
    elect_unclean,
)
from odradek_metadata_quorum.controller.requests import ReportLogEndsRequest
from odradek_metadata_quorum.controller.workspace import Inquiry, Workspace
from odradek_protocol.identity import BrokerId, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import TOPIC_CONFIGS, resolve_topic_config
from odradek_protocol.metadata.image import PartitionState
from odradek_protocol.metadata.records import NO_LEADER

LOG_ENDS_PER_HEARTBEAT_MAX = 200
CHECK_INTERVAL_MS = 200  # looking at 10,000 partitions takes about 2 ms


def pursue(work: Workspace) -> None:
    """Look at all leaderless partitions: begin to ask, or elect who has the longest log."""
    checked_at_ms = work.leaderless_checked_at_ms
    if checked_at_ms is not None and work.now_ms < checked_at_ms + CHECK_INTERVAL_MS:
        return
    work.leaderless_checked_at_ms = work.now_ms
    leaderless = {
        (state.topic_id, state.partition): state
        for state in work.image.partitions()
        if state.leader == NO_LEADER
    }
    for key in work.inquiries.keys() - leaderless.keys():
        del work.inquiries[key]
    elected = 0
    for key, state in leaderless.items():
        inquiry = work.inquiries.setdefault(key, Inquiry(leaderless_since_ms=work.now_ms))
        if elected == work.settings.partitions_per_batch_max:
            break
        if clean_candidate_exists(state, work.standing_in(state)):
            work.is_repair_due = True
            continue
        leader = _pursue_one(work, state, inquiry)
        if leader is not None:
            work.write(elect_unclean(state, leader))
            del work.inquiries[key]
            elected += 1
    work.log_ends_wanted = _log_ends_wanted(work)


def _pursue_one(work: Workspace, state: PartitionState, inquiry: Inquiry) -> BrokerId | None:
    """Who leads; None: nobody yet."""
    known_good = {*state.isr, *state.elr, *state.lost}
    if {*state.isr, *state.elr} <= {*state.lost}:
        _ask(work, inquiry)
        if known_good <= {*live_replicas(work, state)}:
            return _longest(work, state, inquiry, needed=known_good)
    if not is_unclean_allowed(work, state):
        return None
    wait_ms = work.config("unclean.recovery.wait.ms")
    assert isinstance(wait_ms, int)
    if work.now_ms < inquiry.leaderless_since_ms + wait_ms:
        return None
    return _longest(work, state, inquiry, needed=set())


def is_unclean_allowed(work: Workspace, state: PartitionState) -> bool:
    """Whether the topic puts availability above acknowledged records."""
    definition = TOPIC_CONFIGS["unclean.leader.election.enable"]
    topic = work.image.topics[state.topic_id]
    return definition.parse(resolve_topic_config(work.image, topic.name, definition)[0]) is True


def _ask(work: Workspace, inquiry: Inquiry) -> None:
    if inquiry.asked_at_ms is None:
        inquiry.asked_at_ms = work.now_ms


def _longest(
    work: Workspace,
    state: PartitionState,
    inquiry: Inquiry,
    *,
    needed: set[BrokerId],
) -> BrokerId | None:
    _ask(work, inquiry)
    assert inquiry.asked_at_ms is not None, inquiry
    live = live_replicas(work, state)
    told = {b: end for b in live if (end := log_end_told(work, inquiry, b)) is not None}
    if not needed <= told.keys() or not told:
        return None
    is_over = work.now_ms >= inquiry.asked_at_ms + work.settings.report_wait_ms
    if len(told) < len(live) and not is_over:
        return None
    return max(told, key=lambda b: (told[b], -state.replicas.index(b)))


def log_end_told(work: Workspace, inquiry: Inquiry, broker_id: BrokerId) -> tuple[int, int] | None:
    """(last epoch, log end) that a broker told in its present life."""
    told = inquiry.log_ends.get(broker_id)
    if told is None or told[0] != work.image.brokers[broker_id].broker_epoch:
        return None
    return told[1], told[2]


def live_replicas(work: Workspace, state: PartitionState) -> list[BrokerId]:
    """Those that may lead this partition now, were they in sync; in replica order."""
    standing_of = work.standing_in(state)
    return [b for b in state.replicas if standing_of(b) >= Standing.LIVE]


def _log_ends_wanted(work: Workspace) -> dict[BrokerId, list[TopicIdPartition]]:
    """What each broker is to report next: found once for all of them, and not at each heartbeat."""
    wanted: dict[BrokerId, list[TopicIdPartition]] = {}
    for (topic_id, index), inquiry in work.inquiries.items():
        if inquiry.asked_at_ms is None:
            continue
        state = work.image.partition(topic_id, index)
        for broker_id in state.replicas if state is not None else ():
            of_broker = wanted.setdefault(broker_id, [])
            if len(of_broker) < LOG_ENDS_PER_HEARTBEAT_MAX and not _has_told(
                work, inquiry, broker_id
            ):
                of_broker.append(TopicIdPartition(topic_id, index))
    return wanted


def _has_told(work: Workspace, inquiry: Inquiry, broker_id: BrokerId) -> bool:
    return broker_id in work.image.brokers and log_end_told(work, inquiry, broker_id) is not None


def wanted_log_ends(work: Workspace, broker_id: BrokerId) -> tuple[TopicIdPartition, ...]:
    """What a broker is to report, a bounded piece of it; one that is not live may not know."""
    if work.standing_of(broker_id) < Standing.LIVE:
        return ()
    return tuple(
        one
        for one in work.log_ends_wanted.get(broker_id, ())
        if (inquiry := work.inquiries.get((one.topic_id, one.partition))) is not None
        and log_end_told(work, inquiry, broker_id) is None
    )


def report_log_ends(work: Workspace, request: ReportLogEndsRequest) -> ErrorCode:
    """Take note of what a broker holds; answers to questions that nobody asks now are dropped."""
    error = work.broker_error(request.broker_id, request.broker_epoch)
    if error is not ErrorCode.NONE:
        return error
    for told in request.partitions:
        inquiry = work.inquiries.get((told.partition.topic_id, told.partition.partition))
        if inquiry is not None and inquiry.asked_at_ms is not None:
            inquiry.log_ends[request.broker_id] = (
                request.broker_epoch,
                told.last_epoch,
                told.log_end,
            )
    return ErrorCode.NONE

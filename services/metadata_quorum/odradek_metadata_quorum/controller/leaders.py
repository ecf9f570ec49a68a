"""Elections of leaders by command, elections of preferred leaders that balance the leaderships, and unclean elections.

The preferred leader of a partition is its first replica. After a broker failed, the remaining brokers lead its
partitions. `rebalance` moves these leaderships back: every `leader.imbalance.check.interval.seconds`, it counts for
each broker the partitions whose preferred leader is this broker. If more than `leader.imbalance.per.broker.percentage`
of them have another leader and could be led by this broker now, the broker is elected leader of these. A broker that
was fenced more than once within the last minute gets no leaderships back.

Unclean recovery (rule R22) is for a partition without a leader for which a clean election is impossible. Such a
partition waits, without a leader, until a replica of its ISR or ELR that lost no bytes returns. In two cases the
controller elects a leader nevertheless. In its responses to heartbeats it requests (last epoch, log end) of the
replicas, and elects the replica with the greatest pair.

    all lost     Every member of the ISR and ELR has lost bytes (it is in `lost`), for example because the power
                 failed everywhere. When all replicas in ISR, ELR and `lost` are live and have reported, the one
                 with the greatest pair is elected. The controller waits for all of them, because any of them
                 may have the longest log; no other replica can have a longer one.
    unclean      The topic has unclean.leader.election.enable, and for `unclean.recovery.wait.ms` no replica of
                 the ISR or ELR that lost no bytes has returned. The live replica with the greatest pair is
                 elected.

The elected replica becomes the only member of the ISR, and the partition is RECOVERING. When the high watermark of the
leader has reached its log end, the leader reports the end of the recovery by AlterPartition. A report of a broker with
an earlier broker epoch does not count, because the broker may have lost bytes since.

Reports and waiting times are only in memory. A new active controller requests the reports again, and its waiting times
begin when it becomes active.
"""

from __future__ import annotations

from collections import Counter

from odradek_metadata_quorum.controller.election import (
    Standing,
    clean_candidate_exists,
    elect_preferred,
    elect_unclean,
)
from odradek_metadata_quorum.controller.requests import (
    GOOD,
    ElectLeadersRequest,
    Outcome,
    PartitionResult,
    ReportLogEndsRequest,
)
from odradek_metadata_quorum.controller.workspace import Inquiry, Workspace, is_calm
from odradek_protocol.identity import BrokerId, TopicIdPartition, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import TOPIC_CONFIGS, resolve_topic_config
from odradek_protocol.metadata.image import PartitionState
from odradek_protocol.metadata.records import NO_LEADER, PartitionChange


def elect_leaders(work: Workspace, request: ElectLeadersRequest) -> tuple[PartitionResult, ...]:
    """Elect leaders at the request of a user. If the request names no partitions, all partitions are tried, and the
    results have only those that needed an election.
    """
    results: list[PartitionResult] = []
    changes = 0
    for partition in request.partitions or _all_partitions(work):
        if changes == work.settings.partitions_per_batch_max:
            if not request.partitions:
                # The other leaderships are moved by the automatic balancing, or when the user repeats the command.
                break
            outcome = Outcome(
                error=ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                message=f"one request can cause at most {changes} elections: name this partition in another request",
            )
        else:
            outcome = _elect(work, partition, unclean=request.unclean)
            changes += outcome.is_good
        if request.partitions or outcome.error is not ErrorCode.ELECTION_NOT_NEEDED:
            results.append(PartitionResult(partition=partition, outcome=outcome))
    return tuple(results)


def _all_partitions(work: Workspace) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.name, state.partition)
        for topic in work.image.topics.values()
        for state in topic.partitions
    )


def _elect(work: Workspace, partition: TopicPartition, *, unclean: bool) -> Outcome:
    topic = work.image.topic(partition.topic)
    if topic is None or not 0 <= partition.partition < len(topic.partitions):
        return Outcome(
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=f"there is no {partition}"
        )
    state = topic.partitions[partition.partition]
    return _elect_unclean(work, state) if unclean else _elect_preferred(work, state)


def _elect_preferred(work: Workspace, state: PartitionState) -> Outcome:
    if state.leader == state.replicas[0]:
        return Outcome(
            error=ErrorCode.ELECTION_NOT_NEEDED,
            message=f"broker {state.leader}, the preferred leader, already leads the partition",
        )
    change = elect_preferred(state, work.standing_in(state))
    if change is None:
        return Outcome(
            error=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            message=f"broker {state.replicas[0]}, the preferred leader, is fenced, shutting down, or not in sync",
        )
    work.write(change)
    return GOOD


def _elect_unclean(work: Workspace, state: PartitionState) -> Outcome:
    if state.leader != NO_LEADER:
        return Outcome(
            error=ErrorCode.ELECTION_NOT_NEEDED,
            message=f"no election is needed: broker {state.leader} leads the partition",
        )
    clean = work.settled(state)
    if clean is not None and clean.leader not in (None, NO_LEADER):
        work.write(clean)
        return GOOD
    live = live_replicas(work, state)
    if not live:
        return Outcome(
            error=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            message=f"no replica can be elected: none of the brokers {list(state.replicas)} is live; start one of them",
        )
    inquiry = work.inquiries.get((state.topic_id, state.partition))
    log_ends = {b: None if inquiry is None else reported_log_end(work, inquiry, b) for b in live}
    best = max(live, key=lambda b: (log_ends[b] or (-1, -1), -live.index(b)))
    work.write(elect_unclean(state, best))
    return GOOD


def rebalance(work: Workspace) -> None:
    """If `leader.imbalance.check.interval.seconds` have passed, elect the preferred leaders of partitions whose
    preferred leaders lead too few partitions.
    """
    interval_s = work.config("leader.imbalance.check.interval.seconds")
    assert isinstance(interval_s, int)
    if work.now_ms < work.leaders_checked_at_ms + interval_s * 1000:
        return
    work.leaders_checked_at_ms = work.now_ms
    if not work.config("auto.leader.rebalance.enable"):
        return
    percentage = work.config("leader.imbalance.per.broker.percentage")
    assert isinstance(percentage, int)
    changes_by_broker: dict[BrokerId, list[PartitionChange]] = {}
    preferred_counts: Counter[BrokerId] = Counter()
    for state in work.image.partitions():
        preferred = state.replicas[0]
        preferred_counts[preferred] += 1
        if state.leader != preferred and is_calm(work, preferred):
            change = elect_preferred(state, work.standing_in(state))
            if change is not None:
                changes_by_broker.setdefault(preferred, []).append(change)
    changes = [
        change
        for broker_id, of_broker in changes_by_broker.items()
        if 100 * len(of_broker) > percentage * preferred_counts[broker_id]
        for change in of_broker
    ]
    work.write(*changes[: work.settings.partitions_per_batch_max])
    if len(changes) > work.settings.partitions_per_batch_max:
        # The next tick moves the other leaderships.
        work.leaders_checked_at_ms = work.now_ms - interval_s * 1000


LOG_ENDS_PER_HEARTBEAT_MAX = 200
CHECK_INTERVAL_MS = 200  # a check of 10,000 partitions takes about 2 ms


def pursue(work: Workspace) -> None:
    """Handle all partitions without a leader (rule R22): request the log end offsets of their replicas, or elect the
    replica with the longest log. Called at each tick; it does its work at most every `CHECK_INTERVAL_MS`.
    """
    checked_at_ms = work.leaderless_checked_at_ms
    if checked_at_ms is not None and work.now_ms < checked_at_ms + CHECK_INTERVAL_MS:
        return
    work.leaderless_checked_at_ms = work.now_ms
    if not work.inquiries and work.leaderless_checked_offset == work.image.offset:
        # The last check left no partition without a leader, and only a new record can take a leader away.
        return
    work.leaderless_checked_offset = work.image.offset
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
    """Return the broker to elect uncleanly as leader of a partition; None if no broker can be elected yet."""
    candidates = {*state.isr, *state.elr, *state.lost}
    if {*state.isr, *state.elr} <= {*state.lost}:
        _ask(work, inquiry)
        if candidates <= {*live_replicas(work, state)}:
            return _longest(work, state, inquiry, needed=candidates)
    if not is_unclean_allowed(work, state):
        return None
    wait_ms = work.config("unclean.recovery.wait.ms")
    assert isinstance(wait_ms, int)
    if work.now_ms < inquiry.leaderless_since_ms + wait_ms:
        return None
    return _longest(work, state, inquiry, needed=set())


def is_unclean_allowed(work: Workspace, state: PartitionState) -> bool:
    """Return whether unclean.leader.election.enable is true for the partition's topic."""
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
    log_ends = {b: end for b in live if (end := reported_log_end(work, inquiry, b)) is not None}
    if not needed <= log_ends.keys() or not log_ends:
        return None
    is_over = work.now_ms >= inquiry.asked_at_ms + work.settings.report_wait_ms
    if len(log_ends) < len(live) and not is_over:
        return None
    return max(log_ends, key=lambda b: (log_ends[b], -state.replicas.index(b)))


def reported_log_end(
    work: Workspace, inquiry: Inquiry, broker_id: BrokerId
) -> tuple[int, int] | None:
    """Return (last epoch, log end) of a replica, as its broker reported it. Return None if the broker has not reported
    since it registered last.
    """
    report = inquiry.log_ends.get(broker_id)
    if report is None or report[0] != work.image.brokers[broker_id].broker_epoch:
        return None
    return report[1], report[2]


def live_replicas(work: Workspace, state: PartitionState) -> list[BrokerId]:
    """Return the replicas, in replica order, whose brokers are live and whose replica of this partition
    has not failed.
    """
    standing_of = work.standing_in(state)
    return [b for b in state.replicas if standing_of(b) >= Standing.LIVE]


def _log_ends_wanted(work: Workspace) -> dict[BrokerId, list[TopicIdPartition]]:
    """Return, for each broker, the replicas whose log end offsets it must report next.

    `pursue` computes this once for all brokers, because computing it at each heartbeat would take too long.
    """
    by_broker: dict[BrokerId, list[TopicIdPartition]] = {}
    for (topic_id, index), inquiry in work.inquiries.items():
        if inquiry.asked_at_ms is None:
            continue
        state = work.image.partition(topic_id, index)
        for broker_id in state.replicas if state is not None else ():
            of_broker = by_broker.setdefault(broker_id, [])
            if len(of_broker) < LOG_ENDS_PER_HEARTBEAT_MAX and not _has_reported(
                work, inquiry, broker_id
            ):
                of_broker.append(TopicIdPartition(topic_id, index))
    return by_broker


def _has_reported(work: Workspace, inquiry: Inquiry, broker_id: BrokerId) -> bool:
    return (
        broker_id in work.image.brokers and reported_log_end(work, inquiry, broker_id) is not None
    )


def wanted_log_ends(work: Workspace, broker_id: BrokerId) -> tuple[TopicIdPartition, ...]:
    """Return replicas whose log end offsets the broker must report, at most `LOG_ENDS_PER_HEARTBEAT_MAX`.

    The result is empty for a broker that is not live, because its image may not have these replicas yet.
    """
    if work.standing_of(broker_id) < Standing.LIVE:
        return ()
    return tuple(
        partition
        for partition in work.log_ends_wanted.get(broker_id, ())
        if (inquiry := work.inquiries.get((partition.topic_id, partition.partition))) is not None
        and reported_log_end(work, inquiry, broker_id) is None
    )


def report_log_ends(work: Workspace, request: ReportLogEndsRequest) -> ErrorCode:
    """Record the log end offsets that a broker reported. Offsets that were not requested are ignored."""
    error = work.broker_error(request.broker_id, request.broker_epoch)
    if error is not ErrorCode.NONE:
        return error
    for log_end in request.partitions:
        inquiry = work.inquiries.get((log_end.partition.topic_id, log_end.partition.partition))
        if inquiry is not None and inquiry.asked_at_ms is not None:
            inquiry.log_ends[request.broker_id] = (
                request.broker_epoch,
                log_end.last_epoch,
                log_end.log_end,
            )
    return ErrorCode.NONE

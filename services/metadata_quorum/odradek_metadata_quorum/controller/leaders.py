"""Leaderships move by command or by themselves: preferred elections, unclean ones, the balance.

The preferred leader is the first replica. After a failure leaderships gather on those that stayed;
`rebalance` brings them back: every `leader.imbalance.check.interval.seconds`, for each broker of
whose preferred leaderships more than `leader.imbalance.per.broker.percentage` are elsewhere. A
broker that flapped lately is left out until it has been calm for a minute.
"""

from __future__ import annotations

from collections import Counter

from odradek_metadata_quorum.controller.decision import GOOD, Outcome
from odradek_metadata_quorum.controller.election import elect_preferred, elect_unclean
from odradek_metadata_quorum.controller.flapping import is_calm
from odradek_metadata_quorum.controller.recovery import live_replicas, log_end_told
from odradek_metadata_quorum.controller.requests import ElectLeadersRequest, PartitionResult
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import BrokerId, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import PartitionState
from odradek_protocol.metadata.records import NO_LEADER, PartitionChange


def elect_leaders(work: Workspace, request: ElectLeadersRequest) -> tuple[PartitionResult, ...]:
    """Elect by command. Without partitions named: all, and only those that changed are told."""
    results: list[PartitionResult] = []
    changes = 0
    for partition in request.partitions or _all_partitions(work):
        if changes == work.settings.partitions_per_batch_max:
            if not request.partitions:
                break  # the command may be repeated; the balance goes on by itself
            outcome = Outcome(
                error=ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                message=f"at most {changes} elections in one request: ask for the rest again",
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
            message=f"broker {state.leader} is the preferred leader and leads",
        )
    change = elect_preferred(state, work.standing_in(state))
    if change is None:
        return Outcome(
            error=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            message=f"broker {state.replicas[0]} is fenced, on its way out, or not in sync",
        )
    work.write(change)
    return GOOD


def _elect_unclean(work: Workspace, state: PartitionState) -> Outcome:
    if state.leader != NO_LEADER:
        return Outcome(error=ErrorCode.ELECTION_NOT_NEEDED, message=f"broker {state.leader} leads")
    clean = work.settled(state)
    if clean is not None and clean.leader not in (None, NO_LEADER):
        work.write(clean)
        return GOOD
    live = live_replicas(work, state)
    if not live:
        return Outcome(
            error=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            message=f"none of its replicas {list(state.replicas)} is live",
        )
    inquiry = work.inquiries.get((state.topic_id, state.partition))
    told = {b: None if inquiry is None else log_end_told(work, inquiry, b) for b in live}
    best = max(live, key=lambda b: (told[b] or (-1, -1), -live.index(b)))
    work.write(elect_unclean(state, best))
    return GOOD


def rebalance(work: Workspace) -> None:
    """Elect preferred leaders where too many are elsewhere, if it is time to look."""
    interval_s = work.config("leader.imbalance.check.interval.seconds")
    assert isinstance(interval_s, int)
    if work.now_ms < work.leaders_checked_at_ms + interval_s * 1000:
        return
    work.leaders_checked_at_ms = work.now_ms
    if not work.config("auto.leader.rebalance.enable"):
        return
    percentage = work.config("leader.imbalance.per.broker.percentage")
    assert isinstance(percentage, int)
    wanted: dict[BrokerId, list[PartitionChange]] = {}
    preferred_counts: Counter[BrokerId] = Counter()
    for state in work.image.partitions():
        preferred = state.replicas[0]
        preferred_counts[preferred] += 1
        if state.leader != preferred and is_calm(work, preferred):
            change = elect_preferred(state, work.standing_in(state))
            if change is not None:
                wanted.setdefault(preferred, []).append(change)
    changes = [
        change
        for broker_id, elsewhere in wanted.items()
        if 100 * len(elsewhere) > percentage * preferred_counts[broker_id]
        for change in elsewhere
    ]
    work.write(*changes[: work.settings.partitions_per_batch_max])
    if len(changes) > work.settings.partitions_per_batch_max:
        work.leaders_checked_at_ms = work.now_ms - interval_s * 1000  # the rest with the next tick

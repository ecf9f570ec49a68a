"""What a broker sets for groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_broker.settings.log_settings import LogSettings
from odradek_runtime.settings import setting

_INT32_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings(LogSettings):
    """The group coordinator; on top of the logs', as slotted classes have one line of ancestors."""

    # --- groups --------------------------------------------------------------------------------
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        "How long the first rebalance of an empty group waits for more members.",
        default=3_000,
        unit="ms",
        minimum=0,
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        "Least session time-out of a member.",
        default=6_000,
        unit="ms",
        minimum=1,
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        "Greatest session time-out of a member.",
        default=1_800_000,
        unit="ms",
        minimum=1,
    )
    group_max_size: int = setting(
        "group.max.size", "Most members of a group.", default=_INT32_MAX, minimum=1
    )
    group_consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        "Session time-out of the consumer protocol (KIP-848).",
        default=45_000,
        unit="ms",
        minimum=1,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        "Heartbeat interval of the consumer protocol while a group is calm.",
        default=3_000,
        unit="ms",
        minimum=1,
    )
    group_consumer_rebalance_heartbeat_interval_ms: int = setting(
        "group.consumer.rebalance.heartbeat.interval.ms",
        "Heartbeat interval while a group rebalances, or a member's session is about to end (not in Kafka).",
        default=500,
        unit="ms",
        minimum=1,
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size",
        "Most members of a consumer group.",
        default=_INT32_MAX,
        minimum=1,
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors",
        "Server-side assignors, the first is the default.",
        default=("uniform", "range"),
    )
    group_consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        "Which way a group with members may go between the protocols: upgrade is from classic to consumer.",
        default="bidirectional",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        "Partitions of __consumer_offsets.",
        default=50,
        minimum=1,
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        "Replicas of __consumer_offsets (fewer while fewer brokers are there).",
        default=3,
        minimum=1,
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        "Segment size of __consumer_offsets.",
        default=100 << 20,
        unit="bytes",
        minimum=1,
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        "How long the offsets of an empty group are kept.",
        default=10_080,
        unit="min",
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        "Time between two looks for offsets to drop.",
        default=600_000,
        unit="ms",
        minimum=1,
    )
    offset_metadata_bytes_max: int = setting(
        "offset.metadata.max.bytes",
        "Largest note beside a committed offset.",
        default=4096,
        unit="bytes",
        minimum=0,
    )

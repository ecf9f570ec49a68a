"""Settings of the group coordinator and of its internal topic, `__consumer_offsets`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_broker.settings.log_settings import LogSettings
from odradek_runtime.settings import setting

_INT32_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings(LogSettings):
    """Settings of the group coordinator.

    They extend the log settings because dataclasses with slots cannot have several parents with fields.
    """

    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        "How long the first rebalance of an empty classic group waits for more members.",
        default=3_000,
        unit="ms",
        minimum=0,
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        "Shortest session timeout that a member of a classic group may ask for.",
        default=6_000,
        unit="ms",
        minimum=1,
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        "Longest session timeout that a member of a classic group may ask for.",
        default=1_800_000,
        unit="ms",
        minimum=1,
    )
    group_max_size: int = setting(
        "group.max.size",
        "Most members of a classic group. Further members are refused.",
        default=_INT32_MAX,
        minimum=1,
    )
    group_consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        "A member of a consumer group (KIP-848) that sends no heartbeat for this long is removed.",
        default=45_000,
        unit="ms",
        minimum=1,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        "Heartbeat interval of members of a consumer group (KIP-848) that is stable.",
        default=3_000,
        unit="ms",
        minimum=1,
    )
    group_consumer_rebalance_heartbeat_interval_ms: int = setting(
        "group.consumer.rebalance.heartbeat.interval.ms",
        "Heartbeat interval of members of a consumer group while it rebalances, or while the session of one of"
        " them is about to expire (not in Kafka).",
        default=500,
        unit="ms",
        minimum=1,
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size",
        "Most members of a consumer group (KIP-848). Further members are refused.",
        default=_INT32_MAX,
        minimum=1,
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors",
        "Server-side assignors that consumer groups may choose. The first one is the default.",
        default=("uniform", "range"),
    )
    group_consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        "Whether a group with members may change its protocol: upgrade is from classic to consumer, downgrade is"
        " from consumer to classic.",
        default="bidirectional",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        "Partitions of __consumer_offsets. Counts when the topic is created.",
        default=50,
        minimum=1,
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        "Replicas of __consumer_offsets. It is created with fewer if fewer brokers are live then.",
        default=3,
        minimum=1,
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        "Segment size of __consumer_offsets. Counts when the topic is created.",
        default=100 << 20,
        unit="bytes",
        minimum=1,
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        "How long the committed offsets of a group without members are kept.",
        default=10_080,
        unit="min",
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        "Time between two checks for expired offsets.",
        default=600_000,
        unit="ms",
        minimum=1,
    )
    offset_metadata_bytes_max: int = setting(
        "offset.metadata.max.bytes",
        "Longest metadata string that a client may commit with an offset.",
        default=4096,
        unit="bytes",
        minimum=0,
    )

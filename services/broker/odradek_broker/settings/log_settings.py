"""What a broker sets for the logs of topics that set nothing themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_broker.log.log_config import (
    Durability,
    LogConfig,
    TimestampKind,
    cleanup_policies,
)
from odradek_runtime.settings import NodeSettings, setting

_HOUR_MS: Final = 3_600_000
_INT64_MAX: Final = (1 << 63) - 1


def _policies(text: str) -> str:
    if not cleanup_policies(text) <= {"delete", "compact"}:
        raise ValueError("delete, compact, both, or nothing")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(NodeSettings):
    """Topics and their logs."""

    # --- topics --------------------------------------------------------------------------------
    num_partitions: int = setting(
        "num.partitions",
        "Partitions of a topic that comes into being because somebody asks for it, where the cluster has no"
        " default; one that is made without a count gets the cluster's.",
        default=1,
        minimum=1,
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        "Replicas of a topic that comes into being because somebody asks for it; see num.partitions.",
        default=1,
        minimum=1,
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        "In-sync replicas that acks=all needs. The controllers' counts, not this one.",
        default=1,
        minimum=1,
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        "Whether asking for the metadata of a missing topic may create it, where the cluster has no default.",
        default=True,
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        "Whether a replica out of sync may lead when no other is left (loses records). The controllers'"
        " counts, not this one.",
        default=False,
    )

    # --- the log -------------------------------------------------------------------------------
    log_segment_bytes: int = setting(
        "log.segment.bytes", "Size of a segment.", default=1 << 30, unit="bytes", minimum=14
    )
    log_roll_ms: int = setting(
        "log.roll.ms",
        "Age at which a segment is closed; -1: log.roll.hours.",
        default=-1,
        unit="ms",
        minimum=-1,
    )
    log_roll_hours: int = setting(
        "log.roll.hours", "Age at which a segment is closed.", default=168, unit="h", minimum=1
    )
    log_index_size_max_bytes: int = setting(
        "log.index.size.max.bytes", "Size of an index.", default=10 << 20, unit="bytes", minimum=4
    )
    log_index_interval_bytes: int = setting(
        "log.index.interval.bytes",
        "Log bytes between two index entries.",
        default=4096,
        unit="bytes",
        minimum=0,
    )
    log_retention_bytes: int = setting(
        "log.retention.bytes",
        "Size of a partition above which closed segments leave, never the active one; -1: no bound.",
        default=-1,
        unit="bytes",
        minimum=-1,
    )
    log_retention_ms: int = setting(
        "log.retention.ms",
        "Age at which segments leave; -1: never, -2: see log.retention.minutes.",
        default=-2,
        unit="ms",
        minimum=-2,
    )
    log_retention_minutes: int = setting(
        "log.retention.minutes",
        "Age at which segments leave; -2: see log.retention.hours.",
        default=-2,
        unit="min",
        minimum=-2,
    )
    log_retention_hours: int = setting(
        "log.retention.hours",
        "Age at which segments leave; -1: never.",
        default=168,
        unit="h",
        minimum=-1,
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        "Time between two looks for segments that may leave.",
        default=300_000,
        unit="ms",
        minimum=1,
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        "Idempotent producers that wrote nothing to a partition for longer are forgotten there.",
        default=86_400_000,
        unit="ms",
        minimum=1,
    )
    log_cleanup_policy: str = setting(
        "log.cleanup.policy",
        "delete, compact, or both; empty: nothing is deleted or compacted.",
        default="delete",
        parse=_policies,
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        "Time between two looks for partitions to compact.",
        default=15_000,
        unit="ms",
        minimum=0,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        "log.cleaner.min.cleanable.ratio",
        "Share of uncleaned bytes from which compaction starts.",
        default=0.5,
        minimum=0,
        maximum=1,
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        "log.cleaner.min.compaction.lag.ms",
        "Age below which records are not compacted.",
        default=0,
        unit="ms",
        minimum=0,
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        "log.cleaner.max.compaction.lag.ms",
        "Age at which records are compacted whatever the ratio.",
        default=_INT64_MAX,
        unit="ms",
        minimum=1,
    )
    log_cleaner_delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms",
        "How long a tombstone stays readable.",
        default=24 * _HOUR_MS,
        unit="ms",
        minimum=0,
    )
    log_segment_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms",
        "Time from taking a segment out to removing its files.",
        default=60_000,
        unit="ms",
        minimum=0,
    )
    log_dir_stray_retention_ms: int = setting(
        "log.dir.stray.retention.ms",
        "How long a log is kept that the metadata does not know, though no record seen here deleted it; -1: until"
        " a person removes it (odradek storage strays). A disk that fills up is noticed, and data that is gone"
        " does not come back.",
        default=-1,
        unit="ms",
        minimum=-1,
    )
    log_message_timestamp_type: str = setting(
        "log.message.timestamp.type",
        "Whose clock timestamps show.",
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
    )
    log_message_timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms",
        "How far behind the broker's clock a record may be.",
        default=_INT64_MAX,
        unit="ms",
        minimum=0,
    )
    log_message_timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms",
        "How far ahead of the broker's clock a record may be.",
        default=_HOUR_MS,
        unit="ms",
        minimum=0,
    )
    log_durability_default: str = setting(
        "log.durability.default",
        "When an append counts as stored: written, or synced.",
        default="replicated",
        choices=("replicated", "fsync"),
    )
    log_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms",
        "Time between two writes of the offset checkpoints.",
        default=5_000,
        unit="ms",
        minimum=100,
    )
    message_max_bytes: int = setting(
        "message.max.bytes",
        "Largest batch that a client may send.",
        default=(1 << 20) + 12,
        unit="bytes",
        minimum=0,
        maximum=48 << 20,
    )

    def retention_ms(self) -> int:
        """Kafka's precedence: ms, then minutes, then hours."""
        if self.log_retention_ms != -2:
            return self.log_retention_ms
        if self.log_retention_minutes != -2:
            return -1 if self.log_retention_minutes < 0 else self.log_retention_minutes * 60_000
        return -1 if self.log_retention_hours < 0 else self.log_retention_hours * _HOUR_MS

    def log_defaults(self) -> LogConfig:
        """What topics get that set nothing themselves."""
        policies = cleanup_policies(self.log_cleanup_policy)
        return LogConfig(
            segment_bytes=self.log_segment_bytes,
            segment_ms=self.log_roll_ms if self.log_roll_ms > 0 else self.log_roll_hours * _HOUR_MS,
            segment_index_bytes=self.log_index_size_max_bytes,
            index_interval_bytes=self.log_index_interval_bytes,
            retention_ms=self.retention_ms(),
            retention_bytes=self.log_retention_bytes,
            max_message_bytes=self.message_max_bytes,
            cleanup_delete="delete" in policies,
            cleanup_compact="compact" in policies,
            min_cleanable_dirty_ratio=self.log_cleaner_min_cleanable_ratio,
            min_compaction_lag_ms=self.log_cleaner_min_compaction_lag_ms,
            max_compaction_lag_ms=self.log_cleaner_max_compaction_lag_ms,
            delete_retention_ms=self.log_cleaner_delete_retention_ms,
            file_delete_delay_ms=self.log_segment_delete_delay_ms,
            timestamp_kind=TimestampKind(self.log_message_timestamp_type),
            timestamp_before_max_ms=self.log_message_timestamp_before_max_ms,
            timestamp_after_max_ms=self.log_message_timestamp_after_max_ms,
            durability=Durability(self.log_durability_default),
        )

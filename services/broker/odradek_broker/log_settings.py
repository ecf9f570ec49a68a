"""Settings of the logs: the defaults of topic configs, and the intervals of background work such as retention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_broker.log.log_config import (
    Durability,
    LogConfig,
    TimestampKind,
    cleanup_policies,
    compression_of,
)
from odradek_protocol.metadata.config_definitions import BROKER_CONFIGS
from odradek_runtime.settings import NodeSettings, setting

_HOUR_MS: Final = 3_600_000
_INT64_MAX: Final = (1 << 63) - 1


def _policies(text: str) -> str:
    if not cleanup_policies(text) <= {"delete", "compact"}:
        raise ValueError(f"{text!r} is not delete, compact, both, or empty")
    return text


def _roll_ms(text: str) -> int:
    roll_ms = int(text)
    if not roll_ms:
        raise ValueError("it must be at least 1 ms, or -1")
    return roll_ms


def _gzip_level(text: str) -> int:
    return int(BROKER_CONFIGS["compression.gzip.level"].parse(text))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(NodeSettings):
    log_segment_bytes: int = setting(
        "log.segment.bytes",
        "Size at which a new segment begins.",
        default=1 << 30,
        unit="bytes",
        minimum=14,
    )
    log_roll_ms: int = setting(
        "log.roll.ms",
        "Age of the active segment at which a new one begins. -1: log.roll.hours applies.",
        default=-1,
        unit="ms",
        minimum=-1,
        parse=_roll_ms,
    )
    log_roll_hours: int = setting(
        "log.roll.hours",
        "Age of the active segment at which a new one begins, if log.roll.ms is -1.",
        default=168,
        unit="h",
        minimum=1,
    )
    log_index_size_max_bytes: int = setting(
        "log.index.size.max.bytes",
        "Maximum size of a segment's index. When the index is full, a new segment begins.",
        default=10 << 20,
        unit="bytes",
        minimum=4,
    )
    log_index_interval_bytes: int = setting(
        "log.index.interval.bytes",
        "Bytes of the log between two entries of the offset index.",
        default=4096,
        unit="bytes",
        minimum=0,
    )
    log_retention_bytes: int = setting(
        "log.retention.bytes",
        "Size of a partition above which its oldest segments are deleted. The active segment is never deleted."
        " -1: no limit.",
        default=-1,
        unit="bytes",
        minimum=-1,
    )
    log_retention_ms: int = setting(
        "log.retention.ms",
        "Age at which segments are deleted. -1: never. -2: log.retention.minutes applies.",
        default=-2,
        unit="ms",
        minimum=-2,
    )
    log_retention_minutes: int = setting(
        "log.retention.minutes",
        "Age at which segments are deleted, if log.retention.ms is -2. -1: never. -2: log.retention.hours applies.",
        default=-2,
        unit="min",
        minimum=-2,
    )
    log_retention_hours: int = setting(
        "log.retention.hours",
        "Age at which segments are deleted, if log.retention.ms and log.retention.minutes are -2. -1: never.",
        default=168,
        unit="h",
        minimum=-1,
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        "Time between two checks for segments to delete.",
        default=300_000,
        unit="ms",
        minimum=1,
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        "A partition deletes the state of an idempotent producer that has written nothing to it for this long.",
        default=86_400_000,
        unit="ms",
        minimum=1,
    )
    log_cleanup_policy: str = setting(
        "log.cleanup.policy",
        "What happens to old records: delete, compact, or both. Empty: nothing is deleted or compacted.",
        default="delete",
        parse=_policies,
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        "Time between two checks for partitions to compact.",
        default=15_000,
        unit="ms",
        minimum=0,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        "log.cleaner.min.cleanable.ratio",
        "A log is compacted when at least this share of its bytes is not compacted yet.",
        default=0.5,
        minimum=0,
        maximum=1,
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        "log.cleaner.min.compaction.lag.ms",
        "Records younger than this are not compacted.",
        default=0,
        unit="ms",
        minimum=0,
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        "log.cleaner.max.compaction.lag.ms",
        "Records older than this are compacted even below log.cleaner.min.cleanable.ratio.",
        default=_INT64_MAX,
        unit="ms",
        minimum=1,
    )
    log_cleaner_delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms",
        "How long consumers can still read a tombstone after compaction.",
        default=24 * _HOUR_MS,
        unit="ms",
        minimum=0,
    )
    log_segment_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms",
        "How long the files of a deleted segment stay on disk.",
        default=60_000,
        unit="ms",
        minimum=0,
    )
    log_dir_stray_retention_ms: int = setting(
        "log.dir.stray.retention.ms",
        "How long a stray log stays on disk: the log of a partition that the metadata does not assign to this broker,"
        " although no metadata record deleted or moved the partition. -1: until an operator removes the log (`odradek"
        " storage strays`).",
        default=-1,
        unit="ms",
        minimum=-1,
    )
    log_message_timestamp_type: str = setting(
        "log.message.timestamp.type",
        "Whether a record keeps the timestamp that its producer set (CreateTime) or gets the time of the append"
        " (LogAppendTime).",
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
    )
    log_message_timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms",
        "A record is refused if its timestamp is further behind the broker's clock than this.",
        default=_INT64_MAX,
        unit="ms",
        minimum=0,
    )
    log_message_timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms",
        "A record is refused if its timestamp is further ahead of the broker's clock than this.",
        default=_HOUR_MS,
        unit="ms",
        minimum=0,
    )
    log_durability_default: str = setting(
        "log.durability.default",
        "When a replica counts records as stored: replicated, once they are written to the operating system;"
        " fsync, once they are synced to disk.",
        default="replicated",
        choices=("replicated", "fsync"),
    )
    log_flush_interval_messages: int = setting(
        "log.flush.interval.messages",
        "A replica syncs its log to disk when this many records are not synced yet. With 1, acks=all waits for the"
        " sync.",
        default=_INT64_MAX,
        minimum=1,
    )
    log_flush_interval_ms: int = setting(
        "log.flush.interval.ms",
        "A replica syncs its log to disk when a record has not been synced for this long.",
        default=_INT64_MAX,
        unit="ms",
        minimum=0,
    )
    compression_type: str = setting(
        "compression.type",
        "The codec with which a leader stores batches. producer: batches stay as their producer compressed them.",
        default="producer",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level",
        "The level at which a leader compresses with gzip, 1 to 9. -1 means 6.",
        default=-1,
        parse=_gzip_level,
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level",
        "The level at which a leader compresses with lz4. 9 is the fast variant. Levels above 12 mean 12.",
        default=9,
        minimum=1,
        maximum=17,
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level",
        "The level at which a leader compresses with zstd. Levels above 19 mean 19, and levels below -100 mean -100.",
        default=3,
        minimum=-131_072,
        maximum=22,
    )
    log_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms",
        "Time between two writes of the offset checkpoint files.",
        default=5_000,
        unit="ms",
        minimum=100,
    )
    message_max_bytes: int = setting(
        "message.max.bytes",
        "Maximum size of a record batch that a client may produce.",
        default=(1 << 20) + 12,
        unit="bytes",
        minimum=0,
        maximum=48 << 20,
    )

    def retention_ms(self) -> int:
        """The retention time that applies. As in Kafka, log.retention.ms takes precedence over log.retention.minutes,
        and log.retention.minutes over log.retention.hours.
        """
        if self.log_retention_ms != -2:
            return self.log_retention_ms
        if self.log_retention_minutes != -2:
            return -1 if self.log_retention_minutes < 0 else self.log_retention_minutes * 60_000
        return -1 if self.log_retention_hours < 0 else self.log_retention_hours * _HOUR_MS

    def log_defaults(self) -> LogConfig:
        """Return the log config of a topic that overrides no config."""
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
            flush_messages=self.log_flush_interval_messages,
            flush_ms=self.log_flush_interval_ms,
            compression=compression_of(self.compression_type),
            gzip_level=self.compression_gzip_level,
            lz4_level=self.compression_lz4_level,
            zstd_level=self.compression_zstd_level,
        )

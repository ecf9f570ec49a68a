"""The settings of one partition's log, under Kafka's names for a topic's configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from odradek_protocol.records.batch_header import Compression
from odradek_protocol.records.compression import LEVELS

_DAY_MS: Final = 24 * 60 * 60 * 1000
_INT64_MAX: Final = (1 << 63) - 1
LZ4_LEVEL_DEFAULT: Final = 9


class Durability(Enum):
    """`durability`: the event after which a broker counts an append as stored."""

    # An append counts as stored when write(2) has returned; a background task syncs it later.
    REPLICATED = "replicated"
    FSYNC = "fsync"  # an append counts as stored when fdatasync has returned


class TimestampKind(Enum):
    """`message.timestamp.type`: whether record timestamps come from the producer or the broker."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


def _refuse(reason: str) -> None:
    raise ValueError(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The log settings of one topic. Each field has the name of Kafka's topic config, with `_` instead of dots."""

    segment_bytes: int = 1 << 30
    """`segment.bytes`: a segment is closed before its file would grow past this size."""
    segment_ms: int = 7 * _DAY_MS
    """`segment.ms`: a segment is closed before a batch whose timestamp is this much later than that of its
    first batch.
    """
    segment_index_bytes: int = 10 << 20
    """`segment.index.bytes`: the size of an index at which its segment is closed."""
    index_interval_bytes: int = 4096
    """`index.interval.bytes`: the minimum number of log bytes between two index entries."""
    retention_ms: int = 7 * _DAY_MS
    """`retention.ms`: a segment is deleted when its newest record is older than this; -1: never."""
    retention_bytes: int = -1
    """`retention.bytes`: the oldest segment is deleted while the other segments have at least this size; -1: never."""
    max_message_bytes: int = (1 << 20) + 12
    """`max.message.bytes`: the largest batch that a leader accepts from a client."""
    cleanup_delete: bool = True
    """Whether `cleanup.policy` contains `delete`."""
    cleanup_compact: bool = False
    """Whether `cleanup.policy` contains `compact`."""
    min_cleanable_dirty_ratio: float = 0.5
    """`min.cleanable.dirty.ratio`: a log is compacted when at least this share of its bytes was appended since the last
    compaction.
    """
    min_compaction_lag_ms: int = 0
    """`min.compaction.lag.ms`: records younger than this are not compacted."""
    max_compaction_lag_ms: int = _INT64_MAX
    """`max.compaction.lag.ms`: a record that is older than this is compacted whatever the dirty ratio is. Only closed
    segments are compacted, so this also limits `segment.ms` of a compacted topic (see `roll_ms`).
    """
    delete_retention_ms: int = _DAY_MS
    """`delete.retention.ms`: how long a tombstone or a transaction marker stays readable after its first compaction."""
    file_delete_delay_ms: int = 60_000
    """`file.delete.delay.ms`: how long a file stays on the disk after its segment was removed from the log."""
    timestamp_kind: TimestampKind = TimestampKind.CREATE_TIME
    """`message.timestamp.type`: whether a record has the timestamp of its producer or the time of the append."""
    timestamp_before_max_ms: int = _INT64_MAX
    """`message.timestamp.before.max.ms`: how far a record's timestamp may be behind the broker's clock."""
    timestamp_after_max_ms: int = 3_600_000
    """`message.timestamp.after.max.ms`: how far a record's timestamp may be ahead of the broker's clock."""
    durability: Durability = Durability.REPLICATED
    """`durability`: when an append counts as stored. Kafka does not have this config. Internal topics have `fsync` by
    default.
    """
    flush_messages: int = _INT64_MAX
    """`flush.messages`: each replica starts a sync when this many records are unsynced."""
    flush_ms: int = _INT64_MAX
    """`flush.ms`: each replica starts a sync when a record has been unsynced for this long."""
    compression: Compression | None = None
    """`compression.type`: the codec in which a leader stores batches. None (`compression.type=producer`): batches keep
    the codec of the producer.
    """
    gzip_level: int = -1
    """`compression.gzip.level`: 1 to 9; -1: the codec's default level."""
    lz4_level: int = LZ4_LEVEL_DEFAULT
    """`compression.lz4.level`: 1 to 17, as in Kafka."""
    zstd_level: int = 3
    """`compression.zstd.level`: -131072 to 22."""

    @property
    def compression_level(self) -> int | None:
        """The level to pass to `compress` for the codec in `compression`. None: the codec has no levels, or its default
        level applies.
        """
        match self.compression:
            case Compression.GZIP if self.gzip_level > 0:
                return self.gzip_level
            # As in Kafka, the default level 9 means the fast variant of lz4, although the levels next to it mean the
            # slow one.
            case Compression.LZ4 if self.lz4_level != LZ4_LEVEL_DEFAULT:
                return min(self.lz4_level, LEVELS[Compression.LZ4][2])
            case Compression.ZSTD:
                least, _, greatest = LEVELS[Compression.ZSTD]
                return max(least, min(self.zstd_level, greatest))
            case _:
                return None

    @property
    def is_fsync(self) -> bool:
        """Whether records count as stored only when they are synced. In Kafka, `flush.messages=1` guarantees that."""
        return self.durability is Durability.FSYNC or self.flush_messages == 1

    @property
    def roll_ms(self) -> int:
        """The greatest difference between the timestamps of a segment's first batch and its other batches."""
        if self.cleanup_compact:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @classmethod
    def from_topic_configs(
        cls,
        configs: Mapping[str, str],
        *,
        defaults: LogConfig | None = None,
        on_invalid: Callable[[str], None] = _refuse,
    ) -> LogConfig:
        """Read a topic's configs, which the controller has validated; unknown names are ignored.

        `defaults` are the broker's defaults. For each value that this release does not know, `on_invalid` is called
        with the reason; by default it raises ValueError. If `on_invalid` returns, the broker's default is used. If a
        `cleanup.policy` has unknown items, only its known items apply, because an unknown policy must not delete
        anything.
        """
        base = defaults or cls()
        fields: dict[str, Any] = {name: getattr(base, name) for name in cls.__slots__}
        for key, (name, parse) in _PARSERS.items():
            if key in configs:
                try:
                    fields[name] = parse(configs[key])
                except ValueError:
                    on_invalid(f"{key}={configs[key]!r} is not a valid value")
        if "cleanup.policy" in configs:
            policies = cleanup_policies(configs["cleanup.policy"])
            if not policies <= {"delete", "compact"}:
                on_invalid(f"cleanup.policy={configs['cleanup.policy']!r} is not a valid value")
            fields["cleanup_delete"] = "delete" in policies
            fields["cleanup_compact"] = "compact" in policies
        return cls(**fields)


def cleanup_policies(text: str) -> set[str]:
    """Return the items of a `cleanup.policy`. An empty set means that nothing is deleted or compacted."""
    return {item.strip() for item in text.split(",") if item.strip()}


def compression_of(text: str) -> Compression | None:
    """Parse a `compression.type`. None: batches keep the codec of the producer. Raises ValueError."""
    if text == "producer":
        return None
    if text == "uncompressed":
        return Compression.NONE
    try:
        return Compression[text.upper()]
    except KeyError:
        raise ValueError(text) from None


_PARSERS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "segment.bytes": ("segment_bytes", int),
    "segment.ms": ("segment_ms", int),
    "segment.index.bytes": ("segment_index_bytes", int),
    "index.interval.bytes": ("index_interval_bytes", int),
    "retention.ms": ("retention_ms", int),
    "retention.bytes": ("retention_bytes", int),
    "max.message.bytes": ("max_message_bytes", int),
    "min.cleanable.dirty.ratio": ("min_cleanable_dirty_ratio", float),
    "min.compaction.lag.ms": ("min_compaction_lag_ms", int),
    "max.compaction.lag.ms": ("max_compaction_lag_ms", int),
    "delete.retention.ms": ("delete_retention_ms", int),
    "file.delete.delay.ms": ("file_delete_delay_ms", int),
    "message.timestamp.type": ("timestamp_kind", TimestampKind),
    "message.timestamp.before.max.ms": ("timestamp_before_max_ms", int),
    "message.timestamp.after.max.ms": ("timestamp_after_max_ms", int),
    "durability": ("durability", Durability),
    "flush.messages": ("flush_messages", int),
    "flush.ms": ("flush_ms", int),
    "compression.type": ("compression", compression_of),
    "compression.gzip.level": ("gzip_level", int),
    "compression.lz4.level": ("lz4_level", int),
    "compression.zstd.level": ("zstd_level", int),
}

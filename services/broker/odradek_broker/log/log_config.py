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
    """The moment from which a broker counts an append as stored."""

    # Records are stored when write(2) has returned; a background task syncs them later.
    REPLICATED = "replicated"
    FSYNC = "fsync"  # records are stored when fdatasync has returned


class TimestampKind(Enum):
    """`message.timestamp.type`: whether record timestamps come from the producer or the broker."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


def _refuse(reason: str) -> None:
    raise ValueError(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """One topic's log settings. Each field is named like Kafka's topic config, with `_` for dots."""

    segment_bytes: int = 1 << 30
    """`segment.bytes`: a segment is closed before it would grow past this."""
    segment_ms: int = 7 * _DAY_MS
    """`segment.ms`: a segment is closed before a batch that is this much younger than its first batch."""
    segment_index_bytes: int = 10 << 20
    """`segment.index.bytes`: the size at which an index is full, which closes the segment."""
    index_interval_bytes: int = 4096
    """`index.interval.bytes`: the minimum number of log bytes between two index entries."""
    retention_ms: int = 7 * _DAY_MS
    """`retention.ms`: the age at which a closed segment is deleted; -1: never."""
    retention_bytes: int = -1
    """`retention.bytes`: the size of a log above which its oldest segments are deleted; -1: no limit."""
    max_message_bytes: int = (1 << 20) + 12
    """`max.message.bytes`: the largest batch that a leader accepts from a client."""
    cleanup_delete: bool = True
    """Whether `cleanup.policy` contains `delete`."""
    cleanup_compact: bool = False
    """Whether `cleanup.policy` contains `compact`."""
    min_cleanable_dirty_ratio: float = 0.5
    """`min.cleanable.dirty.ratio`: a log is compacted once this share of its bytes is not compacted yet."""
    min_compaction_lag_ms: int = 0
    """`min.compaction.lag.ms`: records younger than this are not compacted."""
    max_compaction_lag_ms: int = _INT64_MAX
    """`max.compaction.lag.ms`: age at which a record is compacted regardless of the dirty ratio. A segment
    of a compacted topic is closed by then, because the active one is never compacted."""
    delete_retention_ms: int = _DAY_MS
    """`delete.retention.ms`: how long a tombstone or a transaction's marker stays readable."""
    file_delete_delay_ms: int = 60_000
    """`file.delete.delay.ms`: how long after its removal from the log a file is deleted."""
    timestamp_kind: TimestampKind = TimestampKind.CREATE_TIME
    """`message.timestamp.type`: whether records have the time of the producer or of the broker."""
    timestamp_before_max_ms: int = _INT64_MAX
    """`message.timestamp.before.max.ms`: how far behind the broker's clock a record may be."""
    timestamp_after_max_ms: int = 3_600_000
    """`message.timestamp.after.max.ms`: how far ahead of the broker's clock a record may be."""
    durability: Durability = Durability.REPLICATED
    """`durability`, which Kafka does not have: when an append counts as stored. Internal topics have fsync by
    default.
    """
    flush_messages: int = _INT64_MAX
    """`flush.messages`: each replica starts a sync when this many records are not synced."""
    flush_ms: int = _INT64_MAX
    """`flush.ms`: each replica starts a sync when a record has not been synced for this long."""
    compression: Compression | None = None
    """`compression.type`: the codec in which a leader stores batches. None (the value producer): they are stored as
    they arrive.
    """
    gzip_level: int = -1
    """`compression.gzip.level`: 1 to 9; -1 is the codec's default."""
    lz4_level: int = LZ4_LEVEL_DEFAULT
    """`compression.lz4.level`: 1 to 17, in Kafka's scale."""
    zstd_level: int = 3
    """`compression.zstd.level`: -131072 to 22."""

    @property
    def compression_level(self) -> int | None:
        """The level of `compression`, in the scale of `compress`; None: the codec has no levels, or its default is
        meant.
        """
        match self.compression:
            case Compression.GZIP if self.gzip_level > 0:
                return self.gzip_level
            # As in Kafka, the default level stands for the fast variant of lz4, although the levels around it are
            # slow ones.
            case Compression.LZ4 if self.lz4_level != LZ4_LEVEL_DEFAULT:
                return min(self.lz4_level, LEVELS[Compression.LZ4][2])
            case Compression.ZSTD:
                least, _, greatest = LEVELS[Compression.ZSTD]
                return max(least, min(self.zstd_level, greatest))
            case _:
                return None

    @property
    def is_fsync(self) -> bool:
        """Whether records count as stored once they are synced. That is what `flush.messages=1` promises in Kafka."""
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
        """Read a topic's configs, already validated by the controller; unknown names are ignored.

        `defaults` are those of the broker. `on_invalid` is called with the reason for each value that this release
        does not know, and by default raises ValueError. If it returns, the default is used instead; of a
        `cleanup.policy` only the known items count, because an unknown policy must not delete anything.
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
    """Return the items of a `cleanup.policy`. If there are none, nothing is deleted or compacted."""
    return {item.strip() for item in text.split(",") if item.strip()}


def compression_of(text: str) -> Compression | None:
    """Parse a `compression.type`. None: batches stay as they came. Raises ValueError."""
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

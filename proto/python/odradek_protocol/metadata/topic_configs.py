"""The configs of a topic: Kafka's names, types, ranges and defaults, and our own `durability`.

`broker_name` is the name of the same config as the cluster's default. Kafka's names for things that do
not exist here (tiered storage, message format versions) are unknown, and the error says so. A few that
programs set by habit are taken WITHOUT_EFFECT, which their documentation says; all others are obeyed.
"""

from __future__ import annotations

from typing import Any, Final

from odradek_protocol.metadata.config_definition import LONG_MAX, ConfigDefinition, ConfigType

_COMPRESSIONS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_HOUR_MS: Final = 3_600_000
_MESSAGE_BYTES_MAX: Final = 48 << 20  # a batch goes to a replica whole, in a message of 64 MiB
WITHOUT_EFFECT: Final = "Without effect here"


def _topic(
    name: str, type_: ConfigType, default: object, documentation: str, **more: Any
) -> ConfigDefinition:  # Any: the fields of ConfigDefinition
    text = str(default).lower() if isinstance(default, bool) else str(default)
    more.setdefault("broker_name", f"log.{name}")
    return ConfigDefinition(
        name=name, type=type_, default=text, documentation=documentation, **more
    )


TOPIC_CONFIGS: Final[dict[str, ConfigDefinition]] = {
    definition.name: definition
    for definition in (
        _topic(
            "cleanup.policy",
            ConfigType.LIST,
            "delete",
            "What happens to old segments: they are deleted (delete), keep only the last value "
            "of each key (compact), or both. Empty: nothing, the topic keeps everything.",
            choices=("compact", "delete"),
        ),
        _topic(
            "compression.type",
            ConfigType.STRING,
            "producer",
            f"{WITHOUT_EFFECT}: batches are stored as their producer compressed them.",
            choices=_COMPRESSIONS,
            broker_name="compression.type",
        ),
        _topic(
            "delete.retention.ms",
            ConfigType.LONG,
            24 * _HOUR_MS,
            "How long a tombstone is kept in a compacted topic, in ms.",
            minimum=0,
            broker_name="log.cleaner.delete.retention.ms",
        ),
        _topic(
            "durability",
            ConfigType.STRING,
            "replicated",
            "When acks=all is answered: once every in-sync replica has the batch in memory "
            "(replicated), or once every one of them has synced it to disk (fsync).",
            choices=("replicated", "fsync"),
            broker_name="log.durability.default",
        ),
        _topic(
            "file.delete.delay.ms",
            ConfigType.LONG,
            60_000,
            "How long a deleted segment stays on disk, so that readers can finish, in ms.",
            minimum=0,
            broker_name="log.segment.delete.delay.ms",
        ),
        _topic(
            "flush.messages",
            ConfigType.LONG,
            LONG_MAX,
            f"{WITHOUT_EFFECT}: durability=fsync syncs each batch before acks=all is answered.",
            minimum=1,
            broker_name="log.flush.interval.messages",
        ),
        _topic(
            "flush.ms",
            ConfigType.LONG,
            LONG_MAX,
            f"{WITHOUT_EFFECT}: durability=fsync syncs each batch before acks=all is answered.",
            minimum=0,
            broker_name="log.flush.interval.ms",
        ),
        _topic(
            "index.interval.bytes",
            ConfigType.INT,
            4096,
            "An entry in the offset index about every so many bytes of the log.",
            minimum=0,
            broker_name="log.index.interval.bytes",
        ),
        _topic(
            "max.compaction.lag.ms",
            ConfigType.LONG,
            LONG_MAX,
            "Longest time that a record may stay uncompacted, in ms.",
            minimum=1,
            broker_name="log.cleaner.max.compaction.lag.ms",
        ),
        _topic(
            "max.message.bytes",
            ConfigType.INT,
            1_048_588,
            "Largest batch that a producer may send (after compression), in bytes.",
            minimum=0,
            maximum=_MESSAGE_BYTES_MAX,
            broker_name="message.max.bytes",
        ),
        _topic(
            "message.timestamp.after.max.ms",
            ConfigType.LONG,
            _HOUR_MS,
            "How far a record's timestamp may lie in the future, in ms (CreateTime).",
            minimum=0,
            broker_name="log.message.timestamp.after.max.ms",
        ),
        _topic(
            "message.timestamp.before.max.ms",
            ConfigType.LONG,
            LONG_MAX,
            "How far a record's timestamp may lie in the past, in ms (CreateTime).",
            minimum=0,
            broker_name="log.message.timestamp.before.max.ms",
        ),
        _topic(
            "message.timestamp.type",
            ConfigType.STRING,
            "CreateTime",
            "Whose clock stamps a record: the producer's (CreateTime) or the broker's "
            "(LogAppendTime).",
            choices=("CreateTime", "LogAppendTime"),
            broker_name="log.message.timestamp.type",
        ),
        _topic(
            "min.cleanable.dirty.ratio",
            ConfigType.DOUBLE,
            0.5,
            "Compact a log when this share of it is not compacted yet.",
            minimum=0,
            maximum=1,
            broker_name="log.cleaner.min.cleanable.ratio",
        ),
        _topic(
            "min.compaction.lag.ms",
            ConfigType.LONG,
            0,
            "Shortest time that a record stays uncompacted, in ms.",
            minimum=0,
            broker_name="log.cleaner.min.compaction.lag.ms",
        ),
        _topic(
            "min.insync.replicas",
            ConfigType.INT,
            1,
            "How many replicas must be in sync for acks=all to succeed; below it nothing new "
            "becomes visible.",
            minimum=1,
            broker_name="min.insync.replicas",
        ),
        _topic(
            "preallocate",
            ConfigType.BOOLEAN,
            False,
            f"{WITHOUT_EFFECT}: a segment's file grows as it is written.",
        ),
        _topic(
            "retention.bytes",
            ConfigType.LONG,
            -1,
            "Delete the oldest closed segments of a partition above this size, in bytes; -1: no limit.",
            minimum=-1,
        ),
        _topic(
            "retention.ms",
            ConfigType.LONG,
            7 * 24 * _HOUR_MS,
            "Delete segments whose last record is older than this, in ms; -1: keep for ever.",
            minimum=-1,
        ),
        _topic(
            "segment.bytes",
            ConfigType.INT,
            1 << 30,
            "Size at which a new segment begins, in bytes.",
            minimum=14,
        ),
        _topic(
            "segment.index.bytes",
            ConfigType.INT,
            10 << 20,
            "Largest size of a segment's indexes, in bytes; a full one begins a new segment.",
            minimum=4,
            broker_name="log.index.size.max.bytes",
        ),
        _topic(
            "segment.jitter.ms",
            ConfigType.LONG,
            0,
            f"{WITHOUT_EFFECT}: segments roll by segment.ms and segment.bytes alone.",
            minimum=0,
            broker_name="log.roll.jitter.ms",
        ),
        _topic(
            "segment.ms",
            ConfigType.LONG,
            7 * 24 * _HOUR_MS,
            "Age at which a new segment begins even if this one is not full, in ms.",
            minimum=1,
            broker_name="log.roll.ms",
        ),
        _topic(
            "unclean.leader.election.enable",
            ConfigType.BOOLEAN,
            False,
            "Whether a replica that may lack acknowledged records may lead when no other can.",
            broker_name="unclean.leader.election.enable",
        ),
    )
}

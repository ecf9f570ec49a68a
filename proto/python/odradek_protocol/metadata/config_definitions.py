"""The configs of topics and brokers: names, types, ranges, defaults, documentation, and how values are read.

Values are text in every protocol and in every record, as in Kafka; `ConfigDefinition.parse` is the one
place that reads them. A value that does not fit is a `ConfigError` whose message names the config,
the value and what would fit.

Topic configs have Kafka's names, plus `durability`. `broker_name` is the name of the broker config that holds the
cluster's default for it. A few configs that programs set by habit are accepted but have no effect, and their
documentation says so (WITHOUT_EFFECT). `INERT_TOPIC_CONFIGS` are Kafka's configs of mechanisms that do not exist here.
They are accepted, so that a tool can copy a topic's configs, and listed only where they are set. Values that would
require a missing mechanism are refused.

Broker configs can be set at run time. On the resource broker "" a config is the default of all brokers. A
cluster-wide config is allowed only there: two brokers that disagree about `min.insync.replicas` would be
two clusters.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

ConfigValue = bool | int | float | str | tuple[str, ...]

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class ConfigError(ValueError):
    """A config does not exist or does not accept this value. The message is meant for users."""


class ConfigType(IntEnum):
    """The type of a config's value, in Kafka's numbers (DescribeConfigs)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class ConfigSource(IntEnum):
    """The source of a config's value, in Kafka's numbers (DescribeConfigs)."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5
    GROUP = 8


_WHOLE_BOUNDS: Final = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.LONG: (-(2**63), LONG_MAX),
}
_VALUE_CHARACTERS_MAX: Final = 32_767


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One config. `minimum` and `maximum` are inclusive; empty `choices` allow any. The default is always allowed."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    # For a config of topics or groups: the name of its default for all brokers.
    broker_name: str | None = None
    is_sensitive: bool = False
    # For a config of brokers: whether it cannot be set for a single broker.
    is_cluster_wide: bool = False

    @property
    def default_name(self) -> str:
        """The name of the broker config that holds the cluster's default of this topic config."""
        return self.broker_name or self.name

    def parse(self, text: str) -> ConfigValue:
        """Parse a value. Raises `ConfigError`, which names the config, the value, and the values that are allowed."""
        if len(text) > _VALUE_CHARACTERS_MAX:
            raise ConfigError(
                f"{self.name}: the value has {len(text)} characters, but at most 32767 are allowed"
            )
        match self.type:
            case ConfigType.BOOLEAN:
                return self._boolean(text)
            case ConfigType.STRING | ConfigType.PASSWORD:
                return self._choice(text)
            case ConfigType.LIST:
                items = tuple(item.strip() for item in text.split(",") if item.strip())
                return tuple(self._choice(item) for item in items)
            case ConfigType.DOUBLE:
                return self._ranged(self._number(text))
            case _:
                return self._ranged(self._whole(text))

    def accepts(self) -> str:
        """Return a text that says which values are allowed: `a whole number (LONG) from -1`."""
        match self.type:
            case ConfigType.BOOLEAN:
                return " or ".join(self.choices or ("true", "false"))
            case ConfigType.LIST if self.choices:
                return f"a comma-separated list of {' and '.join(self.choices)}"
            case ConfigType.STRING if self.choices:
                return f"one of {', '.join(self.choices)}"
            case ConfigType.STRING | ConfigType.PASSWORD | ConfigType.LIST:
                return "text"
        kind = "a number" if self.type is ConfigType.DOUBLE else "a whole number"
        low = "" if self.minimum is None else f" from {self.minimum:.15g}"
        high = "" if self.maximum is None else f" up to {self.maximum:.15g}"
        is_default_outside = self.minimum is not None and float(self.default) < self.minimum
        default = f", or {self.default}" if is_default_outside else ""
        return f"{kind}{low}{high}{default}"

    def _refuse(self, text: object) -> ConfigError:
        shown = "the value" if self.is_sensitive else repr(text)
        return ConfigError(f"{self.name}: {shown} is not {self.accepts()}")

    def _boolean(self, text: str) -> bool:
        word = text.strip().lower()
        if word not in (self.choices or ("true", "false")):
            raise self._refuse(text)
        return word == "true"

    def _choice(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise self._refuse(text)
        return text

    def _whole(self, text: str) -> int:
        digits = text.strip()
        if not digits.removeprefix("-").isascii() or not digits.removeprefix("-").isdigit():
            raise self._refuse(text)
        low, high = _WHOLE_BOUNDS[self.type]
        if len(digits) > 20 or not low <= int(digits) <= high:
            raise ConfigError(f"{self.name}: {text!r} does not fit {self.type.name}")
        return int(digits)

    def _number(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise self._refuse(text) from None
        if not math.isfinite(number):
            raise self._refuse(text)
        return number

    def _ranged(self, number: int | float) -> int | float:
        if str(number) == self.default:
            return number
        too_low = self.minimum is not None and number < self.minimum
        if too_low or (self.maximum is not None and number > self.maximum):
            raise self._refuse(number)
        return number


def unknown_config(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a name that no config has; its message names the most similar one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfigError(f"there is no {kind} config {name}{hint}")


_COMPRESSIONS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_HOUR_MS: Final = 3_600_000
# A batch is replicated in one message, which has at most 64 MiB.
_MESSAGE_BYTES_MAX: Final = 48 << 20
WITHOUT_EFFECT: Final = "Without effect here"


def _topic(
    name: str, type_: ConfigType, default: object, documentation: str, **more: Any
) -> ConfigDefinition:  # Any, because these are the fields of ConfigDefinition
    text = str(default).lower() if isinstance(default, bool) else str(default)
    more.setdefault("broker_name", f"log.{name}")
    return ConfigDefinition(
        name=name, type=type_, default=text, documentation=documentation, **more
    )


def _level(codec: str, default: int, lowest: int, highest: int, note: str) -> ConfigDefinition:
    name = f"compression.{codec}.level"
    what = f"The level at which the leader compresses batches of another codec to {codec}"
    bounds = {"minimum": lowest, "maximum": highest, "broker_name": name}
    return _topic(name, ConfigType.INT, default, f"{what} (compression.type). {note}", **bounds)


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
            "The codec in which the leader stores and sends batches. It compresses those again that have another one. "
            "With producer, batches stay as their producer compressed them, which costs the broker nothing.",
            choices=_COMPRESSIONS,
            broker_name="compression.type",
        ),
        _level("gzip", -1, 1, 9, "-1 means 6."),
        _level("lz4", 9, 1, 17, "As in Kafka, 9 is the fast variant. Levels above 12 count as 12."),
        _level("zstd", 3, -131_072, 22, "Levels outside -100 to 19 count as the nearest of these."),
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
            "When a produce with acks=all is acknowledged: once every in-sync replica has the batch in memory "
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
            "Each replica syncs its log to disk when so many records are not synced yet. With 1, acks=all waits for "
            "the sync, as with durability=fsync.",
            minimum=1,
            broker_name="log.flush.interval.messages",
        ),
        _topic(
            "flush.ms",
            ConfigType.LONG,
            LONG_MAX,
            "Each replica syncs its log to disk when a record has not been synced for this long, in ms (checked every "
            "100 ms). acks=all does not wait for it. Logs are always synced after a minute at the latest.",
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


def _inert(
    name: str, type_: ConfigType, default: str, reason: str, **more: Any
) -> ConfigDefinition:  # Any, because these are the fields of ConfigDefinition
    return ConfigDefinition(
        name=name,
        type=type_,
        default=default,
        documentation=f"{WITHOUT_EFFECT}: {reason}.",
        **more,
    )


_NOT_TIERED: Final = "there is no tiered storage"
_THROTTLED: Final = "follower.replication.throttled.rate of a broker throttles all that it copies"
_CURRENT_FORMAT: Final = "batches have Kafka's current format"
INERT_TOPIC_CONFIGS: Final[dict[str, ConfigDefinition]] = {
    definition.name: definition
    for definition in (
        _inert("follower.replication.throttled.replicas", ConfigType.LIST, "", _THROTTLED),
        _inert("leader.replication.throttled.replicas", ConfigType.LIST, "", _THROTTLED),
        _inert("local.retention.bytes", ConfigType.LONG, "-2", _NOT_TIERED, minimum=-2),
        _inert("local.retention.ms", ConfigType.LONG, "-2", _NOT_TIERED, minimum=-2),
        _inert("message.downconversion.enable", ConfigType.BOOLEAN, "true", _CURRENT_FORMAT),
        _inert("message.format.version", ConfigType.STRING, "3.0-IV1", _CURRENT_FORMAT),
        _inert("remote.log.copy.disable", ConfigType.BOOLEAN, "false", _NOT_TIERED),
        _inert("remote.log.delete.on.disable", ConfigType.BOOLEAN, "false", _NOT_TIERED),
        _inert(
            "remote.storage.enable", ConfigType.BOOLEAN, "false", _NOT_TIERED, choices=("false",)
        ),
    )
}

GROUP_CONFIGS: Final[dict[str, ConfigDefinition]] = {
    definition.name: definition
    for definition in (
        ConfigDefinition(
            name="consumer.heartbeat.interval.ms",
            type=ConfigType.INT,
            default="3000",
            documentation="Heartbeat interval of the members of this consumer group (KIP-848) while it is "
            "stable, in ms; three of them fit into a session.",
            minimum=100,
            broker_name="group.consumer.heartbeat.interval.ms",
        ),
        ConfigDefinition(
            name="consumer.session.timeout.ms",
            type=ConfigType.INT,
            default="45000",
            documentation="A member of this consumer group (KIP-848) that sends no heartbeat for this long is "
            "removed, in ms.",
            minimum=1_000,
            maximum=1_800_000,
            broker_name="group.consumer.session.timeout.ms",
        ),
    )
}


def _cluster(
    name: str, type_: ConfigType, default: object, documentation: str, **more: Any
) -> ConfigDefinition:  # Any, because these are the fields of ConfigDefinition
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return ConfigDefinition(
        name=name,
        type=type_,
        default=text,
        documentation=documentation,
        is_cluster_wide=True,
        **more,
    )


def _as_broker_default(topic: ConfigDefinition) -> ConfigDefinition:
    return ConfigDefinition(
        name=topic.default_name,
        type=topic.type,
        default=topic.default,
        documentation=f"Default of {topic.name} for topics that do not set it. "
        + topic.documentation,
        minimum=topic.minimum,
        maximum=topic.maximum,
        choices=topic.choices,
        is_cluster_wide=True,
    )


_CLUSTER_CONFIGS: Final = (
    _cluster(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether a topic that a client asks for is created.",
    ),
    _cluster(
        "auto.leader.rebalance.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether leaderships move back to the preferred leaders automatically.",
    ),
    _cluster(
        "default.replication.factor",
        ConfigType.SHORT,
        1,
        "Replication factor of topics that are created without one.",
        minimum=1,
    ),
    _cluster(
        "leader.imbalance.check.interval.seconds",
        ConfigType.LONG,
        300,
        "How often the controller checks where preferred leaderships are, in s.",
        minimum=1,
    ),
    _cluster(
        "leader.imbalance.per.broker.percentage",
        ConfigType.INT,
        10,
        "Share of a broker's preferred leaderships that may be elsewhere, in %.",
        minimum=0,
        maximum=100,
    ),
    _cluster(
        "num.partitions",
        ConfigType.INT,
        1,
        "Number of partitions of topics that are created without one.",
        minimum=1,
    ),
    _cluster(
        "unclean.recovery.wait.ms",
        ConfigType.LONG,
        30_000,
        "With unclean election on: how long to wait for the last known good replicas before the "
        "longest log that is there may lead, in ms.",
        minimum=0,
    ),
)

_SINGLE_BROKER_CONFIGS: Final = (
    ConfigDefinition(
        name="follower.replication.throttled.rate",
        type=ConfigType.LONG,
        default="0",
        documentation="Most bytes a second that all replicas of a broker together receive while they are far "
        "behind their leaders, as new ones are; 0: no limit. Unlike Kafka's, it needs no list of replicas.",
        minimum=0,
    ),
    _inert("leader.replication.throttled.rate", ConfigType.LONG, "0", _THROTTLED, minimum=0),
    ConfigDefinition(
        name="max.connections",
        type=ConfigType.INT,
        default="10000",
        documentation="Connections of clients that a broker's Kafka listeners accept, all together.",
        minimum=0,
    ),
    ConfigDefinition(
        name="max.connections.per.ip",
        type=ConfigType.INT,
        default=str(INT_MAX),
        documentation="Connections that a broker's Kafka listeners accept from one address.",
        minimum=0,
    ),
)

BROKER_CONFIGS: Final[dict[str, ConfigDefinition]] = {
    definition.name: definition
    for definition in sorted(
        (
            *map(_as_broker_default, TOPIC_CONFIGS.values()),
            *_CLUSTER_CONFIGS,
            *_SINGLE_BROKER_CONFIGS,
        ),
        key=lambda definition: definition.name,
    )
}

CLUSTER_CONFIGS: Final = {
    name: BROKER_CONFIGS[name]
    for name in sorted(
        (
            *(definition.name for definition in _CLUSTER_CONFIGS),
            "min.insync.replicas",
            "unclean.leader.election.enable",
        )
    )
}
"""Configs that have one value in the whole cluster: no broker has a setting for them.

Controllers take them as settings for the first start of a cluster; later they are changed at run time.
"""

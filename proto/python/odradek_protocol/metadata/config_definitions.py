"""The configs of topics, groups and brokers: names, types, ranges, defaults and documentation.

Values are text in every protocol and record, as in Kafka. `ConfigDefinition.parse` parses them, or raises a
`ConfigError` that names the config, the value, and the values that are allowed.

Topic configs have Kafka's names, except `durability`, which Kafka does not have. For each topic config there is a
broker config with the cluster's default. A few configs that programs often set are accepted but have no effect, and
their documentation says so (WITHOUT_EFFECT). `INERT_TOPIC_CONFIGS` has Kafka's configs of mechanisms that Odradek
lacks. Values that do not require the mechanism can be set, so that a tool can copy the configs of a topic.

Broker configs can be set at run time. The resource broker "" has the defaults of all brokers. A cluster-wide config can
be set only for broker "", because brokers must not differ in values such as `min.insync.replicas`.
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
    """A config does not exist or does not allow a value. The message is meant for users."""


class ConfigType(IntEnum):
    """The type of a config's value, with the numbers of Kafka's DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class ConfigSource(IntEnum):
    """The place where a config's value was set, with the numbers of Kafka's DescribeConfigs."""

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
    """The definition of one config. `minimum` and `maximum` are inclusive. If `choices` is empty, any text is allowed.
    The default is always allowed.
    """

    name: str
    type: ConfigType
    default: str
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    # For a config of topics or groups: the name of the broker config or broker setting that has its default.
    broker_name: str | None = None
    is_sensitive: bool = False
    # For a config of brokers: whether the config can be set only for all brokers together.
    is_cluster_wide: bool = False

    @property
    def default_name(self) -> str:
        """The name of the broker config that has the cluster's default of this topic config."""
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
        """Return a text that says which values are allowed, such as `a whole number from -1`."""
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
            raise ConfigError(
                f"{self.name}: {text!r} is not between {low} and {high} ({self.type.name})"
            )
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
    """Return the error for a `kind` (topic, broker or group) that has no config `name`. Its message suggests the most
    similar name in `known`.
    """
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
    meaning = f"Compression level that the leader uses when compression.type={codec} makes it compress batches again"
    bounds = {"minimum": lowest, "maximum": highest, "broker_name": name}
    return _topic(name, ConfigType.INT, default, f"{meaning}. {note}", **bounds)


TOPIC_CONFIGS: Final[dict[str, ConfigDefinition]] = {
    definition.name: definition
    for definition in (
        _topic(
            "cleanup.policy",
            ConfigType.LIST,
            "delete",
            "What happens to old records. delete: old segments are deleted. compact: only the last value of each "
            "key is kept. Both may be set. Empty: all records are kept.",
            choices=("compact", "delete"),
        ),
        _topic(
            "compression.type",
            ConfigType.STRING,
            "producer",
            "The compression in which the leader stores batches. The leader compresses batches with another "
            "compression again, which costs CPU time. producer: the leader stores batches as the producer sent them.",
            choices=_COMPRESSIONS,
            broker_name="compression.type",
        ),
        _level("gzip", -1, 1, 9, "-1 means 6."),
        _level("lz4", 9, 1, 17, "As in Kafka, 9 is the fast variant. Levels above 12 count as 12."),
        _level("zstd", 3, -131_072, 22, "Levels below -100 count as -100, levels above 19 as 19."),
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
            "When a produce request with acks=all is acknowledged. replicated: when every in-sync replica has written "
            "the batch to its log, perhaps only in the page cache. fsync: when every in-sync replica has synced the "
            "batch to disk.",
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
            "Each replica syncs its log to disk when this many records are not synced yet. With 1, acks=all waits for "
            "the sync, as with durability=fsync.",
            minimum=1,
            broker_name="log.flush.interval.messages",
        ),
        _topic(
            "flush.ms",
            ConfigType.LONG,
            LONG_MAX,
            "Each replica syncs its log to disk when a record has not been synced for this long, in ms (checked every "
            "100 ms). acks=all does not wait for this sync. Logs are always synced after a minute at the latest.",
            minimum=0,
            broker_name="log.flush.interval.ms",
        ),
        _topic(
            "index.interval.bytes",
            ConfigType.INT,
            4096,
            "Number of bytes of the log between two entries of the offset index, approximately.",
            minimum=0,
            broker_name="log.index.interval.bytes",
        ),
        _topic(
            "max.compaction.lag.ms",
            ConfigType.LONG,
            LONG_MAX,
            "Longest time until a record of a compacted topic is compacted, in ms.",
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
            "How far a record's timestamp may be in the future, in ms. A batch with a later timestamp is refused. "
            "Only for message.timestamp.type=CreateTime.",
            minimum=0,
            broker_name="log.message.timestamp.after.max.ms",
        ),
        _topic(
            "message.timestamp.before.max.ms",
            ConfigType.LONG,
            LONG_MAX,
            "How far a record's timestamp may be in the past, in ms. A batch with an earlier timestamp is refused. "
            "Only for message.timestamp.type=CreateTime.",
            minimum=0,
            broker_name="log.message.timestamp.before.max.ms",
        ),
        _topic(
            "message.timestamp.type",
            ConfigType.STRING,
            "CreateTime",
            "Whose clock a record's timestamp is from: the producer's (CreateTime) or the leader's (LogAppendTime).",
            choices=("CreateTime", "LogAppendTime"),
            broker_name="log.message.timestamp.type",
        ),
        _topic(
            "min.cleanable.dirty.ratio",
            ConfigType.DOUBLE,
            0.5,
            "Share of a log, from 0 to 1, that must be uncompacted before the log is compacted again.",
            minimum=0,
            maximum=1,
            broker_name="log.cleaner.min.cleanable.ratio",
        ),
        _topic(
            "min.compaction.lag.ms",
            ConfigType.LONG,
            0,
            "Shortest time that a record of a compacted topic stays in the log before it may be compacted, in ms.",
            minimum=0,
            broker_name="log.cleaner.min.compaction.lag.ms",
        ),
        _topic(
            "min.insync.replicas",
            ConfigType.INT,
            1,
            "Number of replicas that must be in sync for acks=all to succeed. While fewer replicas are in sync, "
            "consumers see no new records.",
            minimum=1,
            broker_name="min.insync.replicas",
        ),
        _topic(
            "preallocate",
            ConfigType.BOOLEAN,
            False,
            f"{WITHOUT_EFFECT}: files of segments are not preallocated, they grow with each append.",
        ),
        _topic(
            "retention.bytes",
            ConfigType.LONG,
            -1,
            "Size of a partition above which its oldest closed segments are deleted, in bytes; -1: no limit.",
            minimum=-1,
        ),
        _topic(
            "retention.ms",
            ConfigType.LONG,
            7 * 24 * _HOUR_MS,
            "Age above which a segment is deleted, in ms; -1: no limit. The age is that of its latest record.",
            minimum=-1,
        ),
        _topic(
            "segment.bytes",
            ConfigType.INT,
            1 << 30,
            "Size of a segment at which a new segment begins, in bytes.",
            minimum=14,
        ),
        _topic(
            "segment.index.bytes",
            ConfigType.INT,
            10 << 20,
            "Largest size of each index of a segment, in bytes. A new segment begins when an index is full.",
            minimum=4,
            broker_name="log.index.size.max.bytes",
        ),
        _topic(
            "segment.jitter.ms",
            ConfigType.LONG,
            0,
            f"{WITHOUT_EFFECT}: only segment.ms and segment.bytes determine when a new segment begins.",
            minimum=0,
            broker_name="log.roll.jitter.ms",
        ),
        _topic(
            "segment.ms",
            ConfigType.LONG,
            7 * 24 * _HOUR_MS,
            "Age of a segment at which a new segment begins even if the segment is not full, in ms.",
            minimum=1,
            broker_name="log.roll.ms",
        ),
        _topic(
            "unclean.leader.election.enable",
            ConfigType.BOOLEAN,
            False,
            "Whether a replica that may lack acknowledged records may become leader if no other replica can. "
            "Acknowledged records may then be lost.",
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
_THROTTLED: Final = "the broker config follower.replication.throttled.rate throttles all replicas that are far behind"
_CURRENT_FORMAT: Final = "batches always have Kafka's current format, v2"
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
            documentation="Heartbeat interval of the members of this consumer group (KIP-848) while the group is "
            "stable, in ms. It must be below consumer.session.timeout.ms.",
            minimum=100,
            broker_name="group.consumer.heartbeat.interval.ms",
        ),
        ConfigDefinition(
            name="consumer.session.timeout.ms",
            type=ConfigType.INT,
            default="45000",
            documentation="Time after which a member of this consumer group (KIP-848) is removed if it sends no "
            "heartbeat, in ms.",
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
        "Whether a topic that does not exist is created when a client requests its metadata, if the client allows it.",
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
        "How often the controller compares the leaders of partitions with their preferred leaders, in s.",
        minimum=1,
    ),
    _cluster(
        "leader.imbalance.per.broker.percentage",
        ConfigType.INT,
        10,
        "Share of the partitions with the same preferred leader that other brokers may lead, in %. Above this share,"
        " the controller moves leaderships back to the preferred leader.",
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
        "How long an unclean election waits for the replicas that last had all committed records, in ms. After that "
        "the replica with the longest log among the live ones becomes leader.",
        minimum=0,
    ),
)

_SINGLE_BROKER_CONFIGS: Final = (
    ConfigDefinition(
        name="follower.replication.throttled.rate",
        type=ConfigType.LONG,
        default="0",
        documentation="Most bytes per second that all replicas of a broker together fetch while they are far behind "
        "their leaders, as new replicas are; 0: no limit. Unlike in Kafka, no list of replicas is needed.",
        minimum=0,
    ),
    _inert("leader.replication.throttled.rate", ConfigType.LONG, "0", _THROTTLED, minimum=0),
    ConfigDefinition(
        name="max.connections",
        type=ConfigType.INT,
        default="10000",
        documentation="Most connections that all Kafka listeners of a broker together accept.",
        minimum=0,
    ),
    ConfigDefinition(
        name="max.connections.per.ip",
        type=ConfigType.INT,
        default=str(INT_MAX),
        documentation="Most connections that all Kafka listeners of a broker together accept from one IP address.",
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
"""Configs that have one value in the whole cluster, so brokers have no settings for them. Controllers accept them as
settings, which count only at the first start of the cluster.
"""

"""Options of the source. Names, defaults, checks and error messages are those of Spark's Kafka source
(KafkaSourceProvider, and Spark's Kafka integration guide).

Options that Spark's Kafka source refuses (deserializers, auto.offset.reset, ...) are refused. groupIdPrefix and
kafka.group.id only name the reader in logs and errors, because reading uses no consumer group. The columns are defined
in this module, too, so that the driver can check a schema without loading Arrow.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from odradek.partitions import TopicPartition
from odradek.spelling import did_you_mean
from pyspark_odradek.connection_options import ConnectionOptions, parse_boolean, parse_connection
from pyspark_odradek.offsets import (
    EARLIEST,
    LATEST,
    PartitionOffsets,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
)
from pyspark_odradek.option_names import STRATEGIES, Role, client_options, refuse_misspelt

_log = logging.getLogger(__name__)

POLL_TIMEOUT_MS_DEFAULT: Final = 120_000
MAX_TRIGGER_DELAY_DEFAULT: Final = "15m"
_ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")
_DURATION_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


class Anchor(Enum):
    """A bound at the beginning (EARLIEST) or the end (LATEST) of all partitions."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """A bound at a given offset for each partition; -2 means the beginning of the partition, -1 its end."""

    offsets: PartitionOffsets


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """A bound at the first record at or after a time. Each partition has its own time, in ms since the epoch."""

    timestamps_ms: PartitionOffsets


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """A bound at the first record at or after a time (ms since the epoch), which is the same for all partitions."""

    timestamp_ms: int


Bound: TypeAlias = Anchor | AtOffsets | AtTimestamps | AtTimestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The partitions to read: those of topics, those of topics that match a pattern, or given partitions. Exactly one
    of the three fields is set.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options of one source."""

    connection: ConnectionOptions
    subscription: Subscription
    starting: Bound
    ending: Bound
    latest_when_no_match: bool
    """The option startingOffsetsByTimestampStrategy is `latest`: if no record is at or after the starting time, start
    at the end of the partition.
    """
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    read_committed: bool
    rack: str
    poll_timeout_ms: int
    """Longest time without progress for which a task waits for records, or the driver for offsets."""
    reader_name: str


def parse_source_options(options: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """Check and convert options. Raises ValueError. If Spark's Kafka source refuses the same options, the error has its
    message.
    """
    refuse_misspelt(options, Role.SOURCE)
    by_name = {name.lower(): value for name, value in options.items()}
    if is_streaming:
        if "endingoffsets" in by_name:
            raise ValueError("ending offset not valid in streaming queries")
        if "endingoffsetsbytimestamp" in by_name or "endingtimestamp" in by_name:
            raise ValueError("ending timestamp not valid in streaming queries")
    default_start = Anchor.LATEST if is_streaming else Anchor.EARLIEST
    starting = _bound(by_name, "starting", default_start)
    ending = _bound(by_name, "ending", Anchor.LATEST)
    strategy = by_name.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ValueError(
            f"option startingOffsetsByTimestampStrategy is {strategy!r}; allowed: error, latest"
            + did_you_mean(strategy, ("error", "latest"))
        )
    if not is_streaming:
        _check_batch(by_name, starting, ending)
    subscription = _subscription(by_name)
    min_partitions = _positive(by_name, "minPartitions")
    max_records = _positive(by_name, "maxRecordsPerPartition")
    client = client_options(options)
    _check_client(client)
    connection = parse_connection(options)
    offsets_max = _positive(by_name, "maxOffsetsPerTrigger")
    offsets_min = _count(by_name, "minOffsetsPerTrigger")
    if offsets_max is not None and offsets_min is not None and offsets_min > offsets_max:
        raise ValueError(
            f"The value of minOffsetPerTrigger({offsets_min}) is higher than the"
            f" maxOffsetsPerTrigger({offsets_max})."
        )
    if not is_streaming:
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if name.lower() in by_name:
                _log.warning(
                    "Ignored the option %s, because it has no effect in a batch query", name
                )
    isolation = by_name.get("isolationlevel") or client.get("isolation.level", "read_uncommitted")
    if isolation not in _ISOLATION_LEVELS:
        name = "isolationLevel" if by_name.get("isolationlevel") else "kafka.isolation.level"
        raise ValueError(
            f"option {name} is {isolation!r}; allowed: {', '.join(_ISOLATION_LEVELS)}"
            + did_you_mean(isolation, _ISOLATION_LEVELS)
        )
    timeout_ms = _positive(by_name, "kafkaConsumer.pollTimeoutMs") or POLL_TIMEOUT_MS_DEFAULT
    return SourceOptions(
        connection=connection,
        subscription=subscription,
        starting=starting,
        ending=ending,
        latest_when_no_match=strategy == "latest",
        fail_on_data_loss=_boolean(by_name, "failOnDataLoss", default=True),
        include_headers=_boolean(by_name, "includeHeaders", default=False),
        min_partitions=min_partitions,
        max_records_per_partition=max_records,
        max_offsets_per_trigger=offsets_max,
        min_offsets_per_trigger=offsets_min,
        max_trigger_delay_ms=duration_ms(by_name.get("maxtriggerdelay", MAX_TRIGGER_DELAY_DEFAULT)),
        read_committed=isolation == "read_committed",
        rack=by_name.get("rack") or client.get("client.rack", ""),
        poll_timeout_ms=timeout_ms,
        reader_name=client.get("group.id")
        or by_name.get("groupidprefix")
        or "spark-odradek-source",
    )


def check_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options that streams and batches share, while it is not known yet whether the query is a stream. Raises
    ValueError.
    """
    shared = {
        name: value for name, value in options.items() if not name.lower().startswith("ending")
    }
    return parse_source_options(shared, is_streaming=True)


def duration_ms(text: str) -> int:
    """Parse a duration such as `15m`, `30s` or `500ms`, and return it in ms. A number without a unit is in ms, as in
    Spark. Raises ValueError.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if match is None or (match[2] and match[2] not in _DURATION_MS):
        raise ValueError(
            f"Time must be specified as seconds (s), milliseconds (ms), microseconds (us),"
            f" minutes (m or min), hour (h), or day (d). E.g. 50s, 100ms, or 250us. Got {text!r}"
        )
    return int(int(match[1]) * _DURATION_MS[match[2] or "ms"])


def _subscription(by_name: Mapping[str, str]) -> Subscription:
    given = [name for name in STRATEGIES if name in by_name]
    if len(given) != 1:
        count = "One" if not given else "Only one"
        verb = "must" if not given else "can"
        is_topic_given = not given and "topic" in by_name
        raise ValueError(
            f"{count} of the following options {verb} be specified for Kafka source: "
            + ", ".join(STRATEGIES)
            + ". See the docs for more details."
            + (" The option topic is one of the sink: use subscribe." if is_topic_given else "")
        )
    value = by_name[given[0]]
    if given[0] == "assign":
        if not value.strip().startswith("{"):
            raise ValueError(
                f"No topicpartitions to assign as specified value for option 'assign' is '{value}'"
            )
        partitions = tuple(parse_partitions(value))
        if not partitions:
            raise ValueError(f"option 'assign' names no partition: '{value}'")
        return Subscription(partitions=partitions)
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise ValueError(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{value}'"
            )
        return Subscription(topics=topics)
    pattern = value.strip()
    if not pattern:
        raise ValueError(
            "Pattern to subscribe is empty as specified value for option"
            f" 'subscribePattern' is '{value}'"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"option 'subscribePattern' is not a regular expression of Python's `re`: {error}"
        ) from None
    return Subscription(pattern=pattern)


def _bound(by_name: Mapping[str, str], which: str, default: Anchor) -> Bound:
    """Return the bound `which` (starting or ending) that the options set.

    A time for all partitions (startingTimestamp) has precedence over times by partition
    (startingOffsetsByTimestamp), and these over offsets (startingOffsets).
    """
    if (text := by_name.get(f"{which}timestamp")) is not None:
        try:
            return AtTimestamp(int(text.strip()))
        except ValueError:
            raise ValueError(
                f"option {which}Timestamp: Expected a single long value, got {text.strip()}"
            ) from None
    if (text := by_name.get(f"{which}offsetsbytimestamp")) is not None:
        with _naming(f"{which}OffsetsByTimestamp"):
            return AtTimestamps(parse_timestamps(text.strip()))
    text = by_name.get(f"{which}offsets")
    if text is None:
        return default
    text = text.strip()
    anchors = [anchor.value for anchor in Anchor]
    if text.lower() in anchors:
        return Anchor(text.lower())
    if not text.startswith("{"):
        # A stream may start at the earliest or the latest offset. A batch may start only at the earliest, which
        # `_check_batch` checks, and may end only at the latest.
        allowed = anchors if which == "starting" else [Anchor.LATEST.value]
        raise ValueError(
            f"option {which}Offsets is {text!r}; allowed: {', '.join(allowed)}, or offsets as JSON"
            f' such as {{"topic":{{"0":23,"1":-1}}}}{did_you_mean(text, allowed)}'
        )
    with _naming(f"{which}Offsets"):
        return AtOffsets(parse_offsets(text))


@contextmanager
def _naming(option: str) -> Iterator[None]:
    """Add the name of the option to the message of a ValueError that the block raises."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"option {option}: {error}") from None


def _check_batch(by_name: Mapping[str, str], starting: Bound, ending: Bound) -> None:
    if starting is Anchor.LATEST:
        raise ValueError("starting offset can't be latest for batch queries on Kafka")
    if ending is Anchor.EARLIEST:
        raise ValueError("ending offset can't be earliest for batch queries on Kafka")
    if isinstance(starting, AtOffsets):
        for name, offset in starting.offsets.items():
            if offset == LATEST:
                raise ValueError(
                    f"startingOffsets for {name} can't be latest for batch queries on Kafka"
                )
    if isinstance(ending, AtOffsets):
        for name, offset in ending.offsets.items():
            if offset == EARLIEST:
                raise ValueError(
                    f"ending offset for {name} can't be earliest for batch queries on Kafka"
                )
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        _check_pair(starting.offsets, ending.offsets, "offset")
    if isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        _check_pair(starting.timestamps_ms, ending.timestamps_ms, "timestamp")


def _check_pair(starting: PartitionOffsets, ending: PartitionOffsets, what: str) -> None:
    if starting.keys() != ending.keys():
        raise ValueError(
            "The specified start offset and end offset should have the same topic-partitions."
            f" Topic-partitions for start offset: {_named(starting)}, topic-partitions for end"
            f" offset: {_named(ending)}."
        )
    for name, start in starting.items():
        end = ending[name]
        if start > end and start >= 0 and end >= 0:
            raise ValueError(
                f"The specified start {what} {start} is greater than the end {what} {end} for"
                f" topic {name.topic} partition {name.partition}."
            )


def _named(offsets: PartitionOffsets) -> str:
    return ", ".join(str(name) for name in sorted(offsets))


def _check_client(client: Mapping[str, str]) -> None:
    if "auto.offset.reset" in client:
        raise ValueError(
            "Kafka option 'auto.offset.reset' is not supported. Instead set the source option"
            " 'startingoffsets' to 'earliest' or 'latest' to specify where to start. Structured"
            " Streaming manages which offsets are consumed internally, rather than relying on the"
            " kafkaConsumer to do it. This will ensure that no data is missed when new"
            " topics/partitions are dynamically subscribed. Note that 'startingoffsets' only applies"
            " when a new Streaming query is started, and that resuming will always pick up from where"
            " the query left off. See the docs for more details."
        )
    for part in ("key", "value"):
        if f"{part}.deserializer" in client:
            raise ValueError(
                f"Kafka option '{part}.deserializer' is not supported as {part}s are deserialized as"
                " byte arrays with ByteArrayDeserializer. Use DataFrame operations to explicitly"
                f" deserialize the {part}s."
            )
    for name in ("enable.auto.commit", "interceptor.classes"):
        if name in client:
            raise ValueError(f"Kafka option '{name}' is not supported")


def _positive(by_name: Mapping[str, str], name: str) -> int | None:
    number = _count(by_name, name)
    if number is not None and number <= 0:
        raise ValueError(f"{name} must be positive")
    return number


def _count(by_name: Mapping[str, str], name: str) -> int | None:
    text = by_name.get(name.lower())
    if text is None:
        return None
    try:
        return int(text.strip())
    except ValueError:
        raise ValueError(f"option {name} is {text!r}, but must be a whole number") from None


def _boolean(by_name: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = by_name.get(name.lower())
    if text is None:
        return default
    try:
        return parse_boolean(text)
    except ValueError as problem:
        raise ValueError(f"option {name}: {problem}") from None


HEADERS_TYPE: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS_TYPE,
}


def source_schema(*, include_headers: bool) -> StructType:
    """Return the schema of the source, which is that of Spark's Kafka source."""
    names = list(_TYPES) if include_headers else [name for name in _TYPES if name != "headers"]
    return StructType([StructField(name, _TYPES[name]) for name in names])


def check_schema(schema: StructType) -> None:
    """Raise ValueError unless each column of `schema` is a column of the source and has its type."""
    for field in schema.fields:
        expected = _TYPES.get(field.name)
        if expected is None:
            raise ValueError(
                f"the odradek source has no column {field.name!r}; it has {', '.join(_TYPES)}"
            )
        if field.dataType.simpleString() != expected.simpleString():
            raise ValueError(
                f"column {field.name!r} of the odradek source is {expected.simpleString()}, not"
                f" {field.dataType.simpleString()}"
            )

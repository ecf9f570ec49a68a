"""Options of the sink and the schema of its input. Checks and error messages are those of Spark's Kafka sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
)

from odradek.producer.options import ProducerOptions
from odradek.spelling import did_you_mean
from pyspark_odradek.connection_options import ConnectionOptions, parse_boolean, parse_connection
from pyspark_odradek.option_names import Role, client_options, refuse_misspelt
from pyspark_odradek.source_options import HEADERS_TYPE

_PRODUCER_OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "acks": ("acks", str),
    "allow.auto.create.topics": ("allow_auto_create_topics", parse_boolean),
    "batch.size": ("batch_bytes_max", int),
    "buffer.memory": ("buffer_bytes_max", int),
    "compression.type": ("compression", str),
    "delivery.timeout.ms": ("delivery_timeout_ms", int),
    "enable.idempotence": ("enable_idempotence", parse_boolean),
    "linger.ms": ("linger_ms", int),
    "max.block.ms": ("max_block_ms", int),
    "max.request.size": ("request_bytes_max", int),
    "request.timeout.ms": ("request_timeout_ms", int),
}
QUERY_ID: Final = "sql.streaming.queryId"
"""Name of the local property in which Spark stores the id of the streaming query that a job belongs to."""
EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
STEP_QUERY: Final = "stepquery"
STEP_NUMBER: Final = "stepnumber"
"""`write_step` passes the query and the step number to the writer in the options STEP_QUERY and STEP_NUMBER."""
PREPARED_TIMEOUT_MS: Final = 300_000
_BYTES: Final = (StringType(), BinaryType())
_ATTRIBUTES: Final[dict[str, tuple[DataType, ...]]] = {
    "topic": (StringType(),),
    "key": _BYTES,
    "value": _BYTES,
    "headers": (HEADERS_TYPE,),
    "partition": (IntegerType(),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The checked options of one sink. Within a process, sinks with equal options share a producer."""

    connection: ConnectionOptions
    topic: str | None
    """The topic of all rows. None: each row's topic is in the column `topic`."""
    columns: tuple[str, ...]
    """The columns of the input that the sink uses."""
    producer: tuple[tuple[str, Any], ...]
    """Names and values of arguments of the SDK's producer."""
    delivery: str | None = None
    """EXACTLY_ONCE or AT_LEAST_ONCE. None: exactly once if the cluster and the producer's options allow it."""
    transactional_id_prefix: str = ""
    """The cluster identifies a query by this prefix followed by the query's id. ACLs can grant WRITE on the prefix."""
    prepared_timeout_ms: int = PREPARED_TIMEOUT_MS
    """How long the cluster keeps prepared rows after the last request of an executor, until it aborts them."""
    step: tuple[str, int] | None = None
    """Query and step number of a batch write that `write_step` makes. None: the batch write is a query of its own."""

    @property
    def is_exactly_once(self) -> bool:
        """Whether the sink delivers exactly once, provided that the cluster supports transactions."""
        if self.delivery is not None:
            return self.delivery == EXACTLY_ONCE
        options = ProducerOptions(**dict(self.producer))
        return options.acks_number == -1 and options.is_idempotent

    @property
    def delivery_timeout_ms(self) -> int:
        """Longest time in ms from sending a record to its acknowledgement."""
        return ProducerOptions(**dict(self.producer)).delivery_timeout_ms


def parse_sink_options(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Check the options and the schema of the input. Raises ValueError. If Spark's Kafka sink refuses the same input,
    the error has its message.
    """
    refuse_misspelt(options, Role.SINK)
    lowered = {name.lower(): value for name, value in options.items()}
    topic = lowered.get("topic")
    client = client_options(options)
    _refuse(client)
    producer: dict[str, Any] = {}
    for name, (argument, convert) in _PRODUCER_OPTIONS.items():
        if name in client:
            try:
                producer[argument] = convert(client[name])
            except ValueError:
                kind = "true or false" if convert is parse_boolean else "a whole number"
                raise ValueError(
                    f"Invalid value {client[name]} for option 'kafka.{name}': it must be {kind}"
                ) from None
    delivery = lowered.get("delivery")
    if delivery not in (None, EXACTLY_ONCE, AT_LEAST_ONCE):
        raise ValueError(
            f"Invalid value {delivery} for option 'delivery': it must be {EXACTLY_ONCE} or {AT_LEAST_ONCE}"
            + did_you_mean(delivery, (EXACTLY_ONCE, AT_LEAST_ONCE))
        )
    # The constructor raises InvalidConfig for values that are out of range, or that a transactional producer does not
    # allow.
    ProducerOptions(**producer, transactional_id="any" if delivery == EXACTLY_ONCE else None)
    _check_schema(schema, topic)
    return SinkOptions(
        connection=parse_connection(options, role="producer"),
        topic=None if topic is None else topic.strip(),
        columns=tuple(name for name in schema.names if name in _ATTRIBUTES),
        producer=tuple(sorted(producer.items())),
        delivery=delivery,
        transactional_id_prefix=lowered.get("transactionalidprefix", ""),
        prepared_timeout_ms=_prepared_timeout_ms(lowered),
        step=_step(lowered),
    )


def _prepared_timeout_ms(lowered: Mapping[str, str]) -> int:
    text = lowered.get("preparedtimeoutms", str(PREPARED_TIMEOUT_MS))
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(
            f"Invalid value {text} for option 'preparedTimeoutMs': it must be a positive number of milliseconds"
        )
    return int(text)


def _step(lowered: Mapping[str, str]) -> tuple[str, int] | None:
    if STEP_QUERY not in lowered:
        return None
    return lowered[STEP_QUERY], int(lowered[STEP_NUMBER])


def _refuse(client: Mapping[str, str]) -> None:
    for part in ("key", "value"):
        if f"{part}.serializer" in client:
            raise ValueError(
                f"Kafka option '{part}.serializer' is not supported as {part}s are serialized with"
                " ByteArraySerializer."
            )
    for name in ("transactional.id", "interceptor.classes", "partitioner.class"):
        if name in client:
            raise ValueError(f"Kafka option '{name}' is not supported")


def _check_schema(schema: StructType, topic: str | None) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    if topic is None and "topic" not in types:
        raise ValueError(
            "topic option required when no 'topic' attribute is present. Use the topic option for"
            " setting a topic."
        )
    if "value" not in types:
        raise ValueError("Required attribute 'value' not found")
    for name, allowed in _ATTRIBUTES.items():
        given = types.get(name)
        if given is None or (name == "topic" and topic is not None):
            continue
        if given.simpleString() not in {kind.simpleString() for kind in allowed}:
            raise ValueError(
                f"{name} attribute unsupported type {given.simpleString()}. {name} must be a(n) "
                + " or ".join(kind.simpleString() for kind in allowed)
                + _remedy(name, given, allowed)
            )


def _remedy(name: str, given: DataType, allowed: tuple[DataType, ...]) -> str:
    """Return the SQL expression that converts a column of a wrong type, as the end of a message."""
    if allowed == (HEADERS_TYPE,):
        return ""
    if isinstance(given, ArrayType | MapType | StructType):
        return f": convert it, for example by to_json({name})" if StringType() in allowed else ""
    return f": convert it, for example by CAST({name} AS {allowed[0].simpleString().upper()})"

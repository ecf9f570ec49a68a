"""The source's columns and their types, apart from what reads them: the driver asks before any Arrow is needed."""

from __future__ import annotations

from typing import Final

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
    """The columns of Spark's Kafka source."""
    names = list(_TYPES) if include_headers else [name for name in _TYPES if name != "headers"]
    return StructType([StructField(name, _TYPES[name]) for name in names])


def check_schema(schema: StructType) -> None:
    """Raises ValueError unless each column is one of the source's, with its type."""
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

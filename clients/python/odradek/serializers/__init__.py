"""Plain callables between objects and the bytes of keys and values.

A serializer takes an object and gives bytes; a deserializer takes bytes and gives the object. None goes
through as None (a null key, a tombstone). Give them to a producer or consumer:

    client.producer(value_serializer=serializers.json)
    client.consumer("orders", value_deserializer=serializers.from_json)

Avro needs `odradek[avro]`; protobuf messages need nothing more.
"""

from odradek.serializers.avro import avro, from_avro
from odradek.serializers.plain import (
    csv_row,
    from_csv_row,
    from_integer,
    from_json,
    from_text,
    integer,
    json,
    raw,
    text,
)
from odradek.serializers.protobuf import from_protobuf, protobuf

__all__ = [
    "avro",
    "csv_row",
    "from_avro",
    "from_csv_row",
    "from_integer",
    "from_json",
    "from_protobuf",
    "from_text",
    "integer",
    "json",
    "protobuf",
    "raw",
    "text",
]

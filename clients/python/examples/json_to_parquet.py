"""JSON records to a typed Parquet file: a schema names the columns and their types.

The recipe is `to_parquet`. It reads the records that the topic has when the program starts, one Arrow table at a time.
Fields that the schema does not name are ignored, and a field that a record does not have is null. If a value has
another type than its column, or is not JSON, pyarrow raises ArrowInvalid. A timestamp column takes ISO 8601 text; for
numbers of milliseconds since the epoch, use pa.int64() and cast the column of the table. Needs `odradek[arrow]`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from odradek import Client
from odradek.errors import TopicExists

TOPIC = "readings"
READINGS = 500
FILE = Path(tempfile.gettempdir()) / "odradek-readings.parquet"
SCHEMA = pa.schema(
    {"sensor": pa.string(), "celsius": pa.float64(), "at": pa.timestamp("ms", tz="UTC")}
)


async def to_parquet(client: Client, topic: str, schema: pa.Schema, path: Path) -> None:
    """Write the JSON objects in a topic as rows of a Parquet file."""
    blocks = pj.ReadOptions(block_size=16 << 20)  # bytes; no record may be larger
    types = pj.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="ignore", newlines_in_values=True
    )
    async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        ends = await consumer.end_offsets(consumer.assignment())
        with pq.ParquetWriter(path, schema) as writer:
            while any([await consumer.position(name) < end for name, end in ends.items()]):
                records = await consumer.getarrow(timeout_ms=1_000)
                lines = b"\n".join(records["value"].drop_null().to_pylist())
                if lines:
                    writer.write_table(pj.read_json(pa.BufferReader(lines), blocks, types))


async def main() -> None:
    async with Client() as client:
        try:
            await client.admin.create_topic(TOPIC, partitions=2, replication_factor=1)
        except TopicExists:
            await client.admin.delete_records({(TOPIC, index): -1 for index in range(2)})
        async with client.producer(
            value_serializer=lambda value: json.dumps(value).encode()
        ) as producer:
            for number in range(READINGS):
                reading = {"sensor": f"s{number % 5}", "celsius": 20 + number % 7}
                at = f"2026-03-01T12:{number // 60:02}:{number % 60:02}Z"
                await producer.send(TOPIC, {**reading, "at": at, "firmware": "2.1"})
        await to_parquet(client, TOPIC, SCHEMA, FILE)
    table = pq.read_table(FILE)
    types = ", ".join(f"{field.name} {field.type}" for field in table.schema)
    print(f"{table.num_rows} rows in {FILE}: {types}")


if __name__ == "__main__":
    asyncio.run(main())

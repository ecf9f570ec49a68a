"""Metrics of many hosts: twenty hosts send their load, and a collector reads all samples as one Arrow table.

A lost sample does no harm, so the producers need only the leader's acknowledgement (acks=1), and do not wait for it.
Needs `odradek[arrow]`.
"""

from __future__ import annotations

import asyncio
import math

import pyarrow as pa
import pyarrow.compute as pc

from odradek import Client, serializers
from odradek.errors import TopicExists

TOPIC = "metrics"
HOSTS = 20
SAMPLES = 200


async def report(client: Client, host: int) -> None:
    """Send samples of the load of one host."""
    async with client.producer(
        acks=1, compression="lz4", linger_ms=50, value_serializer=serializers.csv_row
    ) as producer:
        for sample in range(SAMPLES):
            load = 50 + 40 * math.sin(sample / 20 + host)
            await producer.send(TOPIC, ["cpu", f"{load:.2f}"], key=b"host-%02d" % host)


async def collect(client: Client) -> pa.Table:
    """Read all records of the topic into one table."""
    tables: list[pa.Table] = []
    async with client.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
        ends = await consumer.end_offsets(consumer.assignment())
        starts = await consumer.beginning_offsets(consumer.assignment())
        missing = sum(ends.values()) - sum(starts.values())
        while missing > 0:
            table = await consumer.getarrow(timeout_ms=30_000)
            missing -= table.num_rows
            tables.append(table)
    return pa.concat_tables(tables)


async def main() -> None:
    async with Client() as client:
        try:
            await client.admin.create_topic(TOPIC, partitions=4, replication_factor=1)
        except TopicExists:
            await client.admin.delete_records({(TOPIC, index): -1 for index in range(4)})
        await asyncio.gather(*(report(client, host) for host in range(HOSTS)))
        table = await collect(client)
    value = pc.utf8_slice_codeunits(pc.cast(table["value"], pa.string()), 4)
    samples = pa.table({"host": table["key"], "load": pc.cast(value, pa.float64())})
    means = samples.group_by("host").aggregate([("load", "mean"), ("load", "count")])
    busiest = means.sort_by([("load_mean", "descending")]).slice(0, 1).to_pylist()[0]
    print(
        f"{table.num_rows} samples of {means.num_rows} hosts; the busiest is"
        f" {busiest['host'].decode()} with {busiest['load_mean']:.1f} % on average"
    )


if __name__ == "__main__":
    asyncio.run(main())

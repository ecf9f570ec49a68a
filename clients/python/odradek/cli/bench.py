"""`odradek bench`: measure the throughput of the SDK against a cluster."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from odradek.cli.connection import with_client
from odradek.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, fail, print_rows

if TYPE_CHECKING:
    from odradek.client import Client


def bench(
    records: Annotated[
        int, typer.Option(min=1_000, metavar="N", help="Number of records to send and read.")
    ] = 500_000,
    size: Annotated[
        int, typer.Option(min=1, metavar="BYTES", help="Size of each record's value, in bytes.")
    ] = 100,
    partitions: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of partitions of the test topic.")
    ] = 1,
    replicas: Annotated[
        int, typer.Option(min=1, metavar="N", help="Replication factor of the test topic.")
    ] = 1,
    acks: Annotated[
        Literal["1", "all"],
        typer.Option(
            help="Acknowledgements that a record needs: from the leader (1), or from all in-sync replicas (all)."
        ),
    ] = "all",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Measure how fast records are produced and consumed.

    The command creates a test topic and deletes it at the end.
    """
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    how: Literal[1, "all"] = "all" if acks == "all" else 1

    async def work(client: Client) -> list[dict[str, Any]]:
        await client.admin.create_topic(topic, partitions=partitions, replication_factor=replicas)
        try:
            return [
                _row("produce", records, size, await _produce(client, topic, records, size, how)),
                _row("consume", records, size, await _consume(client, topic, records)),
            ]
        finally:
            await client.admin.delete_topic(topic)

    print_rows(
        with_client(bootstrap, work),
        output,
        empty="no record was acknowledged, so nothing was measured",
    )


async def _produce(
    client: Client, topic: str, records: int, size: int, acks: Literal[1, "all"]
) -> float:
    import os

    values = [os.urandom(size) for _ in range(1_000)]
    async with client.producer(acks=acks) as producer:
        await producer.send_and_wait(topic, values[0])
        began = time.perf_counter()
        for index in range(records - 1):
            await producer.send(topic, values[index % 1_000])
        await producer.flush()
        return time.perf_counter() - began


async def _consume(client: Client, topic: str, records: int) -> float:
    async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        began, read = time.perf_counter(), 0
        while read < records:
            records_read = await consumer.getmany(timeout_ms=10_000, max_records=10_000)
            if not records_read:
                fail(
                    f"only {read} of {records} records arrived, and none in the last 10 s:"
                    " `odradek why` shows what is wrong"
                )
            read += len(records_read)
        return time.perf_counter() - began


def _row(what: str, records: int, size: int, seconds: float) -> dict[str, Any]:
    return {
        "what": what,
        "records": records,
        "bytes": size,
        "records/s": round(records / seconds),
        "MB/s": round(records * size / seconds / 1e6, 1),
        "seconds": round(seconds, 2),
    }

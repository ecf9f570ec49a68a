"""Helpers that write records with numbers as values, read them and compare them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from odradek import Client, Consumer, ConsumerRecord


async def fill(
    client: Client, count: int, topic: str = "t", partition: int | None = 0, first: int = 0
) -> None:
    """Append numbers from `first` on, in batches of ten."""
    async with client.producer() as producer:
        for number in range(first, first + count):
            await producer.send(
                topic, b"%d" % number, partition=partition, timestamp_ms=1_000 + number
            )
            if number % 10 == 9:
                await producer.flush(10)


def numbers(records: Sequence[ConsumerRecord]) -> list[int]:
    """Return the values of the records as numbers."""
    return [int(record.value) for record in records]


async def read(consumer: Consumer, count: int, **arguments: int) -> list[ConsumerRecord]:
    """Read until at least this many records have arrived."""
    records: list[ConsumerRecord] = []
    while len(records) < count:
        more = await consumer.getmany(5_000, **arguments)
        assert more, f"only {len(records)} of {count} came"
        records += more
    return records


async def until(is_so: Callable[[], object]) -> None:
    """Let other tasks run until the condition is true."""
    async with asyncio.timeout(30):
        while True:
            if is_so():
                return
            await asyncio.sleep(0)

"""Exactly once from topic to topic: each order is priced once, whichever process dies.

Records are read, transformed and written in transactions, and the offsets of the input are committed with the output.
So both take effect, or neither does. Consumers of the output use `read_committed`. After a crash, the next program
waits until the open transaction of the crashed program has ended, and starts at the committed offsets.

    python transactional_copy.py [NAME [SOURCE [SINK]]]     each copy has its own NAME, and keeps it when it restarts
"""

from __future__ import annotations

import asyncio
import json
import sys

from odradek import Client, Consumer, GroupOptions, Producer, TopicPartition, Transaction
from odradek.errors import TransactionAborted

BATCH_RECORDS = 100


async def main(name: str = "1", source: str = "orders", sink: str = "priced-orders") -> None:
    options = GroupOptions(group=f"transactional-copy.{source}", auto_commit=False)
    async with (
        Client() as client,
        client.consumer(
            source,
            group=options,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer,
        client.producer(transactional_id=f"transactional-copy.{source}.{name}") as producer,
    ):
        while True:
            await copy_some(consumer, producer, sink)


async def copy_some(consumer: Consumer, producer: Producer, sink: str) -> None:
    """Copy one batch. If the transaction is aborted, read the same records again."""
    records = await consumer.getmany(max_records=BATCH_RECORDS)
    first: dict[TopicPartition, int] = {}
    following: dict[TopicPartition, int] = {}
    for record in records:
        partition = TopicPartition(record.topic, record.partition)
        first.setdefault(partition, record.offset)
        following[partition] = record.offset + 1
    try:
        async with producer.transaction() as transaction:
            await write(records, following, consumer, producer, transaction, sink)
    except TransactionAborted as error:
        print(f"the same records are read again: {error}", file=sys.stderr)
        for partition in first.keys() & set(consumer.assignment()):
            consumer.seek(partition, first[partition])


async def write(
    records: list,
    following: dict[TopicPartition, int],
    consumer: Consumer,
    producer: Producer,
    transaction: Transaction,
    sink: str,
) -> None:
    """Send the priced records, and the offsets after the records that were read."""
    for record in records:
        order = json.loads(record.value)
        order["price"] = order["quantity"] * 9.8
        await producer.send(sink, json.dumps(order).encode(), key=record.key)
    await transaction.send_offsets(following, consumer)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""Exactly once: the offset is stored together with the result, in one transaction of the database.

This recipe is for results in a database or a file. Each batch of payments changes the balances and the next offset,
all together or not at all. At the start, and whenever the group assigns a partition, reading starts at the offset in
the *database*. The group only assigns partitions; its committed offsets are not used. If the group has removed a
program that is still running, and another program has already applied the same payments, the offset in the database
shows this, and the transaction of the removed program is rolled back.

    python exactly_once_with_the_result.py [TOPIC] [DATABASE]     payments are b"ACCOUNT AMOUNT"
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Sequence

from odradek import Client, Consumer, ConsumerRecord, GroupOptions, TopicPartition

BATCH_RECORDS = 25
TABLES = """
    CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, amount INTEGER, payments INTEGER);
    CREATE TABLE IF NOT EXISTS offsets (topic TEXT, part INTEGER, next INTEGER, PRIMARY KEY (topic, part));
"""


class Overtaken(Exception):
    """Another program has taken over this partition, and has already applied this payment."""


class Ledger:
    """The balances, and for each partition the offset up to which its payments are included."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(TABLES)

    def next_offset(self, partition: TopicPartition) -> int:
        """Return the offset of the partition's first payment that is not applied yet."""
        row = self._database.execute(
            "SELECT next FROM offsets WHERE topic = ? AND part = ?",
            (partition.topic, partition.partition),
        ).fetchone()
        return int(row[0]) if row else 0

    def apply(self, records: Sequence[ConsumerRecord]) -> None:
        """Apply all payments, or none. Raises Overtaken."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for record in records:
                partition = TopicPartition(str(record.topic), record.partition)
                if self.next_offset(partition) > record.offset:
                    raise Overtaken(
                        f"the payment at offset {record.offset} of {partition} is applied"
                    )
                account, amount = record.value.decode().split()
                self._database.execute(
                    "INSERT INTO balances VALUES (?, ?, 1) ON CONFLICT (account) DO UPDATE SET "
                    "amount = amount + excluded.amount, payments = payments + 1",
                    (account, int(amount)),
                )
                self._database.execute(
                    "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)",
                    (*partition, record.offset + 1),
                )
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise


async def main(topic: str, path: str) -> None:
    ledger = Ledger(path)

    def seek_to_stored_offsets(partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            consumer.seek(partition, ledger.next_offset(partition))

    options = GroupOptions(
        group=f"exactly-once.{topic}", auto_commit=False, on_assign=seek_to_stored_offsets
    )
    async with Client() as client:
        consumer: Consumer = client.consumer(topic, group=options)
        async with consumer:
            while True:
                records = await consumer.getmany(max_records=BATCH_RECORDS)
                try:
                    ledger.apply(records)
                except Overtaken:
                    seek_to_stored_offsets(consumer.assignment())
                await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["payments", "ledger.sqlite"])))

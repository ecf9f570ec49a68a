"""Idempotent consumer: events are delivered at least once, but each event takes effect once, because of its id.

This recipe is for topics that may contain duplicates, for example because a service retried or a file was imported
again. The id of an event (its key) and its effect are written in one transaction; an event whose id is already stored
has no effect. Offsets are committed afterwards, as in at_least_once.py. If a commit is lost, events are read again,
without a second effect.

    python idempotent_consumer.py [TOPIC] [DATABASE]     the key is the event's id, the value a number to add up
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Sequence

from odradek import Client, ConsumerRecord, GroupOptions
from odradek.errors import OdradekError

BATCH_RECORDS = 25
TABLES = """
    CREATE TABLE IF NOT EXISTS seen (id BLOB PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS total (only INTEGER PRIMARY KEY CHECK (only = 1), events INTEGER, amount INTEGER);
    INSERT OR IGNORE INTO total VALUES (1, 0, 0);
"""


class Totals:
    """A sum over events that counts each event once."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(TABLES)

    def apply(self, records: Sequence[ConsumerRecord]) -> None:
        """Apply the events with new ids, all of them or none."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for record in records:
                fresh = self._database.execute(
                    "INSERT OR IGNORE INTO seen VALUES (?)", (record.key,)
                ).rowcount
                if fresh:
                    self._database.execute(
                        "UPDATE total SET events = events + 1, amount = amount + ?",
                        (int(record.value),),
                    )
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise


async def main(topic: str, path: str) -> None:
    totals = Totals(path)
    options = GroupOptions(group=f"idempotent.{topic}", auto_commit=False)
    async with (
        Client() as client,
        client.consumer(topic, group=options, auto_offset_reset="earliest") as consumer,
    ):
        while True:
            totals.apply(await consumer.getmany(max_records=BATCH_RECORDS))
            await asyncio.sleep(0.02)
            try:
                await consumer.commit()
            except OdradekError as error:
                print(
                    f"the commit failed, so these events may be read again: {error}",
                    file=sys.stderr,
                )


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["events", "totals.sqlite"])))

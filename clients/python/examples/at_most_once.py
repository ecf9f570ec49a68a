"""At most once: each reminder is sent once or, if this program dies after the commit, not at all.

This recipe is for work that must not be repeated and may be skipped, such as reminders or samples. Offsets are
committed *before* the records are processed. After a restart, the program continues at the last committed offset,
whether or not the records before this offset were processed.

    python at_most_once.py [TOPIC] [FILE]     appends a line to FILE for each reminder
"""

from __future__ import annotations

import asyncio
import os
import sys

from odradek import Client, GroupOptions
from odradek.errors import OdradekError

BATCH_RECORDS = 25


async def main(topic: str, path: str) -> None:
    options = GroupOptions(group=f"at-most-once.{topic}", auto_commit=False)
    sent = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with (
        Client() as client,
        client.consumer(topic, group=options, auto_offset_reset="earliest") as consumer,
    ):
        while True:
            records = await consumer.getmany(max_records=BATCH_RECORDS)
            try:
                # Commit first, so that the next reader continues after these records.
                await consumer.commit()
            except OdradekError:
                # Records that are not committed may be read again, for example by the member that owns the partition
                # now. So this program must not process them.
                continue
            for record in records:
                await send_reminder(sent, record.value)


async def send_reminder(sent: int, reminder: bytes) -> None:
    """Do the work that must not be repeated."""
    os.write(sent, reminder + b"\n")
    await asyncio.sleep(0.001)


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["reminders", "reminders-sent.txt"])))

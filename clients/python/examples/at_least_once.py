"""At least once: every order is shipped. If this program dies before it commits, some orders are processed again.

This recipe is the usual one for work that may be repeated. Offsets are committed *after* the records were processed.
After a restart, the program starts at the last committed offset, so it processes again the records that it had not
committed. Instead of explicit commits, `auto_commit` can commit the processed records at intervals.

    python at_least_once.py [TOPIC] [FILE]     appends a line to FILE for each order
"""

from __future__ import annotations

import asyncio
import os
import sys

from odradek import Client, GroupOptions
from odradek.errors import OdradekError

BATCH_RECORDS = 25


async def main(topic: str, path: str) -> None:
    options = GroupOptions(group=f"at-least-once.{topic}", auto_commit=False)
    shipped = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with (
        Client() as client,
        client.consumer(topic, group=options, auto_offset_reset="earliest") as consumer,
    ):
        while True:
            for record in await consumer.getmany(max_records=BATCH_RECORDS):
                await ship(shipped, record.value)
            try:
                # Commit last, so that all committed records have been processed.
                await consumer.commit()
            except OdradekError as error:
                print(
                    f"the commit failed, so these records may be processed again: {error}",
                    file=sys.stderr,
                )


async def ship(shipped: int, order: bytes) -> None:
    """Do the work that must not be skipped."""
    os.write(shipped, order + b"\n")
    await asyncio.sleep(0.001)


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["orders", "orders-shipped.txt"])))

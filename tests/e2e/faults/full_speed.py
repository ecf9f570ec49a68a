"""Runs a producer that sends as fast as it can, in a separate process.

    python -m tests.e2e.faults.full_speed BOOTSTRAP TOPIC PARTITIONS SECONDS

At the end it prints one line of JSON: the number of records sent, and errors by name.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter

from odradek import Client, DeliveryFuture

VALUE_BYTES = 1_000
RUN_RECORDS = 64  # records to one partition, before the producer goes to the next


async def produce(
    bootstrap: str, topic: str, partitions: int, seconds: float
) -> tuple[int, Counter[str]]:
    """Send for this many seconds; return the number of records, and the errors by name."""
    values = [os.urandom(VALUE_BYTES) for _ in range(RUN_RECORDS)]  # incompressible
    errors: Counter[str] = Counter()
    sent = 0

    def note(future: DeliveryFuture) -> None:
        if (error := future.exception()) is not None:
            errors[type(error).__name__] += 1

    async with Client(bootstrap) as client, client.producer(acks="all") as producer:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            partition = sent // RUN_RECORDS % partitions
            for value in values:
                future = await producer.send(topic, value, partition=partition)
                future.add_done_callback(note)
            sent += RUN_RECORDS
        await producer.flush(60)
    return sent, errors


def main() -> None:
    """Run from the command line."""
    bootstrap, topic, partitions, seconds = sys.argv[1:]
    sent, errors = asyncio.run(produce(bootstrap, topic, int(partitions), float(seconds)))
    print(json.dumps({"sent": sent, "errors": errors}))


if __name__ == "__main__":
    main()

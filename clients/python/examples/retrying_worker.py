"""A worker with retries and a dead letter topic: every job is done, or is in TOPIC.dead with the error and its origin.

The guarantee is at least once. The offsets of a batch are committed when all its jobs are done, or acknowledged in the
dead letter topic. If the worker is killed before that, these jobs are processed again. While the worker retries a job,
the later jobs of its partitions wait, so their order is kept.

    python retrying_worker.py [TOPIC] [FILE]     appends a line to FILE for each job
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable

from odradek import Client, ConsumerRecord, GroupOptions, Producer
from odradek.errors import OdradekError, TopicExists

BATCH_RECORDS = 25
ATTEMPTS_MAX = 3
PAUSE_S = 0.02  # before the second attempt; doubles with each further one

Job = Callable[[ConsumerRecord], Awaitable[None]]


async def main(topic: str, path: str) -> None:
    done = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def job(record: ConsumerRecord) -> None:
        """The work of this program: it fails if the value is not JSON, or has no field `order`."""
        order = json.loads(record.value or b"")["order"]
        os.write(done, b"%d\n" % order)

    options = GroupOptions(group=f"worker.{topic}", auto_commit=False)
    async with (
        Client() as client,
        client.producer() as producer,
        client.consumer(topic, group=options, auto_offset_reset="earliest") as consumer,
    ):
        with contextlib.suppress(TopicExists):
            await client.admin.create_topic(f"{topic}.dead", partitions=1)
        while True:
            for record in await consumer.getmany(max_records=BATCH_RECORDS):
                failure = await attempted(job, record)
                if failure is not None:
                    await send_to_dead_letters(producer, record, failure)
            try:
                await consumer.commit()
            except OdradekError as error:
                print(f"the commit failed, so jobs may be repeated: {error}", file=sys.stderr)


async def attempted(job: Job, record: ConsumerRecord) -> Exception | None:
    """Try the job up to ATTEMPTS_MAX times. Return the error of the last attempt; None: the job is done."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            await job(record)
        except Exception as error:
            if attempt == ATTEMPTS_MAX:
                return error
            await asyncio.sleep(PAUSE_S * 2 ** (attempt - 1))
        else:
            break
    return None


async def send_to_dead_letters(
    producer: Producer, record: ConsumerRecord, error: Exception
) -> None:
    """Write a record to the dead letter topic, and wait for the acknowledgement. If this fails, the worker ends with
    the error, and has not committed the record.
    """
    origin = f"{record.topic}/{record.partition}/{record.offset}"
    await producer.send_and_wait(
        f"{record.topic}.dead",
        record.value,
        key=record.key,
        headers=[
            *record.headers,
            ("error", f"{type(error).__name__}: {error}".encode()),
            ("origin", origin.encode()),
        ],
    )


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["jobs", "jobs-done.txt"])))

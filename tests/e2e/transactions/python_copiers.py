"""Copies a topic to another one in transactions of a group, with a Python client that has its own implementation.

    python -m tests.e2e.transactions.python_copiers aiokafka|kafka-python BOOTSTRAP SOURCE SINK NAME

Every tenth batch is aborted on purpose, and copied again. If the client reports a fatal error of its producer, the
process ends with status 3, and its successor continues at the committed offsets. The same happens if a call of
kafka-python does not return: kafka-python 3.0.12 drops the request that ends a transaction if it cannot connect to the
coordinator that it has just found (`Sender._maybe_send_pending_request`), and `commit_transaction` has no time-out.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AiokafkaError
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

BATCH: Final = 50
ABORTS_EVERY: Final = 10
TIMEOUT_MS: Final = 10_000
CALL_S_MAX: Final = 40.0
GAVE_UP: Final = 3
_CONSUMER: Final[dict[str, Any]] = {
    "isolation_level": "read_committed",
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
    # A copier that was killed must leave the group before its successor gets the partitions.
    "session_timeout_ms": 2_000,
    "heartbeat_interval_ms": 300,
}


async def copy_by_aiokafka(bootstrap: str, source: str, sink: str, name: str) -> None:
    """Copy until killed. A restart of the consumer goes back to the committed offsets."""
    async with (
        AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=name,
            transaction_timeout_ms=TIMEOUT_MS,
        ) as producer,
        AIOKafkaConsumer(source, bootstrap_servers=bootstrap, group_id=name, **_CONSUMER) as reader,
    ):
        number = 0
        while True:
            polled = await reader.getmany(timeout_ms=500, max_records=BATCH)
            if not polled:
                continue
            number += 1
            await producer.begin_transaction()
            sent = [
                await producer.send(sink, record.value)
                for records in polled.values()
                for record in records
            ]
            await asyncio.gather(*sent)
            offsets = {partition: records[-1].offset + 1 for partition, records in polled.items()}
            await producer.send_offsets_to_transaction(offsets, name)
            if number % ABORTS_EVERY:
                await producer.commit_transaction()
                continue
            await producer.abort_transaction()
            for partition in reader.assignment():
                committed = await reader.committed(partition)
                reader.seek(partition, committed or 0)


@contextmanager
def bounded() -> Iterator[None]:
    """End the process if the block takes longer than the time-out of a transaction and 30 s."""
    timer = threading.Timer(CALL_S_MAX, os._exit, [GAVE_UP])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def copy_by_kafka_python(bootstrap: str, source: str, sink: str, name: str) -> None:
    """Copy until killed."""
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=TIMEOUT_MS
    )
    producer.init_transactions()
    reader = KafkaConsumer(source, bootstrap_servers=bootstrap, group_id=name, **_CONSUMER)
    number = 0
    while True:
        polled = reader.poll(timeout_ms=500, max_records=BATCH)
        if not polled:
            continue
        number += 1
        with bounded():
            copy_batch(producer, polled, sink, name, is_commit=number % ABORTS_EVERY != 0)
        if number % ABORTS_EVERY == 0:
            for partition in reader.assignment():
                reader.seek(partition, reader.committed(partition) or 0)


def copy_batch(
    producer: KafkaProducer, polled: Any, sink: str, name: str, *, is_commit: bool
) -> None:
    """Copy what the consumer polled in one transaction of kafka-python, and commit or abort it."""
    producer.begin_transaction()
    sent = [producer.send(sink, record.value) for records in polled.values() for record in records]
    producer.flush()
    for future in sent:
        future.get(timeout=TIMEOUT_MS / 1_000)
    offsets = {
        partition: OffsetAndMetadata(records[-1].offset + 1, "", -1)
        for partition, records in polled.items()
    }
    producer.send_offsets_to_transaction(offsets, name)
    if is_commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def main(arguments: Sequence[str]) -> int:
    client, *places = arguments
    try:
        if client == "aiokafka":
            asyncio.run(copy_by_aiokafka(*places))
        else:
            copy_by_kafka_python(*places)
    except (AiokafkaError, KafkaError, AssertionError) as error:
        print(f"gave up: {error!r}", file=sys.stderr)
    return GAVE_UP


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

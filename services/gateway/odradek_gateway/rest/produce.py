"""Records into the log: what v2 and v3 share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from odradek import errors
from odradek.producer.delivery import DeliveryFuture, RecordMetadata
from odradek.producer.producer import Producer
from odradek_gateway.rest.errors import (
    KAFKA_ERROR,
    KAFKA_RETRIABLE_ERROR,
    PARTITION_NOT_FOUND,
    RestError,
    rest_error_of,
)

Headers = list[tuple[str, bytes | None]]


class OutgoingRecord(NamedTuple):
    """One record, as bytes. A tuple: a request has thousands of them."""

    key: bytes | None
    value: bytes | None
    partition: int | None = None
    headers: Headers | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Why one record is not in the log: Confluent's code, and words."""

    error_code: int
    message: str
    status: int


async def require_partition(producer: Producer, topic: str, partition: int | None) -> int:
    """How many partitions the topic has; 404 for a topic or partition that is not there."""
    count = await producer.partitions_for(topic)
    if partition is not None and not 0 <= partition < count:
        raise RestError(
            404,
            PARTITION_NOT_FOUND,
            f"topic {topic} has partitions 0 to {count - 1}, not {partition}",
        )
    return count


async def send_all(
    producer: Producer, topic: str, records: Sequence[OutgoingRecord], partition_count: int
) -> list[RecordMetadata | RecordFailure]:
    """Send and wait for every acknowledgement; one outcome a record, in order."""
    futures = [await hand_over(producer, topic, one, partition_count) for one in records]
    return [f if isinstance(f, RecordFailure) else await outcome(f) for f in futures]


async def hand_over(
    producer: Producer, topic: str, record: OutgoingRecord, partition_count: int
) -> DeliveryFuture | RecordFailure:
    """Give one record to the producer; waits for buffer space only."""
    if record.partition is not None and not 0 <= record.partition < partition_count:
        words = f"topic {topic} has partitions 0 to {partition_count - 1}, not {record.partition}"
        return RecordFailure(PARTITION_NOT_FOUND, words, 404)
    try:
        return await producer.send(
            topic,
            record.value,
            key=record.key,
            partition=record.partition,
            headers=record.headers,
            timestamp_ms=record.timestamp_ms,
        )
    except errors.OdradekError as error:
        return failure_of(error)


async def outcome(future: DeliveryFuture) -> RecordMetadata | RecordFailure:
    """Wait for one acknowledgement."""
    try:
        return await future
    except errors.OdradekError as error:
        return failure_of(error)


def failure_of(error: errors.OdradekError) -> RecordFailure:
    """Confluent's code for a record that failed: retriable or not, authorization by its own."""
    answer = rest_error_of(error)
    if answer.status in (401, 403, 404, 413):
        return RecordFailure(answer.error_code, answer.message, answer.status)
    is_retriable = error.retriable or answer.error_code == KAFKA_RETRIABLE_ERROR
    code = KAFKA_RETRIABLE_ERROR if is_retriable else KAFKA_ERROR
    return RecordFailure(code, answer.message, answer.status)

"""Measures one side with confluent-kafka, in a separate process for each measurement.

    python -m tests.bench.comparisons.kafka_client produce BOOTSTRAP TOPIC --acks 1 --size 100 ...
    ... consume BOOTSTRAP TOPIC --records 1000000
    ... paced BOOTSTRAP TOPIC --acks all --seconds 5   1,000 records/s, from send to arrival
    ... transactions BOOTSTRAP TOPIC --records 1000    one after the other, each with one record
    ... first BOOTSTRAP TOPIC                          one record, until a starting cluster acknowledges it

The program prints one JSON object. It uses confluent-kafka's default settings with two exceptions: the paced and the
transactional producer do not linger, and a consumer whose queue was full fetches again after 1 ms,
because with the default of one second nothing else would be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

RATE: Final = 1_000
WARM_UP_RECORDS: Final = 500
WARM_UP_TRANSACTIONS: Final = 20
TIMEOUT_S: Final = 120.0
FIRST_TIMEOUT_S: Final = 60.0


def produce(options: argparse.Namespace) -> dict[str, Any]:
    """Send records as fast as the cluster takes them, until all are acknowledged. Latency is that of every 1,000th
    record.
    """
    producer = Producer({"bootstrap.servers": options.bootstrap, "acks": options.acks})
    noise = os.urandom(1 << 20)
    values = [noise[i * 97 : i * 97 + options.size] for i in range(10_000)]
    producer.produce(options.topic, values[0])
    _flush(producer)
    waits_ms: list[float] = []
    failed: list[str] = []
    began_s = time.perf_counter()
    for number in range(options.records):
        while True:
            try:
                if number % 1_000:
                    producer.produce(options.topic, values[number % 10_000])
                else:
                    sent_s = time.perf_counter()
                    producer.produce(
                        options.topic,
                        values[number % 10_000],
                        on_delivery=_noting(sent_s, waits_ms, failed),
                    )
                    producer.poll(0)
                break
            except BufferError:
                producer.poll(0.01)
    _flush(producer)
    seconds = time.perf_counter() - began_s
    if failed or len(waits_ms) != (options.records + 999) // 1_000:
        raise SystemExit(f"records were not acknowledged: {failed[:3]}")
    return {"seconds": seconds} | _percentiles("ack_ms", waits_ms)


def consume(options: argparse.Namespace) -> dict[str, Any]:
    """Consume from the first record until `records` were read."""
    consumer = _consumer(options.bootstrap)
    consumer.assign([TopicPartition(options.topic, 0, 0)])
    wanted, read = options.records, 0
    deadline_s = time.perf_counter() + TIMEOUT_S
    began_s = time.perf_counter()
    while read < wanted:
        messages = consumer.consume(min(10_000, wanted - read), 1.0)
        _require_intact(messages)
        read += len(messages)
        if time.perf_counter() > deadline_s:
            raise SystemExit(f"read {read} of {wanted} records in {TIMEOUT_S} s")
    seconds = time.perf_counter() - began_s
    consumer.close()
    return {"seconds": seconds}


def paced(options: argparse.Namespace) -> dict[str, Any]:
    """Measure latency at 1,000 records/s: from send to acknowledgement, and from send to receipt by
    the consumer.
    """
    producer = Producer(
        {"bootstrap.servers": options.bootstrap, "acks": options.acks, "linger.ms": 0}
    )
    consumer = _consumer(options.bootstrap)
    consumer.assign([TopicPartition(options.topic, 0, 0)])
    producer.produce(options.topic, bytes(options.size))
    _flush(producer)
    while consumer.poll(TIMEOUT_S) is None:
        continue
    acks_ms: list[float] = []
    arrivals_ms: list[float] = []
    failed: list[str] = []
    total = WARM_UP_RECORDS + int(options.seconds * RATE)
    read = sent = 0
    began_s = time.perf_counter()
    while read < total:
        now_s = time.perf_counter()
        if now_s - began_s > options.seconds + TIMEOUT_S:
            raise SystemExit(f"read {read} of {total} records")
        while sent < total and began_s + sent / RATE <= now_s:
            at_s = time.perf_counter()
            waits = acks_ms if sent >= WARM_UP_RECORDS else []
            producer.produce(
                options.topic,
                int(at_s * 1e9).to_bytes(8, "big") + bytes(options.size - 8),
                on_delivery=_noting(at_s, waits, failed),
            )
            sent += 1
        producer.poll(0)
        message = consumer.poll(0.0002)
        while message is not None:
            _require_intact([message])
            read += 1
            if read > WARM_UP_RECORDS:
                sent_ns = int.from_bytes((message.value() or b"")[:8], "big")
                arrivals_ms.append(time.perf_counter() * 1e3 - sent_ns / 1e6)
            message = consumer.poll(0)
    _flush(producer)
    consumer.close()
    if failed:
        raise SystemExit(f"records were not acknowledged: {failed[:3]}")
    return _percentiles("ack_ms", acks_ms) | _percentiles("arrival_ms", arrivals_ms)


def transactions(options: argparse.Namespace) -> dict[str, Any]:
    """Run transactions of one producer, back to back. A commit also waits until the record is acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "transactional.id": options.topic,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    waits_ms: list[float] = []
    value = bytes(options.size)
    began_s = 0.0
    for number in range(WARM_UP_TRANSACTIONS + options.records):
        if number == WARM_UP_TRANSACTIONS:
            began_s = time.perf_counter()
        producer.begin_transaction()
        producer.produce(options.topic, value)
        commit_s = time.perf_counter()
        producer.commit_transaction(TIMEOUT_S)
        if number >= WARM_UP_TRANSACTIONS:
            waits_ms.append((time.perf_counter() - commit_s) * 1e3)
    seconds = time.perf_counter() - began_s
    return {"seconds": seconds} | _percentiles("commit_ms", waits_ms)


def first(options: argparse.Namespace) -> dict[str, Any]:
    """Write one record to a topic that the cluster creates for it. The client library repeats its requests until the
    cluster has started and acknowledges the record.
    """
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "acks": options.acks,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "topic.metadata.refresh.fast.interval.ms": 20,
            "topic.metadata.propagation.max.ms": FIRST_TIMEOUT_S * 1000,
            "log_level": 0,
        }
    )
    producer.produce(options.topic, b"first")
    if producer.flush(FIRST_TIMEOUT_S):
        raise SystemExit("the first record was not acknowledged")
    return {"acknowledged_at_s": time.time()}


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 1,
        }
    )


def _noting(
    sent_s: float, waits_ms: list[float], failed: list[str]
) -> Callable[[KafkaError | None, Message], None]:
    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))
        waits_ms.append((time.perf_counter() - sent_s) * 1e3)

    return note


def _flush(producer: Producer) -> None:
    left = producer.flush(TIMEOUT_S)
    if left:
        raise SystemExit(f"{left} records were not acknowledged in {TIMEOUT_S} s")


def _require_intact(messages: list[Message]) -> None:
    for message in messages:
        error = message.error()
        if error is not None:
            raise SystemExit(f"reading failed: {error}")


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    values.sort()
    return {
        f"{name}_p{share}": round(values[min(len(values) - 1, len(values) * share // 100)], 2)
        for share in (50, 99)
    }


_MEASURES: Final = {
    "produce": produce,
    "consume": consume,
    "paced": paced,
    "transactions": transactions,
    "first": first,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=[*_MEASURES])
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--acks", default="1")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    print(json.dumps(_MEASURES[options.what](options)), flush=True)


if __name__ == "__main__":
    main()

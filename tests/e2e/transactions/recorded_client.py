"""Runs a client of a real cluster that records all it does in a file, for the history checker of
transactions.

    python -m tests.e2e.transactions.recorded_client ROLE BOOTSTRAP NAME PROCESS FILE

There are three roles: `bank` moves amounts between partitions of `NAME-in`; `copier` copies those
records to `NAME-out`, with the offsets of its group in the transaction; `reader` reads both as a
read_committed consumer. The client is unmodified confluent-kafka. Each line of FILE is one event,
which is written before the next action, so that SIGKILL loses none. The clock is the machine's
monotonic one, which all processes share. The process ends with status 3 when its producer has a
fatal error, or when a call takes longer than its own time limit: since librdkafka 2.10,
send_offsets_to_transaction may wait for ever for a group coordinator that was killed
(https://github.com/confluentinc/librdkafka/issues/5511). The test restarts the process.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka as ck

PARTITIONS: Final = 3
TIMEOUT_MS: Final = 10_000
BATCH_MAX: Final = 20
CALL_S: Final = 10.0
HANGS_S: Final = 5.0
"""How much longer than its time limit a call may take."""
STEP_S: Final = 0.5
FATAL_STATUS: Final = 3


class Recorder:
    """Appends events to the file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "at": time.monotonic_ns(), **fields})
        os.write(self._file, line.encode() + b"\n")


@contextmanager
def ends_in_time(out: Recorder) -> Iterator[None]:
    """End this process if a call does not return within its own time limit.

    The time is counted in short steps, which SIGSTOP stops, too, so time under SIGSTOP does not count.
    """
    returned = threading.Event()

    def watch() -> None:
        if not any(returned.wait(STEP_S) for _ in range(round((CALL_S + HANGS_S) / STEP_S))):
            out.note("hung")
            os._exit(FATAL_STATUS)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        returned.set()


class GaveUp(Exception):
    """The producer has a fatal error."""


class RecordedProducer:
    """A transactional producer of librdkafka whose transactions are recorded."""

    def __init__(self, bootstrap: str, transactional_id: str, process: str, out: Recorder) -> None:
        self._producer = ck.Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TIMEOUT_MS,
                "linger.ms": 2,
            }
        )
        self._name = {"id": transactional_id, "process": process}
        self._out = out
        self._number = 0
        asked = time.monotonic_ns()
        self._call(lambda: self._producer.init_transactions(CALL_S))
        out.note("takeover", asked=asked, **self._name)

    def begin(self, **fields: Any) -> None:
        self._number += 1
        self._producer.begin_transaction()
        self._out.note("begin", number=self._number, **self._name, **fields)

    def send(self, topic: str, partition: int, **fields: Any) -> None:
        value = f"{self._name['process']}/{self._number}/{random.getrandbits(48):012x}"
        fields = {"value": value, **fields}
        self._note("send", topic=topic, partition=partition, **fields)
        self._producer.produce(topic, json.dumps(fields).encode(), partition=partition)

    def send_offsets(self, consumer: ck.Consumer, offsets: dict[tuple[str, int], int]) -> None:
        places = [[topic, partition, offset] for (topic, partition), offset in offsets.items()]
        self._note("offsets", offsets=places)
        positions = [ck.TopicPartition(*place) for place in places]
        metadata = consumer.consumer_group_metadata()
        self._call(lambda: self._producer.send_offsets_to_transaction(positions, metadata, CALL_S))

    def commit(self) -> None:
        self._note("commit")
        self._call(lambda: self._producer.commit_transaction(CALL_S))
        self._note("told", fate="committed")

    def abort(self) -> None:
        self._note("abort")
        self._call(lambda: self._producer.abort_transaction(CALL_S))
        self._note("told", fate="aborted")

    def _note(self, event: str, **fields: Any) -> None:
        self._out.note(event, number=self._number, **fields)

    def _call(self, call: Callable[[], object]) -> None:
        """Repeat a call until it succeeds.

        Raises KafkaException if the transaction must be aborted.
        """
        while True:
            try:
                with ends_in_time(self._out):
                    call()
                return
            except ck.KafkaException as failure:
                error = failure.args[0]
                if error.txn_requires_abort():
                    raise
                if not error.retriable():
                    raise GaveUp(str(error)) from failure


def bank(bootstrap: str, name: str, process: str, out: Recorder) -> None:
    """Move amounts until the process is killed."""
    producer = RecordedProducer(bootstrap, f"{name}-{process.partition('.')[0]}", process, out)
    while True:
        payer, payee = random.sample(range(PARTITIONS), 2)
        amount = random.randint(1, 100)
        producer.begin()
        try:
            producer.send(f"{name}-in", payer, amount=-amount)
            producer.send(f"{name}-in", payee, amount=amount)
            if random.random() < 0.2:
                producer.abort()
            else:
                producer.commit()
        except ck.KafkaException:
            producer.abort()
        time.sleep(random.random() / 50)


def copier(bootstrap: str, name: str, process: str, out: Recorder) -> None:
    """Copy records until the process is killed."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": name,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
        }
    )
    producer = RecordedProducer(bootstrap, f"{name}-{process.partition('.')[0]}", process, out)
    consumer.subscribe([f"{name}-in"])
    while True:
        messages = [m for m in consumer.consume(BATCH_MAX, 0.5) if m.error() is None]
        if not messages:
            continue
        producer.begin(group=name)
        offsets = {(m.topic(), m.partition()): m.offset() + 1 for m in messages}
        try:
            for message in messages:
                source = json.loads(message.value())["value"]
                producer.send(f"{name}-out", random.randrange(PARTITIONS), copy_of=source)
            producer.send_offsets(consumer, offsets)
            if random.random() < 0.1:
                producer.abort()
                rewind(consumer, name, out)
            else:
                producer.commit()
        except ck.KafkaException:
            producer.abort()
            rewind(consumer, name, out)


def rewind(consumer: ck.Consumer, group: str, out: Recorder) -> None:
    """Set the positions to the group's committed offsets."""
    while True:
        asked = time.monotonic_ns()
        try:
            committed = consumer.committed(consumer.assignment(), CALL_S)
        except ck.KafkaException:
            continue
        if all(place.error is None for place in committed):
            break
    for place in committed:
        offset = max(place.offset, 0)
        out.note(
            "fetch",
            group=group,
            topic=place.topic,
            partition=place.partition,
            offset=offset,
            asked=asked,
        )
        target = place.offset if place.offset >= 0 else ck.OFFSET_BEGINNING
        try:
            consumer.seek(ck.TopicPartition(place.topic, place.partition, target))
        except ck.KafkaException:
            # The partition was taken away. Its next owner begins where the group is.
            continue


def reader(bootstrap: str, name: str, process: str, out: Recorder) -> None:
    """Read until the process is killed."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": f"{name}-{process}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    positions = {
        (f"{name}-{side}", number): 0 for side in ("in", "out") for number in range(PARTITIONS)
    }
    consumer.assign([ck.TopicPartition(*place, 0) for place in positions])
    while True:
        polled: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for message in consumer.consume(500, 0.5):
            if message.error() is None:
                value = json.loads(message.value())["value"]
                place = (message.topic(), message.partition())
                polled.setdefault(place, []).append((message.offset(), value))
        for (topic, partition), records in polled.items():
            position = positions[topic, partition]
            positions[topic, partition] = records[-1][0] + 1
            out.note(
                "poll",
                reader=process,
                topic=topic,
                partition=partition,
                position=position,
                next=records[-1][0] + 1,
                records=records,
            )


def main() -> int:
    role, bootstrap, name, process, path = sys.argv[1:]
    run = {"bank": bank, "copier": copier, "reader": reader}[role]
    try:
        run(bootstrap, name, process, Recorder(path))
    except GaveUp as error:
        print(f"{process} gives up: {error}", file=sys.stderr)
    return FATAL_STATUS


if __name__ == "__main__":
    sys.exit(main())

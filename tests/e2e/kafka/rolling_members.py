"""Group members that are replaced one by one while records flow, with a record of which member
owned and read what.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import confluent_kafka as ck

TIMEOUT_S = 60.0
Partition = tuple[str, int]


class Ledger:
    """The partitions that all members of a group own and the records that they have read.

    It may be used from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[Partition, str] = {}
        self.owned_twice: list[str] = []
        self.read: dict[int, int] = {}  # number -> times

    def assigned(self, member: str, partitions: list[ck.TopicPartition]) -> None:
        with self._lock:
            for one in partitions:
                other = self._owners.get((one.topic, one.partition), member)
                if other != member:
                    self.owned_twice.append(f"{one.partition}: {other}, then {member}")
                self._owners[one.topic, one.partition] = member

    def revoked(self, member: str, partitions: list[ck.TopicPartition]) -> None:
        with self._lock:
            for one in partitions:
                if self._owners.get((one.topic, one.partition)) == member:
                    del self._owners[one.topic, one.partition]

    def note(self, number: int) -> None:
        with self._lock:
            self.read[number] = self.read.get(number, 0) + 1

    def shares(self) -> dict[str, int]:
        """Return how many partitions each member owns."""
        with self._lock:
            owners = list(self._owners.values())
        return {member: owners.count(member) for member in owners}


class MemberThread:
    """A consumer that polls, records what it got and commits, until `leave` is called."""

    def __init__(self, name: str, topic: str, ledger: Ledger, config: dict[str, Any]) -> None:
        self.name = name
        self.errors: list[str] = []
        self._ledger = ledger
        self._consumer = ck.Consumer({"client.id": name, **config})
        self._leaves = threading.Event()
        self._consumer.subscribe(
            [topic],
            on_assign=lambda _, parts: ledger.assigned(name, parts),
            on_revoke=self._revoked,
            on_lost=lambda _, parts: ledger.revoked(name, parts),
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _revoked(self, consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self._commit()
        self._ledger.revoked(self.name, partitions)

    def _commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except ck.KafkaException as error:
            if error.args[0].code() != ck.KafkaError._NO_OFFSET:
                # A commit may fail in a rebalance. The next owner then reads the records again.
                self.errors.append(str(error))

    def _run(self) -> None:
        while not self._leaves.is_set():
            messages = self._consumer.consume(200, 0.1)
            for message in messages:
                if message.error() is None:
                    self._ledger.note(int(message.value() or b"-1"))
                elif not message.error().retriable():
                    self.errors.append(str(message.error()))
            if messages:
                self._commit()
        self._consumer.close()

    def leave(self) -> None:
        """Close the consumer, and wait for that."""
        self._leaves.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.name} does not close"


class Load:
    """A producer that sends numbers until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: set[int] = set()
        self._failures: list[Any] = []
        self._stops = threading.Event()
        self._producer = ck.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._topic = topic
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stops.wait(0.005):
            for _ in range(5):
                self._producer.produce(
                    self._topic,
                    b"%d" % number,
                    key=b"%d" % number,
                    on_delivery=lambda error, _, n=number: self._told(n, error),
                )
                number += 1
            self._producer.poll(0)

    def _told(self, number: int, error: Any) -> None:
        if error is None:
            self.acknowledged.add(number)
        else:
            self._failures.append(error)

    def finish(self) -> set[int]:
        """Stop the producer, and return the acknowledged numbers, which must be all that were sent."""
        self._stops.set()
        self._thread.join(TIMEOUT_S)
        assert self._producer.flush(TIMEOUT_S) == 0
        assert not self._failures, self._failures[:3]
        return self.acknowledged


def until_shared(ledger: Ledger, members: list[MemberThread], partitions: int) -> None:
    """Wait until exactly these members own all partitions, with at least one partition each."""
    names = {member.name for member in members}
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        shares = ledger.shares()
        if set(shares) == names and sum(shares.values()) == partitions:
            return
        time.sleep(0.05)  # poll the state of another thread
    raise AssertionError(f"{ledger.shares()} of {partitions} by {names}")


def until_read(ledger: Ledger, numbers: set[int]) -> None:
    """Wait until all of these numbers were read."""
    deadline = time.monotonic() + TIMEOUT_S
    while numbers - ledger.read.keys():
        missing = numbers - ledger.read.keys()
        assert time.monotonic() < deadline, f"{len(missing)} were not read: {sorted(missing)[:9]}"
        time.sleep(0.05)  # poll the state of another thread

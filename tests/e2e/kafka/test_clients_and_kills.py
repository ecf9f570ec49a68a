"""Every client writes while the leader of three brokers is killed and restarted: all acknowledged
records are still there.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kafka
import pytest
from aiokafka import AIOKafkaProducer

from odradek.embedded import ChildProcess, EmbeddedCluster
from tests.e2e.kafka.test_java_tools import Tools, jars
from tests.e2e.kafka.test_kcat import kcat
from tests.e2e.kafka.test_three_brokers import create, leader_of, read_all

__all__ = ["jars"]  # a fixture
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(400)]
ROUNDS = 3
KILL_EVERY_S = 20.0
DOWN_S = 8.0
RECORDS_A_SECOND = 100
TIMEOUT_S = 60.0
_FAILURES = (b"Delivery failed", b"Error when sending message")
Numbers = Iterator[bytes]
Write = Callable[[str, str, Numbers], list[int]]


class Feed:
    """Yields numbers at a steady rate until it is stopped."""

    def __init__(self) -> None:
        self.stops = threading.Event()

    def numbers(self) -> Numbers:
        number = 0
        while not self.stops.wait(1 / RECORDS_A_SECOND):
            yield b"%d" % number
            number += 1


def write_by_process(command: list[str], numbers: Numbers) -> list[int]:
    """Feed numbers to a program, which must exit with status 0 and without error output once all
    are acknowledged.
    """
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stderr is not None
        said: list[bytes] = []
        listens = threading.Thread(target=lambda: said.extend(program.stderr or ()), daemon=True)
        listens.start()
        count = 0
        for number in numbers:
            program.stdin.write(number + b"\n")
            program.stdin.flush()
            count += 1
        program.stdin.close()
        program.wait(TIMEOUT_S)
        listens.join(TIMEOUT_S)
        refused = [line for line in said if any(word in line for word in _FAILURES)]
        assert program.returncode == 0, said[-3:]
        assert not refused, refused[:3]
        return list(range(count))


def kcat_writes(bootstrap: str, topic: str, numbers: Numbers) -> list[int]:
    options = ["enable.idempotence=true", "message.timeout.ms=60000", "linger.ms=2"]
    words = [word for one in options for word in ("-X", one)]
    command = ["kcat", "-b", bootstrap, "-P", "-t", topic, *words]
    # Without -E, kcat ends with its last connection.
    return write_by_process([*command, "-E"], numbers)


def kafka_python_writes(bootstrap: str, topic: str, numbers: Numbers) -> list[int]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap.split(","), acks="all", delivery_timeout_ms=60_000
    )
    sent = [producer.send(topic, number) for number in numbers]
    producer.flush(TIMEOUT_S)
    for one in sent:
        one.get(TIMEOUT_S)
    producer.close()
    return list(range(len(sent)))


def aiokafka_writes(bootstrap: str, topic: str, numbers: Numbers) -> list[int]:
    async def write() -> int:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, request_timeout_ms=60_000
        ) as producer:
            sent = []
            while (number := await asyncio.to_thread(next, numbers, None)) is not None:
                sent.append(await producer.send(topic, number))
            await asyncio.gather(*sent)
            return len(sent)

    return list(range(asyncio.run(write())))


def java_writes(jars: Path) -> Write:
    def write(bootstrap: str, topic: str, numbers: Numbers) -> list[int]:
        options = ["--topic", topic, "--command-property", "delivery.timeout.ms=60000"]
        return write_by_process(
            Tools(jars, bootstrap).command("ConsoleProducer", *options), numbers
        )

    return write


@pytest.mark.parametrize(
    "client",
    [
        pytest.param("kcat", marks=pytest.mark.scenario("kcat", "broker killed")),
        pytest.param("kafka-python", marks=pytest.mark.scenario("kafka-python", "broker killed")),
        pytest.param("aiokafka", marks=pytest.mark.scenario("aiokafka", "broker killed")),
        pytest.param("java", marks=pytest.mark.scenario("java", "broker killed")),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # aiokafka's sockets
def test_what_was_acknowledged_is_read(
    three: EmbeddedCluster, topic: str, client: str, jars: Path
) -> None:
    writes = {
        "kcat": kcat_writes,
        "kafka-python": kafka_python_writes,
        "aiokafka": aiokafka_writes,
        "java": java_writes(jars),
    }[client]
    admin = create(three, topic, 1)
    feed, acknowledged, failures = Feed(), list[int](), list[BaseException]()

    def run() -> None:
        try:
            acknowledged.extend(writes(three.kafka_bootstrap, topic, feed.numbers()))
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=run, daemon=True)
    writer.start()
    for _ in range(ROUNDS):
        time.sleep(KILL_EVERY_S - DOWN_S)  # writing continues with all brokers
        leader: ChildProcess = three.brokers[leader_of(admin, topic)]
        leader.kill()
        time.sleep(DOWN_S)  # writing continues without the killed broker
        leader.start()
        leader.wait_ready(TIMEOUT_S)
    feed.stops.set()
    writer.join(2 * TIMEOUT_S)
    assert not writer.is_alive(), "the writer does not end"
    assert not failures, failures
    found = read_all(three.kafka_bootstrap, topic, len(acknowledged))
    assert len(acknowledged) > ROUNDS * KILL_EVERY_S * RECORDS_A_SECOND / 4
    assert sorted(found) == acknowledged
    if client == "kcat":
        read = kcat("-b", three.kafka_bootstrap, "-C", "-t", topic, "-o", "beginning", "-e")
        assert read.split() == [str(number) for number in acknowledged]

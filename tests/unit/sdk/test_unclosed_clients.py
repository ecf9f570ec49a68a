"""If a program ends without closing its client, records that are lost are always logged."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import pytest

import odradek
from odradek.testing import MemoryCluster

PROGRAM = """
import odradek.sync as sync
from odradek.testing import MemoryCluster

cluster = MemoryCluster(brokers=1)
cluster.create_topic("orders", partitions=1)
client = sync.Client(cluster.bootstrap, transport=cluster.transport())
{before}
producer = client.producer(linger_ms=60_000)
for number in range(7):
    producer.send("orders", b"%d" % number)
{after}

import threading
def count():
    threads = [t for t in threading.enumerate() if t.name == "odradek"]
    log = cluster.log("orders", 0)
    print("records", log.log_end_offset, "threads", len(threads))
import atexit
atexit.register(count)  # runs after the client's own closing
"""


def run(before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(before=before, after=after)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_program_that_does_not_close_its_producer_sends_all_at_its_end() -> None:
    ended = run()
    assert (ended.stdout, ended.stderr, ended.returncode) == ("records 7 threads 0\n", "", 0)


def test_a_program_that_fails_sends_what_it_had_handed_over() -> None:
    end = "import atexit\natexit.register(lambda: print(cluster.log('orders', 0).log_end_offset))"
    ended = run(after=f"{end}\nraise SystemExit(3)")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("7\n", "", 3)


def test_an_open_consumer_ends_without_noise() -> None:
    reader = "consumer = client.consumer('orders', auto_offset_reset='earliest')"
    read = "producer.flush()\nassert next(consumer).value == b'0'"
    ended = run(before=reader, after=read)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("records 7 threads 0\n", "", 0)


def test_a_thread_that_outlives_the_main_thread_may_use_the_client() -> None:
    worker = """
def work():
    threading.main_thread().join()
    producer.send("orders", b"sent after the main thread has ended")

import threading
threading.Thread(target=work).start()
"""
    ended = run(after=worker)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("records 8 threads 0\n", "", 0)


def test_a_listener_that_blocks_is_called_although_executors_are_shut_down() -> None:
    listener = """
from odradek.consumer.options import GroupOptions
consumer = client.consumer(
    "orders", group=GroupOptions(group="g", on_revoke=lambda names: print("revoked", len(names)))
)
"""
    joined = """
import concurrent.futures.thread, threading
producer.flush()
while not consumer.assignment():
    consumer.getmany(timeout_ms=10)
threading.Thread(target=threading.main_thread().join).start()
"""
    ended = run(before=listener, after=joined)
    assert (ended.stdout, ended.stderr) == ("revoked 1\nrecords 7 threads 0\n", "")


def test_records_that_cannot_be_sent_at_the_end_are_counted_in_one_line() -> None:
    hurry = "import odradek.sync.producer as module\nmodule.EXIT_FLUSH_S_MAX = 0.2"
    ended = run(before=f"{hurry}\ncluster.frozen.add(1)")
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert "7 records were not acknowledged before the program ended" in ended.stderr
    assert "with" in ended.stderr


def test_an_event_loop_that_ends_with_unsent_records_says_how_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = MemoryCluster(brokers=1)
    cluster.create_topic("orders")

    async def program() -> None:
        client = odradek.Client(cluster.bootstrap, transport=cluster.transport())
        producer = client.producer(linger_ms=60_000)
        for _ in range(5):
            await producer.send("orders", b"value")

    with caplog.at_level(logging.ERROR):
        asyncio.run(program())
    assert "5 records were not acknowledged when the event loop ended" in caplog.text


def test_an_event_loop_that_ends_with_a_closed_producer_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = MemoryCluster(brokers=1)
    cluster.create_topic("orders")

    async def program() -> None:
        async with (
            odradek.Client(cluster.bootstrap, transport=cluster.transport()) as client,
            client.producer() as producer,
        ):
            await producer.send("orders", b"value")

    with caplog.at_level(logging.WARNING):
        asyncio.run(program())
    assert caplog.records == []

"""The synchronous facade offers the same client to plain threads."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Iterator

import pytest

import odradek
import odradek.sync as sync
from odradek.errors import (
    BufferFull,
    ClientClosed,
    FlushTimedOut,
    RequestTimedOut,
    SerializationFailed,
    UnknownTopic,
)
from odradek.sync.loop_thread import LoopThread
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(brokers=2)


@pytest.fixture
def client(cluster: MemoryCluster) -> Iterator[sync.Client]:
    with sync.Client(cluster.bootstrap, transport=cluster.transport()) as client:
        yield client


def test_a_record_goes_there_and_back(client: sync.Client) -> None:
    outcome = client.admin.create_topic("t", partitions=2)
    assert outcome.partitions == 2
    with client.producer() as producer:
        delivery = producer.send("t", b"v", key=b"k", partition=1)
        assert delivery.result(5) == ("t", 1, 0, -1)
        assert producer.partitions_for("t") == 2
    with client.consumer("t", auto_offset_reset="earliest") as consumer:
        record = next(iter(consumer))
        assert (record.key, record.value) == (b"k", b"v")
        assert consumer.position(("t", 1)) == 1
        assert consumer.end_offsets([("t", 1)]) == {("t", 1): 1}


def test_many_threads_share_a_producer_and_each_ones_records_stay_in_order(
    client: sync.Client,
) -> None:
    client.admin.create_topic("t", partitions=1)
    with client.producer() as producer:

        def send(name: int) -> None:
            for number in range(500):
                producer.send("t", b"%d" % number, key=b"%d" % name)

        threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(10)
    seen: dict[bytes, list[int]] = {}
    with client.consumer("t", auto_offset_reset="earliest") as consumer:
        for _ in range(2_000):
            record = next(consumer)
            seen.setdefault(record.key, []).append(int(record.value))
    assert [seen[b"%d" % n] for n in range(4)] == [list(range(500))] * 4


def test_errors_come_out_of_the_delivery(cluster: MemoryCluster, client: sync.Client) -> None:
    cluster.create_topic("t")
    with client.producer() as producer:
        failed: list[BaseException | None] = []
        delivery = producer.send("t", "text")
        delivery.add_done_callback(lambda done: failed.append(done.exception()))
        with pytest.raises(SerializationFailed):
            delivery.result(5)
        assert producer.send_and_wait("t", b"good").offset == 0
    assert isinstance(failed[0], SerializationFailed)


def test_waiting_has_a_bound(cluster: MemoryCluster, client: sync.Client) -> None:
    cluster.create_topic("t")
    cluster.frozen.update((1, 2))
    producer = client.producer()
    with pytest.raises(RequestTimedOut):
        producer.send("t", b"x").result(0.1)
    producer.close(0.1)
    with pytest.raises(ClientClosed):
        producer.send("t", b"x")


def test_a_callback_that_raises_does_not_stop_what_is_sent_after(
    cluster: MemoryCluster, client: sync.Client, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("t")
    with client.producer() as producer:
        for value in ("no bytes", b"good"):
            delivery = producer.send("t", value)
            delivery.add_done_callback(lambda _: 1 / 0)
        assert delivery.result(5).offset == 0
        assert producer.send("t", b"after").result(5).offset == 1
    assert "delivery callback raised an exception" in caplog.text


def test_flush_says_so_when_records_were_not_even_taken_over(cluster: MemoryCluster) -> None:
    cluster.frozen.update((1, 2))  # no topic's partitions can be learned
    with sync.Client(cluster.bootstrap, transport=cluster.transport()) as client:
        producer = client.producer()
        producer.send_many("t", [b"x"] * 3)
        with pytest.raises(FlushTimedOut, match="3 records"):
            producer.flush(0.1)
        producer.close(0)


def test_closing_fails_every_record_that_was_not_sent(cluster: MemoryCluster) -> None:
    cluster.frozen.update((1, 2))
    with sync.Client(cluster.bootstrap, transport=cluster.transport()) as client:
        producer = client.producer()
        deliveries = producer.send_many("t", [b"x"] * 20)
        producer.close(0.1)
        for delivery in deliveries:
            with pytest.raises(ClientClosed):
                delivery.result(5)


def test_closing_the_client_first_fails_what_its_producer_has_and_gets(
    cluster: MemoryCluster,
) -> None:
    cluster.frozen.update((1, 2))
    client = sync.Client(cluster.bootstrap, transport=cluster.transport())
    producer = client.producer()
    deliveries = producer.send_many("t", [b"x"] * 20)
    client.close()
    for delivery in deliveries:
        with pytest.raises(ClientClosed):
            delivery.result(5)
    for _ in range(2):
        with pytest.raises(ClientClosed):
            producer.send("t", b"late")
    producer.close()


def test_who_waits_in_another_thread_while_the_client_closes_is_told(
    cluster: MemoryCluster,
) -> None:
    cluster.frozen.update((1, 2))
    client = sync.Client(cluster.bootstrap, transport=cluster.transport())
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            client.admin.list_topics()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    deadline_s = time.monotonic() + 5
    while "Metadata" not in cluster.requests and time.monotonic() < deadline_s:
        thread.join(0.01)
    client.close()
    thread.join(10)
    assert [type(error) for error in raised] == [ClientClosed]


def test_failures_that_nobody_waits_for_are_logged(
    cluster: MemoryCluster, client: sync.Client, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("t")
    cluster.fail_next("produce", "t", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with caplog.at_level(logging.WARNING), client.producer() as producer:
        producer.send("t", b"refused")
        producer.flush(5)
        producer.send("t", "no bytes")
    assert "Failed to write a record to 't': t-0: topic authorization failed" in caplog.text
    assert "Failed to write a record to 't': a record for 't' cannot be encoded" in caplog.text


def test_a_full_queue_makes_send_wait_and_then_fail(
    cluster: MemoryCluster, client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.sync.producer.WAITING_RECORDS_MAX", 10)
    cluster.create_topic("t")
    cluster.frozen.update((1, 2))
    producer = client.producer(max_block_ms=100)
    with pytest.raises(BufferFull):
        producer.send_many("t", [b"x"] * 1_000)
    producer.close(0.1)


def test_a_callback_may_send_while_the_queue_is_full_and_holds_nothing_up(
    cluster: MemoryCluster, client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callbacks run on the thread that makes space in the queue: one that waits for space would wait for itself."""
    monkeypatch.setattr("odradek.sync.producer.WAITING_RECORDS_MAX", 10)
    cluster.create_topic("t")
    cluster.create_topic("dead-letters")
    failures: list[BaseException] = []
    called = threading.Semaphore(0)
    with client.producer(max_block_ms=60_000) as producer:

        def forward(_: sync.Delivery) -> None:
            try:
                producer.send("dead-letters", b"x")
            except BufferFull as error:
                failures.append(error)
            called.release()

        for number in range(200):
            producer.send("t", b"%d" % number).add_done_callback(forward)
        assert all(called.acquire(timeout=30) for _ in range(200))
    assert cluster.log("dead-letters").log_end_offset + len(failures) == 200
    assert cluster.log("dead-letters").log_end_offset > 0


def test_a_callback_that_waits_for_another_delivery_is_refused(
    cluster: MemoryCluster, client: sync.Client
) -> None:
    cluster.create_topic("t")
    refusals: list[BaseException] = []
    called = threading.Event()
    # The brokers hang until the callback is registered. A callback that is registered after the acknowledgement runs in
    # the caller's thread, where it may wait.
    cluster.frozen.update((1, 2))
    with client.producer() as producer:

        def wait_for_another(_: sync.Delivery) -> None:
            try:
                producer.send("t", b"second").result()
            except RuntimeError as error:
                refusals.append(error)
            called.set()

        producer.send("t", b"first").add_done_callback(wait_for_another)
        cluster.thaw(1)
        cluster.thaw(2)
        producer.flush()
        assert called.wait(10)
    assert "cannot wait for results" in str(refusals[0])
    assert cluster.log("t").log_end_offset == 2


def test_errors_of_the_admin_are_raised(client: sync.Client) -> None:
    with pytest.raises(UnknownTopic):
        client.admin.describe_topic("nowhere")


def test_a_closed_client_says_so_and_closing_twice_is_fine(cluster: MemoryCluster) -> None:
    client = sync.Client(cluster.bootstrap, transport=cluster.transport())
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.producer()


@pytest.mark.parametrize(
    ("facade", "core"),
    [
        (sync.Client, odradek.Client),
        (sync.Producer, odradek.Producer),
        (sync.Consumer, odradek.Consumer),
        (sync.Admin, odradek.Admin),
    ],
)
def test_the_facade_lacks_nothing_and_documents_everything(facade: type, core: type) -> None:
    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}

    # Staged writes have no synchronous form: their tasks run on a link's event loop.
    staged = {"staged_writes", "begin_staged", "finish_staged"}
    only_async = {"buffered_bytes", "next_decoded"} | staged
    if core is odradek.Admin:
        only_async.add("close")
    assert public(core) - public(facade) <= only_async
    for name in public(facade) - {"result", "admin"}:
        assert getattr(facade, name).__doc__, name


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_record_whose_send_was_interrupted_is_sent_before_the_producer_closes(
    cluster: MemoryCluster, client: sync.Client, monkeypatch: pytest.MonkeyPatch, is_flushed: bool
) -> None:
    """Ctrl-C may come after `send` has queued the record and before it has woken the loop."""
    cluster.create_topic("t", partitions=1)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with client.producer() as producer:
        monkeypatch.setattr(LoopThread, "call_soon", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.send("t", b"v")
        if is_flushed:
            producer.flush()
            assert cluster.log("t", 0).log_end_offset == 1
    assert cluster.log("t", 0).log_end_offset == 1

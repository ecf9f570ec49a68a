"""A wrong address or a misspelt topic ends a query before the poll timeout, here one hour, and a write before its
tasks start. If no task of a failed write reported rows, the driver aborts the write only if the cluster responds now.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from odradek.cluster import cluster as cluster_module
from odradek.cluster.cluster import connect
from odradek.cluster.methods import COMPLETE_STEP
from odradek.errors import (
    BrokersUnavailable,
    BrokerUnreachable,
    OdradekError,
    RequestTimedOut,
    UnknownTopic,
    WrongListener,
)
from odradek.testing import MemoryCluster
from pyspark_odradek import delivery, option_names, process_link, staged_delivery, topic_offsets
from pyspark_odradek.data_source import OdradekDataSource
from pyspark_odradek.delivery import AtLeastOnce, OutputRecord, TaskIdentity
from pyspark_odradek.process_link import ProcessLink
from pyspark_odradek.sink_options import parse_sink_options
from pyspark_odradek.writer import OdradekBatchWriter, OdradekStreamWriter

LinkOf = Callable[[OdradekError | None], ProcessLink]
HOUR_MS = "3600000"
TO_TOPIC = StructType([StructField("value", StringType())])
TO_COLUMN = StructType([StructField("topic", StringType()), StructField("value", StringType())])
TASK = TaskIdentity(query_id="q", batch_id=0, partition_id=0, attempt=0)
WRITERS = ["writer", "streamWriter"]
SUBSCRIPTIONS = [{"subscribe": "t"}, {"subscribePattern": "t.*"}, {"assign": '{"t":[0]}'}]


@pytest.fixture
def link_of(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that connects this process to a cluster in memory; if it is given an error,
    every broker raises it.
    """
    links: list[ProcessLink] = []

    def make(error: OdradekError | None) -> ProcessLink:
        memory = MemoryCluster(brokers=1, auto_create_topics=True)
        memory.create_topic("t")
        memory.create_topic("orders")

        async def dial() -> ProcessLink:
            cluster = connect(memory.bootstrap, transport=memory.transport())
            return ProcessLink(cluster, asyncio.get_running_loop())

        link = asyncio.run_coroutine_threadsafe(dial(), loop).result(30)
        if error is not None:

            def refuse(*_: Any, **__: Any) -> Any:
                raise error

            link.cluster.transport.open = refuse  # type: ignore[method-assign]
            link.cluster.transport.call = refuse  # type: ignore[method-assign]
            monkeypatch.setattr(process_link, "REACH_S_MAX", 0.3)
        links.append(link)
        for module in (topic_offsets, delivery, staged_delivery):
            monkeypatch.setattr(module, "link_to", lambda connection: link)
        return link

    yield make
    for link in links:
        link.close()


def plan(**options: str) -> Any:
    given = {"kafka.bootstrap.servers": "memory:1", "kafkaConsumer.pollTimeoutMs": HOUR_MS}
    source = OdradekDataSource(given | options)
    return source.reader(source.schema()).partitions()


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
def test_a_wrong_listener_is_named_at_once(link_of: LinkOf, subscription: dict[str, str]) -> None:
    link_of(WrongListener("memory:1", "this is the listener KAFKA of broker 1"))
    with pytest.raises(WrongListener, match="this is the listener KAFKA of broker 1"):
        plan(**subscription)


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
def test_a_cluster_that_never_answered_is_not_waited_for_like_records(
    link_of: LinkOf, subscription: dict[str, str]
) -> None:
    link_of(BrokerUnreachable("memory:1", "nobody listens there"))
    with pytest.raises(BrokersUnavailable, match="nobody listens there"):
        plan(**subscription)


def test_the_log_names_the_cause_while_the_cluster_is_waited_for(
    link_of: LinkOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_link, "PATIENCE_S", 0.0)
    link_of(BrokerUnreachable("memory:1", "nobody listens there"))
    with pytest.raises(BrokersUnavailable):
        plan(subscribe="t")
    (said,) = [text for text in caplog.messages if text.startswith("Waiting up to 0.3 s")]
    assert "memory" in said


def test_a_topic_that_does_not_exist_ends_the_query(
    link_of: LinkOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "UNKNOWN_TOPIC_S_MAX", 3600.0)
    link_of(None)
    with pytest.raises(UnknownTopic, match="topic 'misspelt' does not exist"):
        plan(subscribe="misspelt")


def test_a_cluster_that_was_reached_once_is_waited_for(link_of: LinkOf) -> None:
    link = link_of(None)
    link.reach(60)
    link.cluster.state = cluster_module.LinkState.DISCONNECTED
    link.reach(0)


def test_the_sink_names_a_cluster_that_never_answered(link_of: LinkOf) -> None:
    link_of(BrokerUnreachable("memory:1", "nobody listens there"))
    options = parse_sink_options({"kafka.bootstrap.servers": "memory:1", "topic": "t"}, TO_TOPIC)
    with pytest.raises(BrokersUnavailable, match="nobody listens there"):
        AtLeastOnce(options).open(TASK)


def start_write(kind: str, *, schema: StructType = TO_TOPIC, **options: str) -> Any:
    """Make a writer, as Spark does on the driver before it starts tasks."""
    source = OdradekDataSource({"kafka.bootstrap.servers": "memory:1"} | options)
    return getattr(source, kind)(schema, False)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("schema", [TO_TOPIC, TO_COLUMN])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (WrongListener("memory:1", "this is the listener KAFKA of broker 1"), "listener KAFKA of"),
        (BrokerUnreachable("memory:1", "nobody listens there"), "nobody listens there"),
    ],
)
def test_a_wrong_address_of_the_sink_fails_before_tasks_start(
    link_of: LinkOf, kind: str, schema: StructType, error: BrokerUnreachable, message: str
) -> None:
    link_of(error)
    options = {"topic": "t"} if schema is TO_TOPIC else {}
    with pytest.raises(OdradekError, match=message):
        start_write(kind, schema=schema, **options)


def message_of(topic: str) -> str:
    return f"topic '{topic}' does not exist; did you mean 'orders'.*odradek topic create {topic}`"


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_misspelt_topic_option_is_refused_before_tasks_start(
    link_of: LinkOf, monkeypatch: pytest.MonkeyPatch, kind: str, delivery: str
) -> None:
    monkeypatch.setattr(cluster_module, "UNKNOWN_TOPIC_S_MAX", 3600.0)
    link = link_of(None)
    with pytest.raises(UnknownTopic, match=message_of("ordres")):
        start_write(kind, topic="ordres", delivery=delivery)
    assert link.cluster.cache.topic("ordres") is None
    start_write(kind, topic="orders", delivery=delivery)


def test_a_misspelt_topic_in_the_topic_column_fails_the_first_row(
    link_of: LinkOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "UNKNOWN_TOPIC_S_MAX", 3600.0)
    link_of(None)
    start_write("streamWriter", schema=TO_COLUMN)
    options = parse_sink_options({"kafka.bootstrap.servers": "memory:1"}, TO_COLUMN)
    stage = AtLeastOnce(options).open(TASK)
    try:
        with pytest.raises(UnknownTopic, match=message_of("ordres")):
            stage.send([OutputRecord("ordres", None, b"v", None, None)])
    finally:
        stage.abandon()


@pytest.mark.parametrize("kind", WRITERS)
def test_the_sink_creates_topics_only_if_its_option_allows_this(
    link_of: LinkOf, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    link_of(None)
    start_write(kind, topic="created", **{"kafka.allow.auto.create.topics": "true"})
    assert "topic 'created' did not exist and was created with 1 partition" in caplog.text
    start_write(kind, topic="created")


def test_a_writer_that_only_commits_does_not_check_the_topic(link_of: LinkOf) -> None:
    """Spark unpickles the data source to commit a batch. The topic may be deleted by then."""
    link_of(None)
    source = OdradekDataSource({"kafka.bootstrap.servers": "memory:1", "topic": "deleted"})
    assert pickle.loads(pickle.dumps(source)).streamWriter(TO_TOPIC, False) is not None
    with pytest.raises(UnknownTopic):
        source.streamWriter(TO_TOPIC, False)


def test_only_the_writer_that_starts_tasks_lists_options_without_effect(
    link_of: LinkOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For each query, Spark makes a data source in the process that starts tasks, and another one for commits."""
    monkeypatch.setattr(option_names, "_warned", set())
    link_of(None)
    given = {"kafka.bootstrap.servers": "memory:1", "topic": "t", "kafka.fetch.min.bytes": "1"}
    source = OdradekDataSource(given)
    pickle.loads(pickle.dumps(source)).streamWriter(TO_TOPIC, False)
    assert "without effect" not in caplog.text
    source.streamWriter(TO_TOPIC, False)
    assert caplog.text.count("no Kafka client: kafka.fetch.min.bytes") == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "error",
    [
        BrokerUnreachable("memory:1", "nobody listens there"),
        WrongListener("memory:1", "this is the listener KAFKA of broker 1"),
    ],
)
def test_the_abort_of_a_batch_does_not_wait_for_a_cluster_that_never_responded(
    link_of: LinkOf, caplog: pytest.LogCaptureFixture, error: BrokerUnreachable
) -> None:
    link_of(error)
    options = parse_sink_options({"kafka.bootstrap.servers": "memory:1", "topic": "t"}, TO_TOPIC)
    OdradekBatchWriter(options).abort([None])
    assert "Batch 0 was not aborted, because the cluster did not respond" in caplog.text
    assert error.reason in caplog.text


async def refuse_call(endpoint: str, *_: Any, timeout_s: float) -> Any:
    raise BrokerUnreachable(endpoint, "connection refused")


async def hang(endpoint: str, *_: Any, timeout_s: float) -> Any:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), timeout_s)
    raise RequestTimedOut(f"got no response from {endpoint}")


def reached_driver(link: ProcessLink) -> OdradekBatchWriter:
    """Return a writer of a driver whose process has reached the cluster, as Spark reuses the process for each write."""
    link.reach(60)
    options = parse_sink_options({"kafka.bootstrap.servers": "memory:1", "topic": "t"}, TO_TOPIC)
    delivery.check_target(options)
    return OdradekBatchWriter(options)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("call", "reason"), [(refuse_call, "connection refused"), (hang, "got no response from")]
)
def test_the_abort_of_a_batch_does_not_wait_for_a_cluster_that_was_lost(
    link_of: LinkOf,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: Any,
    reason: str,
) -> None:
    monkeypatch.setattr(staged_delivery, "ABORT_PROBE_S_MAX", 0.3)
    monkeypatch.setattr(staged_delivery, "_CALL_S_MAX", 5.0)
    link = link_of(None)
    writer = reached_driver(link)
    link.cluster.transport.call = call  # type: ignore[method-assign]
    writer.abort([None])
    assert "Batch 0 was not aborted, because the cluster did not respond" in caplog.text
    assert reason in caplog.text


@pytest.mark.timeout(60)
def test_the_abort_of_a_batch_does_not_wait_long_for_a_coordinator(
    link_of: LinkOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(staged_delivery, "ABORT_S_MAX", 0.3)
    monkeypatch.setattr(staged_delivery, "_CALL_S_MAX", 5.0)
    link = link_of(None)
    writer = reached_driver(link)
    respond = link.cluster.transport.call

    async def call(endpoint: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        which: Any = hang if method is COMPLETE_STEP else respond
        return await which(endpoint, method, request, timeout_s=timeout_s)

    link.cluster.transport.call = call  # type: ignore[method-assign]
    writer.abort([None])
    failed = "Failed to abort tasks of batch 0; the cluster aborts them later: no result in 0.3 s"
    assert failed in caplog.messages


def test_a_batch_is_aborted_when_the_cluster_responds_again(
    link_of: LinkOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(staged_delivery, "ABORT_PROBE_S_MAX", 0.3)
    link = link_of(None)
    writer = reached_driver(link)
    respond, methods = link.cluster.transport.call, []

    async def call(endpoint: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        methods.append(method)
        which: Any = refuse_call if len(methods) == 1 else respond
        return await which(endpoint, method, request, timeout_s=timeout_s)

    link.cluster.transport.call = call  # type: ignore[method-assign]
    writer.abort([None])
    assert methods[-1] is COMPLETE_STEP
    assert "abort" not in caplog.text


def test_the_abort_of_a_batch_without_known_query_needs_no_cluster(
    link_of: LinkOf, caplog: pytest.LogCaptureFixture
) -> None:
    link_of(BrokerUnreachable("memory:1", "nobody listens there"))
    options = parse_sink_options({"kafka.bootstrap.servers": "memory:1", "topic": "t"}, TO_TOPIC)
    OdradekStreamWriter(options).abort([None], 0)
    assert caplog.messages == []


def test_the_traceback_of_a_refusal_has_no_frames_of_the_sdk(link_of: LinkOf) -> None:
    link_of(WrongListener("memory:1", "this is the listener KAFKA of broker 1"))
    with pytest.raises(WrongListener) as refused:
        plan(subscribe="t")
    files = [frame.filename for frame in traceback.extract_tb(refused.value.__traceback__)]
    assert not [name for name in files if "/odradek/cluster/" in name or "asyncio" in name]
    assert "use the gRPC address of a broker" in traceback.format_exception(refused.value)[-1]

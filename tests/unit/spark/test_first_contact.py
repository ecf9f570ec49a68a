"""A wrong address or a misspelt topic ends a query before the poll timeout, here one hour."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from odradek.cluster import cluster as cluster_module
from odradek.cluster.cluster import connect
from odradek.errors import (
    BrokersUnavailable,
    BrokerUnreachable,
    OdradekError,
    UnknownTopic,
    WrongListener,
)
from odradek.testing import MemoryCluster
from pyspark_odradek import delivery, process_link, topic_offsets
from pyspark_odradek.data_source import OdradekDataSource
from pyspark_odradek.delivery import AtLeastOnce, TaskIdentity
from pyspark_odradek.process_link import ProcessLink
from pyspark_odradek.sink_options import parse_sink_options

LinkOf = Callable[[OdradekError | None], ProcessLink]
HOUR_MS = "3600000"
SUBSCRIPTIONS = [{"subscribe": "t"}, {"subscribePattern": "t.*"}, {"assign": '{"t":[0]}'}]


@pytest.fixture
def link_of(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that connects this process to a cluster in memory; if it is given an error,
    every broker raises it.
    """
    links: list[ProcessLink] = []

    def make(error: OdradekError | None) -> ProcessLink:
        memory = MemoryCluster(brokers=1)
        memory.create_topic("t")

        async def dial() -> ProcessLink:
            cluster = connect(memory.bootstrap, transport=memory.transport())
            return ProcessLink(cluster, asyncio.get_running_loop())

        link = asyncio.run_coroutine_threadsafe(dial(), loop).result(30)
        if error is not None:

            def refuse(*_: Any, **__: Any) -> Any:
                raise error

            link.cluster.transport.open = refuse  # type: ignore[method-assign]
            link.cluster.transport.call = refuse  # type: ignore[method-assign]
        links.append(link)
        for module in (topic_offsets, delivery):
            monkeypatch.setattr(module, "link_to", lambda connection: link)
        return link

    monkeypatch.setattr(process_link, "REACH_S_MAX", 0.3)
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
    schema = StructType([StructField("value", StringType())])
    options = parse_sink_options({"kafka.bootstrap.servers": "memory:1", "topic": "t"}, schema)
    identity = TaskIdentity(query_id="q", batch_id=0, partition_id=0, attempt=0)
    with pytest.raises(BrokersUnavailable, match="nobody listens there"):
        AtLeastOnce(options).open(identity)


def test_the_traceback_of_a_refusal_has_no_frames_of_the_sdk(link_of: LinkOf) -> None:
    link_of(WrongListener("memory:1", "this is the listener KAFKA of broker 1"))
    with pytest.raises(WrongListener) as refused:
        plan(subscribe="t")
    files = [frame.filename for frame in traceback.extract_tb(refused.value.__traceback__)]
    assert not [name for name in files if "/odradek/cluster/" in name or "asyncio" in name]
    assert "use the gRPC address of a broker" in traceback.format_exception(refused.value)[-1]

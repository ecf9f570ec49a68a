"""Errors about topics that do not exist: which topics they name, the cost of finding these, and that a gateway does not
look for them.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.cluster.topic_errors import (
    NAMES_COMPARED_MAX,
    NAMES_PER_TURN,
    NOTED_MAX,
    SEARCHES_MAX,
    MissingTopics,
)
from odradek.errors import BrokersUnavailable, UnknownTopic
from odradek.testing import MemoryCluster
from odradek_gateway.auth import callers
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.settings import GatewaySettings
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb


class Brokers:
    """Brokers that have these topics. `fetches` counts the requests."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.fetches = 0

    async def fetch(self, request: pb.MetadataRequest, *, timeout_s: float) -> pb.MetadataResponse:
        assert request.all_topics
        assert timeout_s < 3
        self.fetches += 1
        await asyncio.sleep(0)
        return pb.MetadataResponse(topics=[pb.TopicInfo(name=name) for name in self.names])


async def hint(missing: MissingTopics, name: str) -> str:
    return str((await missing.error(name)).hint)


async def test_the_three_most_similar_topics_are_named_the_most_similar_first() -> None:
    others = [f"unlike-{number}" for number in range(3 * NAMES_PER_TURN)]
    brokers = Brokers("orders2", *others, "orders", *others, "order-lines", "ordr")
    text = await hint(MissingTopics(brokers.fetch, suggests=True), "ordres")
    assert text.startswith("did you mean 'orders' or ")
    assert text.count(" or '") == 2


async def test_a_comparison_with_many_names_lets_other_tasks_run() -> None:
    names = [f"topic-{number}" for number in range(NAMES_COMPARED_MAX)]
    missing = MissingTopics(Brokers(*names).fetch, suggests=True)
    iterations = 0

    async def count() -> None:
        nonlocal iterations
        while True:
            await asyncio.sleep(0)
            iterations += 1

    counting = asyncio.create_task(count())
    assert "topic-17" in await hint(missing, "topic-17x")
    counting.cancel()
    assert iterations >= NAMES_COMPARED_MAX // NAMES_PER_TURN - 2


async def test_above_the_bound_and_without_brokers_no_topic_is_named() -> None:
    names = [f"topic-{number}" for number in range(NAMES_COMPARED_MAX + 1)]
    many = MissingTopics(Brokers(*names).fetch, suggests=True)
    assert "did you mean" not in await hint(many, "topic-17x")

    async def fetch(request: pb.MetadataRequest, *, timeout_s: float) -> pb.MetadataResponse:
        raise BrokersUnavailable(tried=["b:1"])

    nobody = MissingTopics(fetch, suggests=True)
    assert await hint(nobody, "t") == "create it (`odradek topic create t`), or check the name"


async def test_tasks_that_name_one_topic_share_a_search() -> None:
    brokers = Brokers("orders")
    missing = MissingTopics(brokers.fetch, suggests=True)
    texts = await asyncio.gather(*(hint(missing, "ordres") for _ in range(100)))
    assert all("did you mean 'orders'?" in text for text in texts)
    assert brokers.fetches == 1
    assert "did you mean 'orders'?" in await hint(missing, "orderz"), "among the kept names"
    assert brokers.fetches == 1


async def test_the_names_are_fetched_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.cluster.topic_errors.KEPT_S", 0.0)
    brokers = Brokers("orders")
    missing = MissingTopics(brokers.fetch, suggests=True)
    assert "'payments'" not in await hint(missing, "payment")
    brokers.names = ("payments",)
    assert "did you mean 'payments'?" in await hint(missing, "payment")


async def test_beyond_a_few_names_at_a_time_no_similar_topic_is_named() -> None:
    brokers = Brokers("orders")
    missing = MissingTopics(brokers.fetch, suggests=True)
    names = [f"orders{number}" for number in range(3 * SEARCHES_MAX)]
    texts = await asyncio.gather(*(hint(missing, name) for name in names))
    assert sum("did you mean" in text for text in texts) == SEARCHES_MAX


async def test_a_caller_with_little_time_gets_the_error_in_time_and_others_their_hint() -> None:
    asked, may_respond = asyncio.Event(), asyncio.Event()
    brokers = Brokers("orders")

    async def fetch(request: pb.MetadataRequest, *, timeout_s: float) -> pb.MetadataResponse:
        asked.set()
        await may_respond.wait()
        return await brokers.fetch(request, timeout_s=timeout_s)

    missing = MissingTopics(fetch, suggests=True)
    patient = asyncio.create_task(hint(missing, "ordres"))
    await asked.wait()
    hurried = await missing.error("ordres", timeout_s=0.01)
    assert hurried.hint == "create it (`odradek topic create ordres`), or check the name"
    may_respond.set()
    assert "did you mean 'orders'?" in await patient


@pytest.mark.parametrize("is_created", [False, True])
async def test_a_send_with_little_time_names_the_topic_and_the_cause(is_created: bool) -> None:
    cluster = MemoryCluster(brokers=1, auto_create_topics=False)
    cluster.create_topic("orders")
    async with (
        cluster.client() as client,
        client.producer(max_block_ms=2_500, allow_auto_create_topics=is_created) as producer,
    ):
        await client.connect(30)
        with pytest.raises(UnknownTopic, match="did you mean 'orders'") as raised:
            await producer.send("ordres", b"x")
    assert ("the brokers did not create it" in str(raised.value)) == is_created


async def test_the_memory_of_created_topics_is_bounded() -> None:
    missing = MissingTopics(Brokers().fetch, suggests=False)
    notes: list[str] = []
    missing.on_created = notes.append
    for number in (*range(NOTED_MAX + 1), NOTED_MAX, 0):
        topic: Any = SimpleNamespace(
            name=f"t{number}", topic_id=number.to_bytes(16, "big"), partitions=[1]
        )
        await missing.note_creation(topic)
    assert len(notes) == NOTED_MAX + 2, "each once, and the oldest again after it was forgotten"


@pytest.mark.parametrize("kind", ["gateway", "caller"])
async def test_a_gateway_looks_for_no_similar_topics(kind: str) -> None:
    """A REST client could otherwise let the gateway compare thousands of names for each request."""
    access = ClusterAccess(GatewaySettings(bootstrap="127.0.0.1:1"), url="")
    if kind == "caller":
        access = callers.CallerAccess(
            access, callers.Caller(principal="User:alice", host="10.0.0.1")
        )
    assert not access.client._cluster.missing_topics._suggests
    await access.client.close()

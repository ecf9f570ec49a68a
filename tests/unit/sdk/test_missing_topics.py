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
    MissingTopics,
)
from odradek.errors import BrokersUnavailable
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

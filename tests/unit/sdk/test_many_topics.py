"""A client of more topics than a request may name keeps the metadata of all of them up to date."""

from __future__ import annotations

from typing import Any

import pytest

from odradek import Client
from odradek.cluster import cluster as cluster_module
from odradek.cluster.methods import METADATA, WATCH_METADATA
from odradek.partitions import TopicPartition
from odradek.testing import MemoryCluster
from tests.unit.sdk.numbered_records import until

NAMES = [f"t{number:02}" for number in range(20)]


class Requests:
    """Counts the topics that requests for metadata name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
        self.watched: list[int] = []
        self.named: list[int] = []
        transport: Any = client._cluster.transport
        call, open_stream = transport.call, transport.open

        async def counted_call(endpoint: str, method: Any, request: Any, **arguments: Any) -> Any:
            if method is METADATA:
                self.named.append(len(request.topics))
            return await call(endpoint, method, request, **arguments)

        def counted_open(endpoint: str, method: Any) -> Any:
            stream = open_stream(endpoint, method)
            if method is WATCH_METADATA:
                send = stream.send

                async def counted_send(request: Any) -> None:
                    self.watched.append(-1 if request.all_topics else len(request.topics))
                    await send(request)

                stream.send = counted_send
            return stream

        monkeypatch.setattr(transport, "call", counted_call)
        monkeypatch.setattr(transport, "open", counted_open)


@pytest.mark.timeout(30)
async def test_it_watches_all_topics_and_asks_for_few_at_a_time(
    cluster: MemoryCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway became unready when its cluster had 10,001 topics: no broker took its request."""
    monkeypatch.setattr(cluster_module, "NAMED_TOPICS_MAX", 8)
    monkeypatch.setattr(cluster_module, "TOPICS_PER_REQUEST", 6)
    requests = Requests(monkeypatch, client)
    for name in NAMES:
        cluster.create_topic(name, 1)
    link = client._cluster
    await link.fetch_topics(NAMES[:5], timeout_s=10)
    await until(lambda: requests.watched[-1:] == [5])
    await link.fetch_topics(NAMES[:19], timeout_s=10)
    await until(lambda: requests.watched[-1:] == [-1])
    await link.fetch_topics(NAMES, timeout_s=10)

    moved = TopicPartition(NAMES[19], 0)
    leader = link.cache.leader_endpoint(moved)
    assert leader is not None
    to = leader[0] % 3 + 1
    cluster.move_leader(moved.topic, 0, to)
    await until(lambda: (link.cache.leader_endpoint(moved) or (0, ""))[0] == to)
    assert requests.watched.count(-1) == 1, "the stream covers topics that are added later"

    requests.named.clear()
    link.refresh_soon()
    await until(lambda: sum(requests.named) == len(NAMES))
    assert max(requests.named) <= 6

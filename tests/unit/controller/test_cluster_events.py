"""The events that the active controller logs for operators, and their texts."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_metadata_quorum.controller import leaders, topics
from odradek_metadata_quorum.controller.requests import DeleteTopicsRequest, ElectLeadersRequest
from odradek_metadata_quorum.rpc.metadata_state_machine import ClusterEvents
from odradek_protocol.identity import MetadataOffset, PartitionIndex, TopicName, TopicPartition
from odradek_protocol.metadata.records import MetadataRecord, RestartClass
from tests.unit.controller.cluster import Cluster


@pytest.fixture
def found(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster with three brokers; records that are replayed from now on are logged."""
    caplog.set_level("INFO")
    cluster = Cluster()
    cluster.start(1, 2, 3)
    events = ClusterEvents(cluster.controller)
    replay = cluster.controller.replay

    def observed(offset: MetadataOffset, epoch: int, record: MetadataRecord) -> None:
        events.observe(record)
        replay(offset, epoch, record)

    monkeypatch.setattr(cluster.controller, "replay", observed)
    return cluster


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """Return the fields of each logged event with this name."""
    return [one.__dict__["odradek_fields"] for one in caplog.records if one.getMessage() == event]


def test_why_a_broker_is_fenced_is_told(found: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    found.kill(1, 2, 3)
    found.pass_ms(3_000, 3)
    found.heartbeat(3, want_fence=True)
    assert told(caplog, "Fenced a broker") == [
        {"broker_id": 1, "reason": "the connection of its heartbeat stream broke"},
        {"broker_id": 2, "reason": "no heartbeat arrived for 3000 ms"},
        {"broker_id": 3, "reason": "the broker asked to be fenced"},
    ]


def test_that_a_broker_flaps_and_stays_out_is_told(
    found: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        found.kill(1, 2, 3)
        found.register(1, RestartClass.PROCESS)
        found.pass_ms(50, 1, 2, 3)
    assert told(caplog, "Fenced a broker")[-1]["reason"] == (
        "the connection of its heartbeat stream broke; it was fenced before, so it stays fenced for at least 1000 ms"
    )


def test_topics_are_told_by_name(found: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    found.create("orders", assignments=((1, 2),))
    found.kill(2, 1, 3)
    found.kill(1, 3)
    found.register(2, RestartClass.PROCESS)
    found.pass_ms(50, 2, 3)
    orders = TopicPartition(TopicName("orders"), PartitionIndex(0))
    election = ElectLeadersRequest(unclean=True, partitions=(orders,))
    found.decide(leaders.elect_leaders, election)
    assert told(caplog, "Elected an unclean leader, which may lack committed records") == [
        {"topic": "orders", "partition": 0, "leader": 2}
    ]
    found.decide(topics.delete_topics, DeleteTopicsRequest(names=("orders",)))
    assert [one["topic"] for one in told(caplog, "Deleted a topic")] == ["orders"]


def test_only_replicas_in_a_lost_directory_are_told(
    found: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    event = (
        "Broker registered without its former data directory; partitions whose only replica is on this broker"
        " begin with empty logs"
    )
    found.create("alone", assignments=((1,), (1,)))
    found.create("two", assignments=((1, 2),))
    found.kill(1, 2, 3)
    found.register(1, RestartClass.PROCESS)
    assert told(caplog, event) == []
    found.kill(1, 2, 3)
    found.register(1, directory=77)
    assert told(caplog, event) == [{"broker_id": 1, "partitions": 2, "topics": ["alone"]}]
    found.register(2, directory=78)
    assert len(told(caplog, event)) == 1

"""Placement of new partitions: leaders spread evenly, replicas on different hosts and in different racks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek_metadata_quorum.controller import topics
from odradek_metadata_quorum.controller.placement import Candidate, PlacementError, place
from odradek_metadata_quorum.controller.requests import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewPartitions,
    NewTopic,
)
from odradek_protocol.identity import BrokerId
from tests.unit.controller.cluster import Cluster


@st.composite
def brokers_of_a_cluster(draw: st.DrawFn) -> list[Candidate]:
    """Draw brokers on hosts, each of which is in one rack; some brokers name no host."""
    rack_of_host = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    host_numbers = st.none() | st.integers(0, len(rack_of_host) - 1)
    drawn = draw(st.lists(st.tuples(host_numbers, st.booleans()), min_size=1, max_size=12))
    return [
        Candidate(
            broker_id=BrokerId(broker_id),
            host=None if host is None else f"h{host}",
            rack=f"r{broker_id % 4 if host is None else rack_of_host[host]}",
            is_live=is_live,
            leader_count=draw(st.integers(0, 5)),
        )
        for broker_id, (host, is_live) in enumerate(drawn)
    ]


@given(brokers_of_a_cluster(), st.integers(1, 40), st.integers(1, 6), st.integers(0, 1000))
def test_replicas_share_a_host_only_when_every_host_has_one(
    brokers: list[Candidate], partitions: int, factor: int, draw: int
) -> None:
    live = {broker.broker_id for broker in brokers if broker.is_live}
    if factor > len(brokers) or not live:
        with pytest.raises(PlacementError):
            place(partitions, factor, brokers, draw=draw)
        return
    placed = place(partitions, factor, brokers, draw=draw)
    assert len(placed) == partitions
    host_of = {broker.broker_id: broker.host or broker.broker_id for broker in brokers}
    size_of_host = Counter(host_of.values())
    leaders = Counter(dict.fromkeys(live, 0))
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert replicas[0] in live
        leaders[replicas[0]] += 1
        on_host = Counter(dict.fromkeys(size_of_host, 0))
        on_host.update(host_of[broker_id] for broker_id in replicas)
        free = [count for host, count in on_host.items() if count < size_of_host[host]]
        assert max(on_host.values()) <= min(free, default=factor) + 1, (replicas, brokers)
    assert max(leaders.values()) - min(leaders.values()) <= 1


@given(brokers_of_a_cluster(), st.integers(1, 6), st.integers(0, 1000))
def test_hosts_cost_no_rack(brokers: list[Candidate], factor: int, draw: int) -> None:
    live = [broker for broker in brokers if broker.is_live]
    if factor > len(live):
        return
    rack_of = {broker.broker_id: broker.rack for broker in live}
    racks = len(set(rack_of.values()))
    for replicas in place(20, factor, live, draw=draw):
        assert len({rack_of[broker_id] for broker_id in replicas}) == min(factor, racks)


def test_a_live_broker_of_a_used_host_does_not_replace_another_host() -> None:
    """Both brokers of a host fail together, so a fenced broker on another host is the better second
    replica.
    """
    brokers = [
        Candidate(broker_id=BrokerId(i), host=f"h{i // 2}", rack=None, is_live=i < 2)
        for i in range(4)
    ]
    for replicas in place(8, 2, brokers, draw=3):
        assert replicas[0] in (0, 1)
        assert replicas[1] in (2, 3)


def test_fenced_brokers_get_replicas_only_if_there_are_too_few_live_ones() -> None:
    brokers = [Candidate(broker_id=BrokerId(i), rack=None, is_live=i < 3) for i in range(6)]
    assert all(max(replicas) < 3 for replicas in place(20, 3, brokers, draw=1))
    assert all({0, 1, 2} < set(replicas) for replicas in place(20, 4, brokers, draw=1))


@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 30), st.integers(0, 1000))
def test_equal_racks_get_equal_shares(
    racks: int, per_rack: int, partitions: int, draw: int
) -> None:
    brokers = [
        Candidate(broker_id=BrokerId(i), rack=f"r{i % racks}", is_live=True)
        for i in range(racks * per_rack)
    ]
    rack_of = {b.broker_id: b.rack for b in brokers}
    for factor in range(1, len(brokers) + 1):
        for replicas in place(partitions, factor, brokers, draw=draw):
            shares = Counter(rack_of[b] for b in replicas)
            assert len(shares) == min(factor, racks)
            assert max(shares.values()) - min(shares.values()) <= 1


@pytest.mark.parametrize("processes_per_host", [1, 2, 3])
def test_followers_are_spread_too(processes_per_host: int) -> None:
    brokers = [
        Candidate(
            broker_id=BrokerId(i), host=f"h{i // processes_per_host}", rack=None, is_live=True
        )
        for i in range(6)
    ]
    placed = place(60, 2, brokers, draw=5)
    replicas = Counter(b for partition in placed for b in partition)
    assert max(replicas.values()) - min(replicas.values()) <= 4
    pairs = Counter((partition[0], partition[1]) for partition in placed)
    assert len(pairs) >= 6 * (6 - processes_per_host) * 2 // 3, "no pair shares everything"


def started_cluster(brokers: int, *, per_host: int = 1) -> Cluster:
    cluster = Cluster()
    for broker_id in range(1, brokers + 1):
        cluster.register(broker_id, host_id=f"h{(broker_id - 1) // per_host}")
        cluster.beat(broker_id)
    return cluster


def leader_difference(cluster: Cluster) -> int:
    led = Counter(dict.fromkeys(cluster.image.brokers, 0))
    led.update(state.leader for state in cluster.image.partitions())
    return max(led.values()) - min(led.values())


def created(cluster: Cluster, prefix: str, counts: list[int]) -> None:
    """Create a topic with each of these numbers of partitions, all in one request."""
    new = tuple(
        NewTopic(name=f"{prefix}-{number}", partition_count=count, replication_factor=2)
        for number, count in enumerate(counts)
    )
    results = cluster.decide(topics.create_topics, CreateTopicsRequest(topics=new))
    assert all(result.outcome.is_good for result in results), results


REQUESTS = st.lists(
    st.lists(st.integers(1, 9), min_size=1, max_size=4)  # topics of one request, by partitions
    | st.integers(0, 1000),  # delete one topic
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), REQUESTS)
def test_leaders_differ_by_one_however_topics_are_made_and_a_deletion_adds_one(
    brokers: int, requests: list[Any]
) -> None:
    cluster = started_cluster(brokers, per_host=2)
    bound = 1
    for number, request in enumerate(requests):
        before = leader_difference(cluster)
        if isinstance(request, list):
            created(cluster, f"t{number}", request)
            assert leader_difference(cluster) <= max(before, 1), "a creation never adds to it"
        elif cluster.image.topic_ids:
            names = list(cluster.image.topic_ids)
            request = DeleteTopicsRequest(names=(names[request % len(names)],))
            cluster.decide(topics.delete_topics, request)
            assert leader_difference(cluster) <= before + 1
            bound += 1
        assert leader_difference(cluster) <= bound


def test_leaders_are_even_again_after_topics_were_created_in_the_place_of_deleted_ones() -> None:
    cluster = started_cluster(4)
    created(cluster, "old", [1] * 40)
    led_by_first = [
        topic.name for topic in cluster.image.topics.values() if topic.partitions[0].leader == 1
    ]
    cluster.decide(topics.delete_topics, DeleteTopicsRequest(names=tuple(led_by_first)))
    assert leader_difference(cluster) == 10
    for number in range(10):
        created(cluster, f"new{number}", [1])
    assert leader_difference(cluster) == 0


def test_a_topic_that_grows_uses_the_brokers_that_do_not_lead_it_yet() -> None:
    cluster = started_cluster(3)
    created(cluster, "t", [1])
    for total in (2, 3):
        request = CreatePartitionsRequest(topics=(NewPartitions(name="t-0", total_count=total),))
        cluster.decide(topics.create_partitions, request)
    topic = cluster.image.topic("t-0")
    assert topic is not None
    assert {state.leader for state in topic.partitions} == {1, 2, 3}


def test_a_topic_is_spread_over_all_brokers_although_one_of_them_is_new_and_leads_nothing() -> None:
    cluster = started_cluster(2)
    created(cluster, "old", [10])
    cluster.register(3, host_id="h9")
    cluster.beat(3)
    created(cluster, "new", [6])
    topic = cluster.image.topic("new-0")
    assert topic is not None
    assert Counter(state.leader for state in topic.partitions) == {1: 2, 2: 2, 3: 2}

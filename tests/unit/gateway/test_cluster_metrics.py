"""Metrics of a cluster when a part of the values could not be read."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from odradek.admin.descriptions import TopicDescription
from odradek.cluster.metadata_cache import Broker, Partition
from odradek.cluster.turns import run_in_turns
from odradek.partitions import TopicPartition
from odradek_gateway.monitoring import (
    GroupProgress,
    Snapshot,
    exposition_pieces,
    families_of,
)

BROKERS = [Broker(broker_id=1, grpc_endpoint="b:9090", kafka_endpoint="b:9092")]
TOPIC = TopicDescription(
    name="t",
    topic_id=b"",
    is_internal=False,
    partitions=(
        Partition(partition=0, leader_id=2, replicas=(1, 2, 3), isr=(2, 3)),
        Partition(partition=1, leader_id=-1, replicas=(1,), isr=()),
    ),
)
GROUP = GroupProgress(members=2, offsets={TopicPartition("t", 0): 4, TopicPartition("gone", 0): 9})


def text(snapshot: Snapshot) -> str:
    families = asyncio.run(run_in_turns(families_of(snapshot)))
    return b"".join(piece for family in families for piece in exposition_pieces(family)).decode()


def test_offsets_of_topics_that_are_gone_have_no_lag() -> None:
    ends = {TopicPartition("t", 0): 10}
    told = text(
        Snapshot(brokers=BROKERS, topics=[TOPIC], starts=ends, ends=ends, groups={"g": GROUP})
    )
    assert 'kafka_consumergroup_lag{consumergroup="g",partition="0",topic="t"} 6.0' in told
    assert 'kafka_consumergroup_lag_sum{consumergroup="g",topic="t"} 6.0' in told
    assert 'kafka_consumergroup_current_offset_sum{consumergroup="g",topic="gone"} 9.0' in told
    assert 'kafka_consumergroup_lag{consumergroup="g",partition="0",topic="gone"}' not in told
    assert 'kafka_consumergroup_members{consumergroup="g"} 2.0' in told


def test_a_partition_without_its_preferred_leader_and_one_without_any() -> None:
    told = text(Snapshot(brokers=BROKERS, topics=[TOPIC], starts={}, ends={}, groups={}))
    for line in (
        'leader{partition="0",topic="t"} 2.0',
        'leader{partition="1",topic="t"} -1.0',
        'leader_is_preferred{partition="0",topic="t"} 0.0',
        'in_sync_replica{partition="0",topic="t"} 2.0',
        'under_replicated_partition{partition="0",topic="t"} 1.0',
        'under_replicated_partition{partition="1",topic="t"} 1.0',
    ):
        assert f"kafka_topic_partition_{line}" in told


def test_what_could_not_be_had_is_left_out_and_told() -> None:
    told = text(Snapshot(brokers=BROKERS, topics=[TOPIC], starts={}, ends=None, groups=None))
    assert 'odradek_gateway_scrape_failed{part="offsets"} 1.0' in told
    assert 'odradek_gateway_scrape_failed{part="groups"} 1.0' in told
    assert "kafka_brokers 1.0" in told
    assert "kafka_consumergroup_lag{" not in told
    assert "kafka_topic_partition_current_offset{" not in told


def test_a_long_family_is_the_same_text_in_pieces() -> None:
    family = GaugeMetricFamily("wide", 'with "quotes"', labels=["topic"])
    for number in range(2_300):
        family.add_metric([f't"{number}\\'], number)

    class Collected(Collector):
        def collect(self) -> list[GaugeMetricFamily]:
            return [family]

    registry = CollectorRegistry()
    registry.register(Collected())
    whole = generate_latest(registry)
    pieces = list(exposition_pieces(family))
    assert len(pieces) > 2
    assert b"".join(pieces) == whole

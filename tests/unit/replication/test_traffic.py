"""The bytes by topic: replicas of a topic share them, and the number of topics in the metrics is bounded."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from odradek_broker.cluster.heartbeat import LoopTick
from odradek_broker.metrics import BrokerMetrics
from odradek_broker.replication import counters
from odradek_broker.replication.counters import OTHER_TOPICS, TOPICS_MAX, Traffic
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.partition import Partition as ServedPartition
from odradek_protocol.identity import Offset, PartitionIndex, TopicId, TopicName
from odradek_protocol.metadata.records import Partition, RemoveTopic, Topic
from tests.unit.log.material import TOPIC_ID, batch, memory_broker
from tests.unit.replication.led_partition import change
from tests.unit.replication.memory_table import CONFIG, OWN, held_lease, table_of


def bytes_by_topic(traffic: Traffic) -> dict[str, tuple[int, int]]:
    return {topic: (seen.bytes_in, seen.bytes_out) for topic, seen in traffic.items()}


def test_replicas_of_a_topic_share_its_traffic_until_the_last_is_gone() -> None:
    traffic = Traffic()
    first, second = traffic.of(TopicName("orders")), traffic.of(TopicName("orders"))
    first.bytes_in += 3
    second.bytes_in += 4
    second.bytes_out += 5
    assert bytes_by_topic(traffic) == {"orders": (7, 5)}
    del first
    assert bytes_by_topic(traffic) == {"orders": (7, 5)}
    del second
    assert bytes_by_topic(traffic) == {}


def test_topics_beyond_the_bound_share_one_series() -> None:
    traffic = Traffic()
    kept = [traffic.of(TopicName(f"t{n}")) for n in range(TOPICS_MAX)]
    others = [traffic.of(TopicName(name)) for name in ("more", "most")]
    assert len(bytes_by_topic(traffic)) == TOPICS_MAX
    for seen in others:
        seen.bytes_out += 2
    assert bytes_by_topic(traffic)[OTHER_TOPICS] == (0, 4)
    assert len(bytes_by_topic(traffic)) == TOPICS_MAX + 1
    kept.pop()
    assert traffic.of(TopicName("late")) is not others[0], "a place became free"


def test_no_topic_can_have_the_name_of_the_others() -> None:
    assert set(OTHER_TOPICS) & set("()")


@pytest.mark.interpreted
async def test_a_scrape_shows_all_bytes_in_a_bounded_number_of_series(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counters, "TOPICS_MAX", 2)
    broker = memory_broker(CONFIG)
    async with table_of(broker, 0) as (table, _):
        lease = held_lease()
        partitions = LocalPartitions(table, lease, broker_id=OWN, reads_by_rack=False)
        metrics = BrokerMetrics(
            table=table,
            directory=broker.directory,
            lease=lease,
            tick=LoopTick(),
            loop_lag_seconds=lambda: 0.0,
        )

        def scrape(direction: str) -> dict[str, float]:
            families = text_string_to_metric_families(metrics.render()[1].decode())
            samples = [sample for family in families for sample in family.samples]
            name = f"odradek_broker_topic_bytes_{direction}_total"
            return {s.labels["topic"]: s.value for s in samples if s.name == name}

        def create(name: str) -> TopicId:
            topic_id = TopicId(name.encode().ljust(16))
            led = Partition(
                topic_id=topic_id,
                partition=PartitionIndex(0),
                replicas=(OWN,),
                isr=(OWN,),
                leader=OWN,
            )
            change(table, Topic(topic_id=topic_id, name=TopicName(name)), led)
            return topic_id

        def write(name: str) -> int:
            data = batch(0)
            partition = partitions.find(TopicName(name), PartitionIndex(0))
            assert isinstance(partition, ServedPartition)
            partition.produce(data, acks=1, timeout_ms=1_000, on_done=lambda outcome: None)
            partition.read(Offset(0), bytes_max=1 << 20, read_committed=False)
            return len(data)

        change(table, RemoveTopic(topic_id=TOPIC_ID))
        names = [f"t{number}" for number in range(5)]
        ids = [create(name) for name in names]
        sizes = [write(name) for name in names]
        expected: dict[str, float] = {"t0": sizes[0], "t1": sizes[1], OTHER_TOPICS: sum(sizes[2:])}
        assert scrape("in") == scrape("out") == expected
        change(table, RemoveTopic(topic_id=ids[0]), RemoveTopic(topic_id=ids[4]))
        create("t5")
        size = write("t5")
        assert scrape("in") == {"t1": sizes[1], "t5": size, OTHER_TOPICS: sum(sizes[2:])}, (
            "the sum of the others never decreases"
        )

"""Under random faults, a reader's offsets rise by one, from any position on (P5)."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek import TopicPartition
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.builder import BatchBuilder

PARTITIONS = 2
RECORDS = 60
PASSING = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
]

partitions = st.integers(0, PARTITIONS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(1, 25)),
        st.tuples(st.just("iterate"), st.integers(1, 5)),
        st.tuples(st.just("seek"), partitions, st.integers(0, RECORDS - 1)),
        st.tuples(st.just("pause"), partitions),
        st.tuples(st.just("resume")),
        st.tuples(st.just("refuse"), partitions, st.lists(st.sampled_from(PASSING), max_size=2)),
        st.tuples(st.just("disconnect"), st.integers(1, 3)),
        st.tuples(st.just("move"), partitions, st.integers(1, 3), st.booleans()),
        st.tuples(st.just("yield"), st.integers(1, 15)),
    ),
    min_size=3,
    max_size=20,
)


def fill(cluster: MemoryCluster, partition: int) -> None:
    """Append batches of one to seven records."""
    log, size = cluster.log("t", partition), 1
    while log.log_end_offset < RECORDS:
        builder = BatchBuilder()
        for number in range(min(size, RECORDS - log.log_end_offset)):
            builder.append(None, b"%d" % (log.log_end_offset + number), None, 1)
        log.append(builder.build(), 0)
        size = size % 7 + 1


async def run(plan: list[tuple]) -> None:
    cluster = MemoryCluster(brokers=3)
    cluster.create_topic("t", PARTITIONS)
    for partition in range(PARTITIONS):
        fill(cluster, partition)
    expected = dict.fromkeys(range(PARTITIONS), 0)
    paused: set[int] = set()

    def note(record: object) -> None:
        partition, offset = record.partition, record.offset  # type: ignore[attr-defined]
        assert partition not in paused, "a paused partition is silent"
        assert offset == expected[partition], f"partition {partition}"
        assert record.value == b"%d" % offset  # type: ignore[attr-defined]
        expected[partition] += 1

    async with (
        cluster.client() as client,
        client.consumer("t", auto_offset_reset="earliest") as consumer,
    ):
        for step in plan:
            match step:
                case ("read", count):
                    for record in await consumer.getmany(20, max_records=count):
                        note(record)
                case ("iterate", count):
                    readable = sum(RECORDS - expected[p] for p in expected if p not in paused)
                    for _ in range(min(count, readable)):
                        note(await asyncio.wait_for(anext(consumer), 20))
                case ("seek", partition, offset):
                    consumer.seek(("t", partition), offset)
                    expected[partition] = offset
                case ("pause", partition):
                    consumer.pause(("t", partition))
                    paused.add(partition)
                case ("resume",):
                    consumer.resume()
                    paused.clear()
                case ("refuse", partition, codes):
                    cluster.fail_next("fetch", "t", partition, *codes)
                case ("disconnect", broker):
                    cluster.disconnect(broker)
                case ("move", partition, broker, is_told):
                    cluster.move_leader("t", partition, broker, tell=is_told)
                    cluster.wake()
                case ("yield", count):
                    for _ in range(count):
                        await asyncio.sleep(0)
            for partition, offset in expected.items():
                assert await consumer.position(TopicPartition("t", partition)) == offset
        consumer.resume()
        paused.clear()
        while sum(expected.values()) < PARTITIONS * RECORDS:
            records = await consumer.getmany(20_000)
            assert records, f"nothing more came after {expected}"
            for record in records:
                note(record)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_every_record_is_read_once_and_in_order_whatever_passes(plan: list[tuple]) -> None:
    asyncio.run(run(plan))

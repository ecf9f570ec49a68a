"""Under random faults, the producer writes every record once and in order to a cluster in
memory.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek.producer.producer import ProducerArguments
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_reader import decode_batch

PARTITIONS = 2
QUICK: ProducerArguments = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 4}
RETRIABLE = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.CORRUPT_MESSAGE,
]

partitions = st.integers(0, PARTITIONS - 1)
brokers = st.integers(1, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 40)),
        st.tuples(st.just("refuse"), partitions, st.lists(st.sampled_from([*RETRIABLE, ErrorCode.NONE]), max_size=4)),
        st.tuples(st.just("lose answers"), partitions, st.integers(1, 2)),
        st.tuples(st.just("disconnect"), brokers),
        st.tuples(st.just("move"), partitions, brokers, st.booleans()),
        st.tuples(st.just("yield"), st.integers(1, 20)),
    ),
    min_size=3,
    max_size=25,
)  # fmt: skip


def written(cluster: MemoryCluster, partition: int) -> list[bytes]:
    """Return the values in the log, in order."""
    return [
        record.value or b""
        for batch in cluster.log("t", partition).batches
        for record in decode_batch(batch.data)
    ]


async def run(plan: list[tuple], arguments: ProducerArguments) -> None:
    cluster = MemoryCluster(brokers=3)
    cluster.create_topic("t", PARTITIONS)
    sent: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
    futures = []
    async with cluster.client() as client, client.producer(**arguments) as producer:
        for step in plan:
            match step:
                case ("send", count):
                    for _ in range(count):
                        number = len(futures)
                        partition = number % PARTITIONS
                        value = b"%d" % number
                        sent[partition].append(value)
                        futures.append(await producer.send("t", value, partition=partition))
                case ("refuse", partition, codes):
                    cluster.fail_next("produce", "t", partition, *codes)
                case ("lose answers", partition, count):
                    cluster.lose_next_answers("t", partition, count)
                case ("disconnect", broker):
                    cluster.disconnect(broker)
                case ("move", partition, broker, is_told):
                    cluster.move_leader("t", partition, broker, tell=is_told)
                case ("yield", count):
                    for _ in range(count):
                        await asyncio.sleep(0)
        await producer.flush(30)
        results = [future.result() for future in futures]
    for partition in range(PARTITIONS):
        assert written(cluster, partition) == sent[partition], f"partition {partition}"
    for number, result in enumerate(results):
        if result.offset >= 0:
            log = written(cluster, result.partition)
            assert log[result.offset] == b"%d" % number, "the future tells where the record is"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_every_record_is_written_once_and_in_order_whatever_passes(plan: list[tuple]) -> None:
    asyncio.run(run(plan, {**QUICK, "linger_ms": 1, "batch_bytes_max": 120}))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.sampled_from(["gzip", "snappy", "lz4", "zstd"]))
def test_and_so_with_compression_and_large_batches(plan: list[tuple], compression: str) -> None:
    asyncio.run(run(plan, {**QUICK, "linger_ms": 0, "compression": compression}))


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_ENOUGH_REPLICAS]
)
async def test_what_follows_a_refused_first_batch_is_not_written_before_it(code: ErrorCode) -> None:
    """A leader accepts any sequence number from a producer that is new to it, so the earlier batch
    would count as already written.
    """
    cluster = MemoryCluster()
    cluster.create_topic("t")
    cluster.fail_next("produce", "t", 0, code)
    async with cluster.client() as client, client.producer(batch_bytes_max=1) as producer:
        futures = [await producer.send("t", b"%d" % number) for number in range(5)]
        offsets = [(await future).offset for future in futures]
    assert written(cluster, 0) == [b"%d" % number for number in range(5)]
    assert offsets == list(range(5))


async def test_a_first_batch_that_is_too_large_is_written_before_its_smaller_followers() -> None:
    cluster = MemoryCluster()
    cluster.create_topic("t", configs={"max.message.bytes": "2000"})
    sent = [b"%04d" % number + b"x" * 96 for number in range(50)]
    async with cluster.client() as client, client.producer(batch_bytes_max=4_000) as producer:
        for value in sent:
            await producer.send("t", value)
        await producer.flush(10)
    assert written(cluster, 0) == sent


async def test_without_idempotence_a_lost_answer_writes_twice() -> None:
    """This counterpart shows that sequence numbers are what prevents duplicates."""
    cluster = MemoryCluster()
    cluster.create_topic("t")
    cluster.lose_next_answers("t", 0)
    async with (
        cluster.client() as client,
        client.producer(enable_idempotence=False) as producer,
    ):
        await producer.send_and_wait("t", b"once?")
    assert written(cluster, 0) == [b"once?"] * 2


@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_a_batch_that_fails_for_good_does_not_stop_or_double_its_followers(
    failing: int,
) -> None:
    cluster = MemoryCluster()
    cluster.create_topic("t")
    codes = [ErrorCode.NONE] * failing + [ErrorCode.INVALID_RECORD]
    cluster.fail_next("produce", "t", 0, *codes)
    async with cluster.client() as client, client.producer(batch_bytes_max=1) as producer:
        futures = [await producer.send("t", b"%d" % number) for number in range(6)]
        await producer.flush(10)
        failed = [n for n, future in enumerate(futures) if future.exception() is not None]
    assert failed == [failing]
    assert written(cluster, 0) == [b"%d" % n for n in range(6) if n != failing]

"""`send_many` writes the same records as one `send` for each value, and each record has its own outcome."""

from __future__ import annotations

import asyncio

import pytest

from odradek import Client
from odradek.errors import BufferFull, OdradekError, SerializationFailed
from odradek.producer.delivery import Deliveries
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_reader import decode_batch

PARTITIONS = 3


def written(cluster: MemoryCluster, partition: int) -> list[bytes | None]:
    log = cluster.log("t", partition)
    return [record.value for batch in log.batches for record in decode_batch(batch.data)]


@pytest.fixture(autouse=True)
def topic(cluster: MemoryCluster) -> None:
    cluster.create_topic("t", PARTITIONS)


@pytest.mark.parametrize("partition", [None, 1])
async def test_every_value_is_written_once_where_its_future_says(
    cluster: MemoryCluster, client: Client, partition: int | None
) -> None:
    values = [b"%d" % number * (number % 40) for number in range(5_000)]
    async with client.producer(batch_bytes_max=4_096) as producer:
        deliveries = await producer.send_many("t", values, partition=partition)
        places = [await delivery for delivery in deliveries]
    logs = [written(cluster, index) for index in range(PARTITIONS)]
    assert [logs[place.partition][place.offset] for place in places] == values
    assert sum(map(len, logs)) == len(values)
    used = {place.partition for place in places}
    assert used == ({0, 1, 2} if partition is None else {partition})
    assert len({id(batch) for batch, _, _ in deliveries._runs}) > 20, "batches keep their limit"


async def test_the_futures_are_a_sequence(client: Client) -> None:
    async with client.producer(batch_bytes_max=1_024) as producer:
        deliveries = await producer.send_many("t", [b"x" * 100] * 50, partition=0)
        await producer.flush(10)
    assert len(deliveries) == 50
    assert [future.result().offset for future in deliveries] == list(range(50))
    assert deliveries[49].result().offset == deliveries[-1].result().offset == 49
    assert [future.result().offset for future in deliveries[10:13]] == [10, 11, 12]
    with pytest.raises(IndexError, match="no record 50"):
        deliveries[50]


async def test_each_record_is_counted_once_with_its_own_outcome(
    cluster: MemoryCluster, client: Client
) -> None:
    """A batch that the broker finds too large is split, and its halves may have different outcomes."""
    outcomes: list[tuple[int, OdradekError | None]] = []
    cluster.fail_next("produce", "t", 0, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD)
    async with client.producer() as producer:
        deliveries = await producer.send_many("t", [b"%d" % n for n in range(10)], partition=0)
        deliveries.add_done_callback(lambda count, error: outcomes.append((count, error)))
        await producer.flush(10)
        late: list[int] = []
        deliveries.add_done_callback(lambda count, _: late.append(count))
        await asyncio.sleep(0)
    failed = sum(count for count, error in outcomes if error is not None)
    assert sum(count for count, _ in outcomes) == sum(late) == 10
    assert failed == sum(future.exception() is not None for future in deliveries) == 5
    assert len(written(cluster, 0)) == 5


async def test_a_value_that_is_not_bytes_is_refused_after_those_before_it(
    cluster: MemoryCluster, client: Client
) -> None:
    async with client.producer() as producer:
        deliveries = Deliveries()
        with pytest.raises(SerializationFailed, match="cannot be encoded"):
            await producer._send_into(deliveries, "t", [b"a", b"b", 3, b"c"], partition=0)
        await producer.flush(10)
    assert len(deliveries) == 2
    assert written(cluster, 0) == [b"a", b"b"]


async def test_it_waits_for_space_and_says_how_far_it_came(
    cluster: MemoryCluster, client: Client
) -> None:
    async with client.producer(
        buffer_bytes_max=8_192, batch_bytes_max=4_096, max_block_ms=50
    ) as producer:
        await producer.send_and_wait("t", b"first", partition=0)
        for broker_id in (1, 2, 3):
            cluster.freeze(broker_id)
        deliveries = Deliveries()
        with pytest.raises(BufferFull):
            await producer._send_into(deliveries, "t", [b"x" * 100] * 1_000, partition=0)
        assert 60 <= len(deliveries) <= 85
        assert producer._accumulator.buffered_bytes <= 8_192 + 200
        await producer.close(0)

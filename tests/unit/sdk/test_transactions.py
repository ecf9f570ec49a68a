"""Transactions of the SDK, tested against a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from odradek.client import Client
from odradek.consumer.options import GroupIdentity
from odradek.errors import (
    InvalidConfig,
    InvalidRequest,
    NotInTransaction,
    OdradekError,
    ProducerFenced,
    TransactionAborted,
    TransactionInProgress,
    TransactionOutcomeUnknown,
)
from odradek.partitions import TopicPartition
from odradek.producer.producer import Producer
from odradek.producer.transaction import Transaction
from odradek.testing import MemoryCluster
from odradek.testing.memory_cluster import MemoryTransport
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_reader import decode_batch
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from tests.unit.sdk.numbered_records import until

OUT = TopicPartition("out", 0)


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster(brokers=2)
    cluster.create_topic("out", partitions=2)
    cluster.create_topic("in")
    return cluster


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as client:
        yield client


@pytest.fixture
async def producer(client: Client) -> AsyncIterator[Producer]:
    async with client.producer(transactional_id="orders-1", retry_backoff_ms=1) as producer:
        yield producer


async def committed(client: Client, cluster: MemoryCluster, partition: int = 0) -> list[bytes]:
    """Return the values that a read_committed reader sees from the beginning to the last stable offset."""
    end = cluster.log("out", partition).last_stable_offset
    values: list[bytes] = []
    async with client.consumer(
        isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([("out", partition)])
        while await consumer.position(("out", partition)) < end:
            values += [r.value for r in await consumer.getmany(timeout_ms=50) if r.value]
    return values


def batches(cluster: MemoryCluster, partition: int = 0) -> list[tuple[int, int, int, bool]]:
    """Return (producer epoch, base sequence, number of records, whether it is a marker) of each
    batch.
    """
    headers = [batch.header for batch in cluster.log("out", partition).batches]
    return [(h.producer_epoch, h.base_sequence, h.record_count, h.is_control) for h in headers]


async def test_records_of_all_partitions_count_when_the_block_ends(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    async with producer.transaction():
        await producer.send("out", b"a", partition=0)
        await (await producer.send("out", b"b", partition=1))
        assert await committed(client, cluster, 1) == []
    assert await committed(client, cluster, 0) == [b"a"]
    assert await committed(client, cluster, 1) == [b"b"]


async def test_an_exception_aborts_and_the_producer_goes_on(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    with pytest.raises(KeyError):  # noqa: PT012
        async with producer.transaction():
            await (await producer.send("out", b"a", partition=0))
            raise KeyError
    async with producer.transaction():
        await producer.send("out", b"b", partition=0)
    assert await committed(client, cluster) == [b"b"]
    everything = [r.value for b in cluster.log("out").batches for r in decode_batch(b.data)]
    assert everything[0] == b"a"


async def test_each_transaction_has_an_epoch_and_numbers_its_records_from_0(
    cluster: MemoryCluster, producer: Producer
) -> None:
    for _ in range(3):
        async with producer.transaction():
            await (await producer.send("out", b"a", partition=0))
            await (await producer.send("out", b"b", partition=0))
    assert batches(cluster) == [
        (0, 0, 1, False),
        (0, 1, 1, False),
        (1, -1, 1, True),
        (1, 0, 1, False),
        (1, 1, 1, False),
        (2, -1, 1, True),
        (2, 0, 1, False),
        (2, 1, 1, False),
        (3, -1, 1, True),
    ]


async def test_a_transaction_without_records_needs_no_coordinator(
    cluster: MemoryCluster, producer: Producer
) -> None:
    async with producer.transaction():
        pass
    async with producer.transaction() as transaction:
        await transaction.abort()
    assert "EndTransaction" not in cluster.requests


async def test_commits_go_to_the_coordinator_until_another_broker_coordinates(
    cluster: MemoryCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, ends, deposed = MemoryTransport.call, list[str](), set[str]()

    async def recorded(
        transport: MemoryTransport, endpoint: str, method: Any, request: Any, *, timeout_s: float
    ) -> Any:
        if method.name == "EndTransaction":
            ends.append(endpoint)
            if endpoint in deposed:
                return pb.EndTransactionResponse(error_code=ErrorCode.NOT_COORDINATOR)
        return await call(transport, endpoint, method, request, timeout_s=timeout_s)

    monkeypatch.setattr(MemoryTransport, "call", recorded)

    async def commit(times: int) -> None:
        for _ in range(times):
            async with producer.transaction():
                await producer.send("out", b"a", partition=0)

    await commit(4)
    assert ends == ["memory-1:9090"] * 4
    ends.clear()
    cluster.kill(1)
    await commit(3)
    assert set(ends[1:]) == {"memory-2:9090"}
    ends.clear()
    cluster.start(1)
    deposed.add("memory-2:9090")
    await commit(1)
    assert (ends[0], ends[-1]) == ("memory-2:9090", "memory-1:9090")


async def test_commit_and_abort_may_be_called_in_the_block(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    async with producer.transaction() as transaction:
        await producer.send("out", b"a", partition=0)
        await transaction.commit()
        assert not transaction.is_open
        with pytest.raises(NotInTransaction):
            await producer.send("out", b"b", partition=0)
        with pytest.raises(NotInTransaction):
            await transaction.commit()
    assert await committed(client, cluster) == [b"a"]


async def test_records_need_a_transaction_and_a_producer_has_one_at_a_time(
    client: Client, producer: Producer
) -> None:
    with pytest.raises(NotInTransaction):
        await producer.send("out", b"a")
    async with producer.transaction():
        with pytest.raises(TransactionInProgress):
            async with producer.transaction():
                pass
        await producer.send("out", b"a")
    async with client.producer() as plain:
        with pytest.raises(InvalidRequest, match="transactional_id"):
            plain.transaction()


@pytest.mark.parametrize(("method", "value"), [("send", b"late"), ("send_many", [b"late"])])
async def test_a_send_of_an_aborted_transaction_does_not_join_the_next(
    cluster: MemoryCluster, producer: Producer, method: str, value: Any
) -> None:
    """The send waits for the metadata of its topic, as after `gather` when another send fails."""
    with pytest.raises(KeyError):  # noqa: PT012
        async with producer.transaction():
            late = asyncio.ensure_future(getattr(producer, method)("later", value, partition=0))
            await asyncio.sleep(0)
            raise KeyError
    async with producer.transaction():
        cluster.create_topic("later")
        with pytest.raises(NotInTransaction):
            await late
    assert not cluster.log("later").batches


async def test_a_send_before_the_transaction_has_begun_is_refused(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    await producer.partitions_for("out")
    transaction = producer.transaction()
    begun = asyncio.ensure_future(transaction.__aenter__())
    await asyncio.sleep(0)
    with pytest.raises(NotInTransaction):
        await producer.send("out", b"early", partition=0)
    await begun
    await transaction.commit()
    async with producer.transaction():
        await producer.send("out", b"b", partition=0)
    assert await committed(client, cluster) == [b"b"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"transactional_id": ""},
        {"transactional_id": "a", "acks": 1},
        {"transactional_id": "a", "enable_idempotence": False},
        {"transactional_id": "a", "transaction_timeout_ms": 9},
    ],
)
def test_options_that_contradict_transactions_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        Producer("localhost:9090", **arguments)


async def test_a_newer_producer_fences_the_older_one(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    with pytest.raises(ProducerFenced):  # noqa: PT012
        async with producer.transaction():
            await (await producer.send("out", b"old", partition=0))
            async with client.producer(transactional_id="orders-1") as newer, newer.transaction():
                await newer.send("out", b"new", partition=0)
    assert await committed(client, cluster) == [b"new"]
    with pytest.raises(ProducerFenced):
        async with producer.transaction():
            pass
    with pytest.raises(ProducerFenced):
        await producer.send("out", b"old")


async def test_a_commit_whose_response_was_lost_is_repeated(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    cluster.lose_next_ends(2)
    for value in (b"a", b"b"):
        async with producer.transaction():
            await producer.send("out", value, partition=0)
    assert await committed(client, cluster) == [b"a", b"b"]
    assert cluster.requests.count("EndTransaction") == 4


async def test_a_commit_is_repeated_while_the_coordinator_moves(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    cluster.fail_next_call("InitProducer", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    cluster.fail_next_call(
        "EndTransaction", ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS
    )
    async with producer.transaction():
        await producer.send("out", b"a", partition=0)
    assert await committed(client, cluster) == [b"a"]


async def test_a_transaction_that_timed_out_is_reported_as_aborted(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    with pytest.raises(TransactionAborted):  # noqa: PT012
        async with producer.transaction():
            await (await producer.send("out", b"a", partition=0))
            cluster.time_out_transaction("orders-1")
    async with producer.transaction():
        await producer.send("out", b"b", partition=0)
    assert await committed(client, cluster) == [b"b"]


async def test_a_record_that_fails_aborts_the_transaction(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    cluster.fail_next("produce", "out", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(TransactionAborted) as caught:  # noqa: PT012
        async with producer.transaction():
            await producer.send("out", b"a", partition=0)
            await producer.send("out", b"b", partition=1)
    assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert isinstance(caught.value.__cause__, OdradekError)
    async with producer.transaction():
        await producer.send("out", b"c", partition=1)
    assert await committed(client, cluster, 1) == [b"c"]


async def test_a_gap_in_the_sequence_fails_the_transaction_and_bumps_no_epoch(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    cluster.fail_next("produce", "out", 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    with pytest.raises(TransactionAborted):
        async with producer.transaction():
            await producer.send("out", b"a", partition=0)
    async with producer.transaction():
        await producer.send("out", b"b", partition=0)
    assert [epoch for epoch, *_ in batches(cluster)][-2:] == [1, 2]
    assert await committed(client, cluster) == [b"b"]


async def test_a_repeated_batch_is_written_once(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    cluster.lose_next_answers("out", 0)
    async with producer.transaction():
        await producer.send("out", b"a", partition=0)
    assert await committed(client, cluster) == [b"a"]


async def test_an_unanswered_commit_is_told_as_unknown_and_ends_the_producer(
    client: Client, cluster: MemoryCluster
) -> None:
    cluster.fail_next_call("EndTransaction", *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1_000)
    async with client.producer(
        transactional_id="t", commit_timeout_ms=30, retry_backoff_ms=1
    ) as producer:
        with pytest.raises(TransactionOutcomeUnknown):
            async with producer.transaction():
                await producer.send("out", b"a", partition=0)
        with pytest.raises(TransactionOutcomeUnknown):
            async with producer.transaction():
                pass
    cluster.transactions.faults.clear()
    async with client.producer(transactional_id="t") as successor:
        await successor.init()
    assert await committed(client, cluster) == []


async def test_an_abort_that_nobody_heard_is_made_up_for_by_the_next_transaction(
    client: Client, cluster: MemoryCluster
) -> None:
    cluster.fail_next_call("EndTransaction", *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1_000)
    async with client.producer(
        transactional_id="t", max_block_ms=30, retry_backoff_ms=1
    ) as producer:
        with pytest.raises(KeyError):  # noqa: PT012
            async with producer.transaction():
                await (await producer.send("out", b"a", partition=0))
                raise KeyError
        cluster.transactions.faults.clear()
        async with producer.transaction():
            await producer.send("out", b"b", partition=0)
    assert await committed(client, cluster) == [b"b"]


async def test_a_cancelled_commit_leaves_a_producer_that_goes_on(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    cluster.fail_next_call("EndTransaction", *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1_000)

    async def commit_for_ever() -> None:
        async with producer.transaction():
            await producer.send("out", b"a", partition=0)

    task = asyncio.create_task(commit_for_ever())
    await until(lambda: "EndTransaction" in cluster.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cluster.transactions.faults.clear()
    async with producer.transaction():
        await producer.send("out", b"b", partition=0)
    assert await committed(client, cluster) == [b"b"]


async def test_a_producer_that_closes_aborts_what_is_open(
    client: Client, cluster: MemoryCluster
) -> None:
    producer = client.producer(transactional_id="t")
    transaction = producer.transaction()
    await transaction.__aenter__()
    await (await producer.send("out", b"a", partition=0))
    await producer.close()
    assert cluster.log("out").last_stable_offset == cluster.log("out").log_end_offset
    assert await committed(client, cluster) == []


async def test_run_transaction_repeats_what_was_aborted(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    runs = []

    async def work(transaction: Transaction) -> int:
        runs.append(transaction)
        await (await producer.send("out", b"%d" % len(runs), partition=0))
        if len(runs) < 3:
            cluster.time_out_transaction("orders-1")
        return len(runs)

    assert await producer.run_transaction(work) == 3
    assert await committed(client, cluster) == [b"3"]
    runs.clear()
    with pytest.raises(TransactionAborted):
        await producer.run_transaction(work, attempts=1)


async def test_offsets_are_committed_with_the_records(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    for value in (b"1", b"2"):
        async with client.producer() as plain:
            await plain.send_and_wait("in", value)
    async with client.consumer("in", group="g", auto_offset_reset="earliest") as consumer:
        records = await consumer.getmany(timeout_ms=10_000)
        assert records
        with pytest.raises(KeyError):  # noqa: PT012
            async with producer.transaction() as transaction:
                await transaction.send_offsets(consumer.positions(), consumer)
                raise KeyError
        assert await consumer.committed() == {TopicPartition("in", 0): None}
        async with producer.transaction() as transaction:
            await producer.send("out", b"x", partition=0)
            await transaction.send_offsets(consumer.positions(), consumer)
        assert await consumer.committed() == {TopicPartition("in", 0): len(records)}
        with pytest.raises(InvalidRequest, match="in transactions"):
            await consumer.commit()
    assert await committed(client, cluster) == [b"x"]


async def test_offsets_of_a_member_that_lost_its_partitions_abort_the_transaction(
    client: Client, cluster: MemoryCluster, producer: Producer
) -> None:
    async with client.consumer("in", group="g") as consumer:
        await consumer.getmany(timeout_ms=50)
        stale = GroupIdentity("g", "gone", 1)
        with pytest.raises(TransactionAborted):  # noqa: PT012
            async with producer.transaction() as transaction:
                await (await producer.send("out", b"a", partition=0))
                await transaction.send_offsets({("in", 0): 1}, stale)
    assert await committed(client, cluster) == []


@pytest.mark.parametrize("has_returned", [False, True])
async def test_offsets_of_partitions_that_went_meanwhile_abort_the_transaction(
    client: Client, cluster: MemoryCluster, producer: Producer, has_returned: bool
) -> None:
    """The group removed the member while it processed, and let it in again, so its epoch is valid."""
    async with client.producer() as plain:
        await plain.send_and_wait("in", b"1")
    async with client.consumer("in", group="g", auto_offset_reset="earliest") as consumer:
        assert len(await consumer.getmany(timeout_ms=10_000)) == 1
        member, following = consumer._membership(), consumer.positions()
        group = cluster.groups._groups["g"]
        group.remove(group.members[member.member_id])
        member._wake.set()
        await until(lambda: member.removal_count and (member.owned or not has_returned))
        with pytest.raises(TransactionAborted, match="in-0"):  # noqa: PT012
            async with producer.transaction() as transaction:
                await producer.send("out", b"x", partition=0)
                await transaction.send_offsets(following, consumer)
        assert len(await consumer.getmany(timeout_ms=10_000)) == 1, "it is read again"
        async with producer.transaction() as transaction:
            await producer.send("out", b"y", partition=0)
            await transaction.send_offsets(following, consumer)
        assert await consumer.committed() == following
    assert await committed(client, cluster) == [b"y"]

"""Staged writes of the SDK against a cluster in memory; tests/e2e/transactions shows that brokers
behave alike.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncIterator, Callable

import pytest

from odradek.client import Client
from odradek.errors import InvalidRequest, OdradekError, TransactionAborted, TransactionFailed
from odradek.producer import staged_writes
from odradek.producer.staged_writes import PreparedTask, StagedTask, StagedWrites
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import staged_write_service_pb2 as pb

QUERY, TOPIC, PARTITIONS = "sales", "totals", 2


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster(brokers=2)
    cluster.create_topic(TOPIC, partitions=PARTITIONS)
    return cluster


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as client:
        yield client


@pytest.fixture
async def writes(client: Client) -> AsyncIterator[StagedWrites]:
    async with client.staged_writes(QUERY, retry_backoff_ms=1) as writes:
        yield writes


async def opened(writes: StagedWrites, step: int, name: str) -> StagedTask:
    task = await writes.open(step, name)
    assert task is not None
    return task


async def prepared(writes: StagedWrites, step: int, name: str) -> PreparedTask:
    """Run a task that writes one record to each partition, and prepare it."""
    task = await opened(writes, step, name)
    for partition in range(PARTITIONS):
        await task.send(TOPIC, f"{step} {name}".encode(), partition=partition)
    return await task.prepare()


async def committed(client: Client, cluster: MemoryCluster) -> list[str]:
    """Return what a read_committed reader sees.

    Both partitions must have the same records and no open transaction.
    """
    partitions: list[list[str]] = []
    for index in range(PARTITIONS):
        log = cluster.log(TOPIC, index)
        assert log.last_stable_offset == log.log_end_offset
        values: list[str] = []
        async with client.consumer(
            isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([(TOPIC, index)])
            while await consumer.position((TOPIC, index)) < log.log_end_offset:
                values += [r.value.decode() for r in await consumer.getmany(timeout_ms=50)]
        partitions.append(values)
    assert partitions[0] == partitions[1]
    return partitions[0]


async def test_the_listed_tasks_of_a_step_count_and_no_others(
    client: Client, cluster: MemoryCluster, writes: StagedWrites
) -> None:
    for step in range(3):
        listed = [await prepared(writes, step, name) for name in ("a", "b")]
        await prepared(writes, step, "speculative")
        unprepared = await opened(writes, step, "unprepared")
        await (await unprepared.send(TOPIC, b"lost", partition=0))
        assert await writes.complete(step, pickle.loads(pickle.dumps(listed)))
        await unprepared.abort()
    assert await committed(client, cluster) == [f"{s} {name}" for s in range(3) for name in "ab"]
    steps = await client.admin.transactions.steps(QUERY)
    assert (steps.last_step, steps.task_count, steps.open_tasks) == (2, 2, ())


async def test_a_task_that_is_listed_twice_is_counted_once(
    client: Client, writes: StagedWrites
) -> None:
    task = await prepared(writes, 0, "a")
    assert await writes.complete(0, [task, task])
    assert (await client.admin.transactions.steps(QUERY)).task_count == 1


async def test_slots_are_used_again(client: Client, writes: StagedWrites) -> None:
    for step in range(3):
        task = await prepared(writes, step, "a")
        assert await writes.complete(step, [task])
    names = [t.transactional_id for t in await client.admin.transactions.list()]
    assert names == [task.transactional_id]


async def test_a_complete_step_is_not_written_again(
    client: Client, cluster: MemoryCluster, writes: StagedWrites
) -> None:
    first, again = await prepared(writes, 5, "a"), await prepared(writes, 5, "again")
    assert await writes.complete(5, [first])
    async with client.staged_writes(QUERY) as successor:
        assert await successor.open(5, "of the successor") is None
        assert not await successor.complete(5, [again])
        with pytest.raises(TransactionFailed, match=r"step 4 of .* is older than step 5"):
            await successor.open(4, "of an old checkpoint")
    assert await committed(client, cluster) == ["5 a"]


async def test_an_empty_step_is_complete_as_well(writes: StagedWrites) -> None:
    assert await writes.complete(0, [])
    assert await writes.open(0, "late") is None
    task = await opened(writes, 1, "wrote nothing")
    assert await writes.complete(1, [await task.prepare()])


async def test_a_task_that_is_left_counts_nothing(
    client: Client, cluster: MemoryCluster, writes: StagedWrites
) -> None:
    with pytest.raises(KeyError):  # noqa: PT012
        async with await opened(writes, 0, "fails") as task:
            await (await task.send(TOPIC, b"lost", partition=0))
            raise KeyError
    open_task = await prepared(writes, 0, "given up")
    await writes.abort([open_task])
    with pytest.raises(TransactionAborted):
        await writes.complete(0, [open_task])
    assert await committed(client, cluster) == []


async def test_a_lease_that_ends_aborts_its_task_and_the_step_is_not_complete(
    client: Client, cluster: MemoryCluster, writes: StagedWrites
) -> None:
    kept = await prepared(writes, 0, "kept")
    lost = await opened(writes, 0, "lost")
    await (await lost.send(TOPIC, b"lost", partition=0))
    cluster.end_lease(QUERY, "lost")
    with pytest.raises(TransactionAborted):
        await lost.prepare()
    assert await writes.complete(0, [kept])
    assert await committed(client, cluster) == ["0 kept"]
    with pytest.raises(AssertionError, match="no open task"):
        cluster.end_lease(QUERY, "kept")


async def test_a_step_whose_processes_were_silent_is_given_up(
    client: Client, cluster: MemoryCluster, writes: StagedWrites
) -> None:
    task, later = await prepared(writes, 0, "a"), await prepared(writes, 1, "b")
    cluster.time_out_step(QUERY, 0)
    with pytest.raises(TransactionAborted):
        await writes.complete(0, [task])
    again = await prepared(writes, 0, "again")
    assert await writes.complete(0, [again])
    assert await writes.complete(1, [later])
    assert await committed(client, cluster) == ["1 b", "0 again"]
    with pytest.raises(AssertionError, match="no prepared task"):
        cluster.time_out_step(QUERY, 1)


async def test_prepared_tasks_are_renewed_until_their_step_is_decided(
    client: Client, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their process may be the only one that lives as long as the driver."""
    monkeypatch.setattr(staged_writes, "RENEWALS_A_LEASE", 60_000)
    renewed: list[str] = []
    renew = cluster.staged_writes.renew

    def listening(request: pb.RenewStagedRequest) -> pb.RenewStagedResponse:
        renewed.extend(member.transactional_id for member in request.members)
        return renew(request)

    monkeypatch.setattr(cluster.staged_writes, "renew", listening)

    async def until(condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0)

    async def until_renewed(*tasks: PreparedTask) -> None:
        renewed.clear()
        await until(lambda: {task.transactional_id for task in tasks} <= set(renewed))

    async with client.staged_writes(QUERY) as tasks, client.staged_writes(QUERY) as driver:
        first, second, third = [await prepared(tasks, 0, name) for name in "abc"]
        await until_renewed(first, second, third)
        assert not tasks.is_idle
        await tasks.abort([third])
        await driver.complete(0, [first])
        await until(lambda: tasks.is_idle)
        next_step = await prepared(tasks, 1, "a")
        await until_renewed(next_step)
        await tasks.complete(1, [next_step])
        assert tasks.is_idle
    with pytest.raises(InvalidRequest, match="prepared_timeout_ms"):
        client.staged_writes(QUERY, prepared_timeout_ms=0)


async def test_a_lease_that_ended_unnoticed_fails_the_step(
    client: Client, cluster: MemoryCluster, writes: StagedWrites
) -> None:
    kept, gone = await prepared(writes, 0, "kept"), await prepared(writes, 0, "gone")
    await client.admin.transactions.abort(gone.transactional_id)
    with pytest.raises(TransactionAborted):
        await writes.complete(0, [kept, gone])
    assert await writes.complete(0, [kept])
    assert await committed(client, cluster) == ["0 kept"]


@pytest.mark.parametrize(
    "method", ["OpenStaged", "PrepareStaged", "CompleteStep", "AbortStaged", "RenewStaged"]
)
async def test_calls_are_repeated_while_the_coordinator_moves(
    client: Client, cluster: MemoryCluster, writes: StagedWrites, method: str
) -> None:
    cluster.fail_next_call(method, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    given_up = await opened(writes, 0, "given up")
    await given_up.abort()
    assert await writes.complete(0, [await prepared(writes, 0, "a")])
    assert await committed(client, cluster) == ["0 a"]


async def test_every_call_whose_response_was_lost_is_repeated_with_the_same_outcome(
    client: Client, cluster: MemoryCluster, writes: StagedWrites
) -> None:
    methods = ("OpenStaged", "PrepareStaged", "CompleteStep", "AbortStaged")
    for method in methods:
        cluster.lose_next_responses(method)
    given_up = await opened(writes, 0, "given up")
    await (await given_up.send(TOPIC, b"lost", partition=1))
    await given_up.abort()
    kept = await prepared(writes, 0, "kept")
    assert not await writes.complete(0, [kept]), "the first copy of the call completed it"
    assert all(cluster.requests.count(method) > 1 for method in methods)
    assert await committed(client, cluster) == ["0 kept"]


async def test_only_its_step_ends_a_prepared_task(
    client: Client, cluster: MemoryCluster, writes: StagedWrites
) -> None:
    task = await prepared(writes, 0, "a")
    async with client.producer(transactional_id=task.transactional_id) as thief:
        with pytest.raises(OdradekError):
            await thief.init()
    assert await writes.complete(0, [task])
    assert await committed(client, cluster) == ["0 a"]


async def test_a_task_of_another_query_or_step_is_refused(
    client: Client, writes: StagedWrites
) -> None:
    task = await prepared(writes, 0, "a")
    async with client.staged_writes("other") as other:
        with pytest.raises(InvalidRequest):
            await other.complete(0, [task])
    with pytest.raises(InvalidRequest):
        await writes.complete(1, [task])


async def test_steps_are_forgotten_on_request(
    client: Client, cluster: MemoryCluster, writes: StagedWrites
) -> None:
    with pytest.raises(OdradekError, match="no record of a complete step of sales"):
        await client.admin.transactions.forget_steps(QUERY)
    assert await writes.complete(9, [await prepared(writes, 9, "a")])
    task = await prepared(writes, 10, "at work")
    with pytest.raises(OdradekError, match="stop the query"):
        await client.admin.transactions.forget_steps(QUERY)
    await writes.abort([task])
    await client.admin.transactions.forget_steps(QUERY)
    assert (await client.admin.transactions.steps(QUERY)).last_step is None
    assert await writes.complete(3, [await prepared(writes, 3, "again")])
    assert await committed(client, cluster) == ["9 a", "3 again"]

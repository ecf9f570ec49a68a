"""Staged writes on real brokers: repeated calls, zombies, expired leases, lost responses, and a
killed coordinator.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from odradek.client import Client
from odradek.cluster.cluster import Cluster
from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek.errors import (
    BrokerUnreachable,
    InvalidRequest,
    TransactionAborted,
    TransactionFailed,
    UnsupportedOperation,
)
from odradek.producer.staged_writes import PreparedTask, StagedTask, StagedWrites
from odradek_broker.coordination.placement import absolute_java_hash
from tests.e2e.faults.cluster_faults import leader_of, restart

PARTITIONS = 3
LEASE_MS = 3_000
WAIT_S_MAX = 60.0
INTERNAL_PARTITIONS = 5


@pytest.fixture(scope="module", params=[1, 3], ids=["one broker", "three brokers"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    settings = (
        f"transaction.state.log.num.partitions={INTERNAL_PARTITIONS}",
        f"transaction.staged.lease.ms={LEASE_MS}",
        f"default.replication.factor={request.param}",
    )
    plan = ClusterPlan(brokers=request.param, controllers=1, settings=settings)
    with EmbeddedCluster(plan) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.fixture
async def client(cluster: EmbeddedCluster, name: str) -> AsyncIterator[Client]:
    async with Client(cluster.bootstrap) as made:
        await made.admin.create_topic(
            name, partitions=PARTITIONS, replication_factor=len(cluster.brokers)
        )
        yield made


@pytest.fixture
async def writes(client: Client, name: str) -> AsyncIterator[StagedWrites]:
    async with client.staged_writes(name) as made:
        yield made


async def opened(writes: StagedWrites, step: int, task: str) -> StagedTask:
    staged = await writes.open(step, task)
    assert staged is not None
    return staged


async def prepared(writes: StagedWrites, step: int, task: str) -> PreparedTask:
    """Return a prepared task that has written one record to each partition."""
    staged = await opened(writes, step, task)
    for partition in range(PARTITIONS):
        await staged.send(writes.query, f"{step} {task}".encode(), partition=partition)
    return await staged.prepare()


async def committed(client: Client, topic: str) -> Counter[str]:
    """Return how often readers see each value, once no transaction is open any more."""
    values: Counter[str] = Counter()
    deadline_s = time.monotonic() + WAIT_S_MAX
    partitions = [(topic, partition) for partition in range(PARTITIONS)]
    async with (
        client.consumer(topic, auto_offset_reset="earliest") as every,
        client.consumer(
            topic, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as reader,
    ):
        for partition, end in (await every.end_offsets(partitions)).items():
            while await reader.position(partition) < end:
                assert time.monotonic() < deadline_s, f"{partition} cannot be read up to {end}"
                for record in await reader.getmany(timeout_ms=200):
                    values[record.value.decode()] += 1
    return values


def once(*tasks: str) -> Counter[str]:
    return Counter(dict.fromkeys(tasks, PARTITIONS))


async def test_the_listed_tasks_of_a_step_count_and_no_others(
    client: Client, writes: StagedWrites, name: str
) -> None:
    for step in range(4):
        listed = [await prepared(writes, step, task) for task in ("a", "b")]
        await prepared(writes, step, "speculative")
        unprepared = await opened(writes, step, "unprepared")
        await unprepared.send(name, b"lost", partition=0)
        assert await writes.complete(step, pickle.loads(pickle.dumps(listed)))
        await unprepared.abort()
    assert await committed(client, name) == once(
        *(f"{step} {task}" for step in range(4) for task in ("a", "b"))
    )
    steps = await client.admin.transactions.steps(name)
    assert (steps.last_step, steps.task_count, steps.open_tasks) == (3, 2, ())


async def test_a_step_is_aborted_with_the_tasks_of_other_processes(
    client: Client, writes: StagedWrites, name: str
) -> None:
    await prepared(writes, 0, "prepared")
    late = await opened(writes, 0, "late")
    await late.send(name, b"lost", partition=0)
    next_step = await prepared(writes, 1, "next")
    async with client.staged_writes(name) as driver:
        await driver.abort_step(0)
        await driver.abort_step(0)
        steps = await client.admin.transactions.steps(name)
        assert [task.step for task in steps.open_tasks] == [1]
        assert await driver.complete(1, [next_step])
    assert await committed(client, name) == once("1 next")


async def test_a_complete_step_stays_as_it_is_whoever_repeats_it(
    client: Client, writes: StagedWrites, name: str
) -> None:
    """The driver dies after the completion, and another one runs the step again, with rows divided
    among tasks in another way.
    """
    first = await prepared(writes, 5, "a")
    late = await prepared(writes, 5, "written again")
    assert await writes.complete(5, [first])
    async with client.staged_writes(name) as successor:
        assert await successor.open(5, "a of the successor") is None
        assert not await successor.complete(5, [late])
        assert not await successor.complete(5, [])
        with pytest.raises(TransactionFailed, match=r"step 4 of .* is older than step 5"):
            await successor.open(4, "of an old checkpoint")
    assert await committed(client, name) == once("5 a")


async def test_of_two_drivers_the_first_completes_the_step(
    client: Client, writes: StagedWrites, name: str
) -> None:
    async with client.staged_writes(name) as other:
        mine, its = await prepared(writes, 0, "mine"), await prepared(other, 0, "its")
        assert await other.complete(0, [its])
        assert not await writes.complete(0, [mine])
        await writes.abort([mine, its])
    assert await committed(client, name) == once("0 its")


async def test_a_zombie_writes_nothing_after_its_step_is_decided(
    client: Client, writes: StagedWrites, name: str
) -> None:
    zombie = await opened(writes, 0, "zombie")
    await zombie.send(name, b"early", partition=0)
    assert await writes.complete(0, [])
    await zombie.send(name, b"late", partition=1)
    with pytest.raises(TransactionAborted):
        await zombie.prepare()
    assert await committed(client, name) == Counter()


async def test_a_task_without_a_lease_is_aborted_and_the_step_is_not_complete(
    client: Client, name: str
) -> None:
    """One task stops renewing its lease, as when its executor hangs; another task renews its lease
    many times.
    """
    async with client.staged_writes(name) as alive, client.staged_writes(name) as silent:
        kept = await opened(alive, 0, "kept")
        await kept.send(name, b"kept", partition=0)
        lost = await opened(silent, 0, "lost")
        await lost.send(name, b"lost", partition=0)
        await silent._renewals.stop()
        deadline_s = time.monotonic() + WAIT_S_MAX
        while len((await client.admin.transactions.steps(name)).open_tasks) > 1:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.1)
        with pytest.raises(TransactionAborted):
            await lost.prepare()
        kept_task = await kept.prepare()
        gone = PreparedTask(
            query=name,
            step=0,
            transactional_id=lost.member.transactional_id,
            producer_id=lost.member.identity.producer_id,
            producer_epoch=lost.member.identity.producer_epoch,
        )
        with pytest.raises(TransactionAborted):
            await alive.complete(0, [kept_task, gone])
        assert await alive.complete(0, [kept_task])
    assert await committed(client, name) == Counter(kept=1)


async def test_a_step_whose_processes_have_ended_is_given_up(client: Client, name: str) -> None:
    """The driver and its tasks died before the completion. Tasks of a live process stay, although they have waited
    longer.
    """
    alive_query, dead_query = f"{name}-alive", f"{name}-dead"
    async with client.staged_writes(alive_query, prepared_timeout_ms=LEASE_MS) as alive:
        kept_task = await opened(alive, 0, "kept")
        await kept_task.send(name, b"kept", partition=0)
        kept = await kept_task.prepare()
        async with client.staged_writes(dead_query, prepared_timeout_ms=LEASE_MS) as dead:
            lost_task = await opened(dead, 0, "lost")
            await lost_task.send(name, b"lost", partition=0)
            lost = await lost_task.prepare()
        deadline_s = time.monotonic() + WAIT_S_MAX
        while (await client.admin.transactions.steps(dead_query)).open_tasks:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.1)
        async with client.staged_writes(dead_query) as driver:
            with pytest.raises(TransactionAborted):
                await driver.complete(0, [lost])
        assert await alive.complete(0, [kept])
    assert await committed(client, name) == Counter(kept=1)


async def test_every_call_whose_response_was_lost_is_repeated_with_the_same_outcome(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, lost = Cluster.call_any, set[str]()

    async def losing(cluster: Cluster, method: Any, request: Any, **arguments: Any) -> Any:
        response = await call(cluster, method, request, **arguments)
        is_staged = method.service.endswith("StagedWriteService")
        if is_staged and not response.error_code and method.name not in lost:
            lost.add(method.name)
            raise BrokerUnreachable("a broker", "its response was lost")
        return response

    monkeypatch.setattr(Cluster, "call_any", losing)
    async with client.staged_writes(name) as writes:
        dropped = await opened(writes, 0, "dropped")
        await dropped.send(name, b"dropped", partition=0)
        await dropped.abort()
        kept = await prepared(writes, 0, "kept")
        assert not await writes.complete(0, [kept]), "the first copy of the call completed it"
    assert lost == {"OpenStaged", "PrepareStaged", "CompleteStep", "AbortStaged"}
    assert await committed(client, name) == once("0 kept")


async def test_a_member_of_another_query_is_refused(
    client: Client, writes: StagedWrites, name: str
) -> None:
    async with client.staged_writes(f"{name}-other") as other:
        task = await opened(other, 0, "foreign")
        await task.send(name, b"foreign", partition=0)
        foreign = await task.prepare()
        with pytest.raises(InvalidRequest):
            await writes.complete(0, [foreign])
        stolen = PreparedTask(
            query=name,
            step=0,
            transactional_id=foreign.transactional_id,
            producer_id=foreign.producer_id,
            producer_epoch=foreign.producer_epoch,
        )
        with pytest.raises(InvalidRequest):
            await writes.complete(0, [stolen])


async def test_steps_are_forgotten_on_request(
    client: Client, writes: StagedWrites, name: str
) -> None:
    assert await writes.complete(9, [await prepared(writes, 9, "a")])
    await client.admin.transactions.forget_steps(name)
    assert (await client.admin.transactions.steps(name)).last_step is None
    assert await writes.complete(3, [await prepared(writes, 3, "again")])
    assert await committed(client, name) == once("9 a", "3 again")


@pytest.mark.timeout(300)
async def test_a_coordinator_is_killed_before_within_and_after_a_step(
    cluster: EmbeddedCluster, client: Client, writes: StagedWrites, name: str
) -> None:
    partition = absolute_java_hash(name) % INTERNAL_PARTITIONS
    for step in range(3):
        tasks = [await prepared(writes, step, task) for task in ("a", "b")]
        victim = cluster.brokers[await leader_of(client, "__transaction_state", partition)]
        if step == 1:
            completing = asyncio.create_task(writes.complete(step, tasks))
            await asyncio.sleep(0)
            victim.kill()
        else:
            victim.kill()
            completing = asyncio.create_task(writes.complete(step, tasks))
        await restart([victim])
        await completing
        assert await writes.open(step, "again") is None
    assert await committed(client, name) == once(
        *(f"{step} {task}" for step in range(3) for task in ("a", "b"))
    )


async def test_a_cluster_without_transactions_says_so(name: str) -> None:
    plan = ClusterPlan(brokers=1, controllers=1)
    with EmbeddedCluster(plan) as running:
        running.start()
        running.wait_ready()
        async with Client(running.bootstrap) as client:
            await client.admin.update_feature("transaction.version", 0, allow_downgrade=True)
            async with client.staged_writes(name) as writes:
                with pytest.raises(UnsupportedOperation, match=r"feature set transaction\.version"):
                    await writes.open(0, "a")

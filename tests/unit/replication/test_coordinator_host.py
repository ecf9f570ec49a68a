"""Loading, failing and starting over: what one partition meets, the others do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from odradek_broker.coordination import coordinator_host, hosted_shard
from odradek_broker.coordination.coordinator_host import CoordinatorHost, reload_wait_s
from odradek_broker.coordination.group_coordinator import OFFSETS_TOPIC
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.step import Answer, RequestId, judges
from odradek_broker.replication.partition_service import ProduceOutcome
from odradek_protocol.identity import LeaderEpoch, Offset, PartitionIndex
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.primitives import Malformed
from tests.unit.replication.partitions_in_memory import PartitionsInMemory
from tests.unit.replication.running import when_answered

EPOCH = LeaderEpoch(1)
FIRST, SECOND = PartitionIndex(0), PartitionIndex(1)


@dataclass
class Tally:
    """A shard: how often it was added to."""

    count: int = 0


@dataclass(frozen=True)
class Told:
    """A step."""

    records: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()


@dataclass
class TallyKind:
    """A ShardKind."""

    failures: int = 0  # how many ticks fail
    has_failed: asyncio.Event = field(default_factory=asyncio.Event)
    made: list[Tally] = field(default_factory=list)

    def create(self) -> Tally:
        self.made.append(Tally())
        return self.made[-1]

    def replay(self, shard: Tally, key: bytes, value: bytes | None) -> None:
        if key == b"poison":
            raise Malformed("not a record of this kind")
        shard.count += 1

    def loaded(self, shard: Tally) -> Told:
        return Told()

    def tick(self, shard: Tally) -> Told:
        if self.failures:
            self.failures -= 1
            if not self.failures:
                self.has_failed.set()
            raise AssertionError("a bug")
        return Told()

    def encode(self, record: str) -> tuple[bytes, bytes | None]:
        if len(record) > 32_767:
            raise ValueError("too long")
        return record.encode(), b""


def add(*records: str) -> Any:
    """Count them, write them, and answer the count."""

    def decide(shard: Tally, request_id: int) -> Told:
        shard.count += len(records)
        return Told(records, (Answer(RequestId(request_id), shard.count),))

    return decide


class Partitions(PartitionsInMemory):
    """Two partitions over one log, of which one may be held up."""

    held: set[PartitionIndex]

    async def list_offsets(
        self, topic: str, partition: PartitionIndex, timestamp_ms: int, **_: Any
    ) -> Any:
        told = await super().list_offsets(topic, partition, timestamp_ms)
        return replace(told, offset=Offset(-1)) if partition in self.held else told


@pytest.fixture
def partitions() -> Partitions:
    made = Partitions()
    made.held = set()
    return made


@pytest.fixture
def kind() -> TallyKind:
    return TallyKind()


@pytest.fixture
async def host(partitions: Partitions, kind: TallyKind) -> AsyncIterator[CoordinatorHost[Tally]]:
    made: CoordinatorHost[Tally] = CoordinatorHost(
        topic=OFFSETS_TOPIC,
        partitions=partitions,  # type: ignore[arg-type]  # of PartitionService what it needs
        kind=kind,
        now_wall_ms=lambda: 0,
        tick_ms=1,
    )
    task = asyncio.create_task(made.run())
    yield made
    assert not task.done(), "the host goes on, whatever a partition meets"
    task.cancel()
    await asyncio.wait([task])


async def ask(host: CoordinatorHost[Tally], partition: PartitionIndex, decide: Any) -> Any:
    return await when_answered(lambda: host.ask(partition, decide))


async def test_what_was_written_is_loaded_again(
    host: CoordinatorHost[Tally],
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    assert await ask(host, FIRST, add("a", "b")) == 2
    host.on_leader(OFFSETS_TOPIC, FIRST, LeaderEpoch(2))
    assert await ask(host, FIRST, add("c")) == 3


async def test_partitions_that_cannot_be_loaded_yet_hold_up_no_other(
    partitions: Partitions, host: CoordinatorHost[Tally]
) -> None:
    stuck = [PartitionIndex(index) for index in range(10, 20)]
    partitions.held.update(stuck)
    for partition in (*stuck, FIRST):
        host.on_leader(OFFSETS_TOPIC, partition, EPOCH)
    assert await ask(host, FIRST, add("a")) == 1
    partitions.held.clear()
    for partition in stuck:
        assert await ask(host, partition, add()) == 1


async def test_a_log_that_cannot_be_read_has_no_coordinator_and_stops_nothing_else(
    partitions: Partitions, host: CoordinatorHost[Tally]
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    assert await ask(host, FIRST, add("poison")) == 1
    host.on_leader(OFFSETS_TOPIC, SECOND, EPOCH)
    with pytest.raises(CoordinatorError) as refused:
        await ask(host, SECOND, add("b"))
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert await ask(host, FIRST, add("c")) == 2


async def test_a_shard_that_went_while_it_was_loaded_stays_away(
    partitions: Partitions, host: CoordinatorHost[Tally], kind: TallyKind
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, add("a"))
    first_ticks = asyncio.Event()

    def resign() -> None:
        host.on_resigned(OFFSETS_TOPIC, SECOND)
        first_ticks.set()

    partitions.before_read = resign
    host.on_leader(OFFSETS_TOPIC, SECOND, EPOCH)
    hosted = host._hosted[SECOND]
    async with asyncio.timeout(5):
        await first_ticks.wait()
        for _ in range(10):
            await asyncio.sleep(0)
    with pytest.raises(CoordinatorError):
        hosted.ask(add("b"))
    assert len(partitions.log) == 1


async def test_a_timer_that_fails_costs_one_load(
    host: CoordinatorHost[Tally], kind: TallyKind
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    assert await ask(host, FIRST, add("a")) == 1
    kind.failures = 1
    async with asyncio.timeout(5):
        await kind.has_failed.wait()
    assert await ask(host, FIRST, add("b")) == 2
    assert len(kind.made) == 2


async def test_who_went_while_waiting_is_not_counted_among_those_that_wait(
    host: CoordinatorHost[Tally], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joins of a group that does not settle wait for long, and their clients may come anew each time."""
    monkeypatch.setattr(hosted_shard, "WAITING_MAX", 3)
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, add())
    waiting = [
        asyncio.ensure_future(host.ask(FIRST, lambda *_: Told(records=(), answers=())))
        for _ in range(3)
    ]
    await asyncio.sleep(0)
    with pytest.raises(CoordinatorError) as refused:
        await host.ask(FIRST, add("a"))
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    for one in waiting[:2]:
        one.cancel()
    await asyncio.wait(waiting[:2])
    assert await host.ask(FIRST, add("a")) == 1
    waiting[2].cancel()


def test_the_wait_before_a_load_grows_and_is_bounded() -> None:
    waits_s = [reload_wait_s(breaks) for breaks in (1, 2, 3, 4, 10_000)]
    assert waits_s == [0.0, 0.4, 0.8, 1.6, 5.0]


async def test_a_shard_that_breaks_again_waits_before_it_is_loaded(
    host: CoordinatorHost[Tally], kind: TallyKind
) -> None:
    kind.failures = 2
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(5):
        await kind.has_failed.wait()
    broken_at_s = loop.time()
    assert host.is_loading()
    assert await ask(host, FIRST, add("a")) == 1
    assert loop.time() - broken_at_s >= 0.39


async def test_after_a_calm_time_a_shard_is_loaded_at_once(
    host: CoordinatorHost[Tally], kind: TallyKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_host, "_CALM_S", -1.0)
    kind.failures = 20  # would wait for over a minute
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    async with asyncio.timeout(5):
        await kind.has_failed.wait()
    assert await ask(host, FIRST, add("a")) == 1


@pytest.mark.parametrize("why", ["it raises", "no record can be made of it"])
async def test_a_request_that_fails_leaves_nothing_behind(
    host: CoordinatorHost[Tally], partitions: Partitions, why: str
) -> None:
    def fail(shard: Tally, request_id: int) -> Told:
        shard.count += 1  # as handlers do, which decide step by step
        if why == "it raises":
            raise AssertionError("a bug")
        return Told(("x" * 32_768,), (Answer(RequestId(request_id), shard.count),))

    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    assert await ask(host, FIRST, add("a")) == 1
    partitions.holds = True
    waits = asyncio.ensure_future(host.ask(FIRST, add("b")))
    await asyncio.sleep(0)
    with pytest.raises(CoordinatorError) as refused:
        await host.ask(FIRST, fail)
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(CoordinatorError) as moved:
        await waits
    assert moved.value.code is ErrorCode.NOT_COORDINATOR
    partitions.holds = False
    assert await ask(host, FIRST, add("c")) == 3, "a, b and c; what failed was never written"


async def test_a_request_that_cannot_be_judged_fails_alone(
    host: CoordinatorHost[Tally], kind: TallyKind, partitions: Partitions
) -> None:
    @judges
    def refuse(shard: Tally) -> Told:
        raise AssertionError("a bug")

    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    assert await ask(host, FIRST, add("a")) == 1
    partitions.holds = True
    waits = asyncio.ensure_future(host.ask(FIRST, add("b")))
    await asyncio.sleep(0)
    for _ in range(3):
        with pytest.raises(CoordinatorError) as refused:
            await host.ask(FIRST, lambda shard, _: refuse(shard))
        assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    partitions.holds = False
    write = partitions.writes[-1]
    write.on_done(ProduceOutcome(ErrorCode.NONE, Offset(write.base_offset)))
    assert await waits == 2, "others, and what waits, do not notice"
    assert len(kind.made) == 1, "nothing is loaded again"


async def test_the_named_test_catches_a_shard_that_ends_with_each_bug(
    host: CoordinatorHost[Tally],
    kind: TallyKind,
    partitions: Partitions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Never(Exception):
        pass

    monkeypatch.setattr(hosted_shard, "NothingApplied", Never)
    with pytest.raises((AssertionError, CoordinatorError)):
        await test_a_request_that_cannot_be_judged_fails_alone(host, kind, partitions)


async def test_a_step_of_any_size_is_written(
    host: CoordinatorHost[Tally], partitions: Partitions
) -> None:
    partitions.batch_bytes_max = 16 << 20
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    many = ["x" * 32_000] * 600  # 19 MB
    assert await ask(host, FIRST, add(*many)) == 600
    assert len(partitions.log) == 1
    host.on_leader(OFFSETS_TOPIC, FIRST, LeaderEpoch(2))
    assert await ask(host, FIRST, add("y")) == 601

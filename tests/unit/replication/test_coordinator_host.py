"""Coordinators of an internal topic: loading, failing and loading again one partition does not affect the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from odradek_broker.coordination import coordinator_host, hosted_shard
from odradek_broker.coordination.coordinator_host import CoordinatorHost, reload_wait_s
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.coordination.turn_writes import TurnWrites
from odradek_broker.coordinator_step import (
    NOTHING,
    LoadedMarker,
    LoadedRecord,
    RequestId,
    Response,
    Step,
    TransactionalRecords,
    TransactionMarker,
    judges,
)
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_protocol.identity import LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records import decode_batch, iter_headers
from odradek_protocol.topic_names import OFFSETS_TOPIC
from tests.unit.replication.tally import (
    EPOCH,
    FIRST,
    SECOND,
    Partitions,
    Tally,
    TallyKind,
    add,
    ask,
)


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
    async with asyncio.timeout(30):
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
    async with asyncio.timeout(30):
        await kind.has_failed.wait()
    assert await ask(host, FIRST, add("b")) == 2
    assert len(kind.made) == 2


async def test_who_went_while_waiting_is_not_counted_among_those_that_wait(
    host: CoordinatorHost[Tally], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JoinGroup requests to a group that does not become stable wait for long, and their clients
    may disconnect and join again each time.
    """
    monkeypatch.setattr(hosted_shard, "WAITING_MAX", 3)
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, add())
    waiting = [asyncio.ensure_future(host.ask(FIRST, lambda *_: NOTHING)) for _ in range(3)]
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
    async with asyncio.timeout(30):
        await kind.has_failed.wait()
    assert host.is_loading()
    assert await ask(host, FIRST, add("a")) == 1
    assert asyncio.get_running_loop().time() - kind.failed_at_s >= 0.39


async def test_after_a_calm_time_a_shard_is_loaded_at_once(
    host: CoordinatorHost[Tally], kind: TallyKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_host, "_CALM_S", -1.0)
    kind.failures = 20  # would wait for over a minute
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    async with asyncio.timeout(30):
        await kind.has_failed.wait()
    assert await ask(host, FIRST, add("a")) == 1


@pytest.mark.parametrize("why", ["it raises", "no record can be made of it"])
async def test_a_request_that_fails_leaves_nothing_behind(
    host: CoordinatorHost[Tally], partitions: Partitions, why: str
) -> None:
    def fail(shard: Tally, request_id: RequestId) -> Step[str]:
        shard.count += 1  # as handlers do, which decide step by step
        if why == "it raises":
            raise AssertionError("a bug")
        return Step(("x" * 32_768,), (Response(request_id, shard.count),))

    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    assert await ask(host, FIRST, add("a")) == 1
    partitions.holds = True
    waits = asyncio.ensure_future(host.ask(FIRST, add("b")))
    await partitions.written(2)
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
    def refuse(shard: Tally) -> Step[str]:
        raise AssertionError("a bug")

    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    assert await ask(host, FIRST, add("a")) == 1
    partitions.holds = True
    waits = asyncio.ensure_future(host.ask(FIRST, add("b")))
    await partitions.written(2)
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


async def test_steps_of_one_turn_become_one_append_with_responses_in_order(
    host: CoordinatorHost[Tally], partitions: Partitions
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, add())
    order: list[int] = []

    async def count(*records: str) -> None:
        order.append(await host.ask(FIRST, add(*records)))

    await asyncio.gather(count("a"), count(), count("b", "c"))
    assert order == [1, 1, 3]
    assert len(partitions.writes) == 1
    await count("d")
    assert len(partitions.writes) == 2, "a request of a later turn is not held up for others"


async def test_of_states_decided_in_one_turn_only_the_last_is_written(
    host: CoordinatorHost[Tally], partitions: Partitions, kind: TallyKind
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, add())
    await asyncio.gather(
        *(host.ask(FIRST, add(*r)) for r in (["x=1", "y=1"], ["a"], ["x=2"], ["a"], ["x=3"]))
    )
    await host.ask(FIRST, add("x=4"))
    host.on_leader(OFFSETS_TOPIC, FIRST, LeaderEpoch(2))
    await ask(host, FIRST, add())
    keys = [r.key for r in kind.made[-1].loaded if isinstance(r, LoadedRecord)]
    assert keys == [b"y=1", b"a", b"a", b"x=3", b"x=4"]


async def test_batches_of_transactions_keep_their_place_and_are_loaded_with_their_identity(
    host: CoordinatorHost[Tally], partitions: Partitions, kind: TallyKind
) -> None:
    producer, epoch = ProducerId(7), ProducerEpoch(2)
    written = TransactionalRecords(producer, epoch, ("pending",))
    marker = TransactionMarker(producer, epoch, is_commit=True, coordinator_epoch=5)

    def write(*writes: Any) -> Any:
        return lambda shard, request_id: Step(
            writes=writes, responses=(Response(request_id, None),)
        )

    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, add())
    await asyncio.gather(
        host.ask(FIRST, add("a")),
        host.ask(FIRST, write(written)),
        host.ask(FIRST, write(marker, written)),
        host.ask(FIRST, add("b")),
    )
    assert len(partitions.writes) == 1
    host.on_leader(OFFSETS_TOPIC, FIRST, LeaderEpoch(2))
    await ask(host, FIRST, add())
    nobody = ProducerId(-1), ProducerEpoch(-1), False
    assert kind.made[-1].loaded == [
        LoadedRecord(b"a", b"", Offset(0), *nobody),
        LoadedRecord(b"pending", b"", Offset(1), producer, epoch, True),
        LoadedMarker(producer, epoch, True, 5, Offset(2)),
        LoadedRecord(b"pending", b"", Offset(3), producer, epoch, True),
        LoadedRecord(b"b", b"", Offset(4), *nobody),
    ]


def order(name: str, *records: str) -> Any:
    return lambda shard, request_id: Step(records, (Response(request_id, None),), orders=(name,))


async def test_orders_are_obeyed_in_line_once_their_records_are_committed(
    host: CoordinatorHost[Tally], partitions: Partitions, kind: TallyKind
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, order("at once"))
    assert kind.obeyed == [(FIRST, EPOCH, "at once")]
    kind.obeyed.clear()
    partitions.holds = True
    waiting = [
        asyncio.ensure_future(host.ask(FIRST, order(*names)))
        for names in (("first", "a"), ("second",))
    ]
    await partitions.written(1)
    assert kind.obeyed == [], "what is not committed may still be lost"
    write = partitions.writes[-1]
    write.on_done(ProduceOutcome(ErrorCode.NONE, Offset(write.base_offset)))
    await asyncio.gather(*waiting)
    assert [name for _, _, name in kind.obeyed] == ["first", "second"]


async def test_orders_of_a_step_that_is_lost_are_never_obeyed(
    host: CoordinatorHost[Tally], partitions: Partitions, kind: TallyKind
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, add())
    partitions.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    with pytest.raises(CoordinatorError):
        await host.ask(FIRST, order("lost", "a"))
    partitions.refuses = ErrorCode.NONE
    await ask(host, FIRST, add())
    assert kind.obeyed == []
    assert kind.lives_closed == [(FIRST, EPOCH)]


async def test_an_order_that_fails_costs_one_load(
    host: CoordinatorHost[Tally], kind: TallyKind
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    assert await ask(host, FIRST, add("a")) == 1
    await host.ask(FIRST, order("bug", "b"))
    assert await ask(host, FIRST, add("c")) == 3
    assert len(kind.made) == 2


async def test_an_event_reaches_only_the_leader_epoch_that_it_is_meant_for(
    host: CoordinatorHost[Tally],
) -> None:
    def count(shard: Tally) -> Step[str]:
        shard.count += 1
        return Step(("told",))

    host.tell(FIRST, EPOCH, count)
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    host.tell(FIRST, EPOCH, count)
    assert await ask(host, FIRST, add()) == 0, "a shard that loads is not told"
    host.tell(FIRST, LeaderEpoch(2), count)
    host.tell(SECOND, EPOCH, count)
    host.tell(FIRST, EPOCH, count)
    assert await host.ask(FIRST, add()) == 1


def test_a_state_is_not_replaced_by_one_in_another_batch() -> None:
    """After a crash the first batch of an append may exist without the second."""
    kind = TallyKind()
    writes = TurnWrites(lambda record: (record.encode(), b"x" * (9 << 20)), kind.state_key)
    for record in ("x=1", "x=2"):
        writes.add(Step((record,)))
    buffer = writes.build(0)
    batches = [[r.key for r in decode_batch(buffer, at)] for at, _ in iter_headers(buffer)]
    assert batches == [[b"x=1"], [b"x=2"]]

"""Writes fail for a reason that is not the disk: nothing goes offline, and each write is tried
again.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek_broker.log.log_config import Durability
from odradek_broker.log.storage import StorageFailed, StorageRefused
from odradek_broker.partition import effects as fx
from odradek_broker.partition.effects import Role
from odradek_broker.replication.disk import full_disk, log_work
from odradek_broker.replication.disk.full_disk import FullDisk
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_broker.replication.partition_host import PartitionHost
from odradek_protocol.identity import Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.log.material import TOPIC_ID, Broker, batch, memory_broker
from tests.unit.replication import memory_table
from tests.unit.replication.memory_table import CONFIG, OWN, table_of
from tests.unit.replication.test_full_disk import fill, until
from tests.unit.replication.test_partition_host import lead_alone
from tests.worlds.memory_storage import MemoryStorage


def refuse(broker: Broker, *operations: str, error: int = errno.EMFILE) -> Callable[[], None]:
    """Make these operations on the partition's files fail.

    Return a function that ends the failures.
    """
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    place = broker.log.directory

    def fault(operation: str, path: Path) -> None:
        if operation in operations and place in (path, path.parent):
            raise OSError(error, "refused by the test", str(path))

    def heal() -> None:
        storage.fault = None

    storage.fault = fault
    return heal


def produce(host: PartitionHost, *, acks: int = -1) -> list[ProduceOutcome]:
    outcomes: list[ProduceOutcome] = []
    host.produce(batch(0), acks=acks, timeout_ms=60_000, on_done=outcomes.append)
    return outcomes


async def test_a_refused_sync_is_tried_again_and_its_producers_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_work, "_AGAIN_S", 0.001)
    broker = memory_broker(CONFIG)
    async with table_of(broker, 1, leader=OWN) as (table, told):
        host = table.by_id[TOPIC_ID, 0]
        lead_alone(host, Durability.FSYNC)
        before = produce(
            host
        )  # which opens the file, so that only the next sync needs a descriptor
        await until(lambda: bool(before))
        heal = refuse(broker, "open")
        refused: list[Any] = []
        broker.directory.health.on_refused = refused.append
        outcomes = produce(host)
        await until(lambda: len(refused) > 2)
        assert outcomes == []
        assert host.log.durable_end_offset == 1
        heal()
        await until(lambda: bool(outcomes))
        assert [outcome.error for outcome in outcomes] == [ErrorCode.NONE]
        assert host.log.durable_end_offset == 2
        assert (table.offline_reason, told, host.is_leader) == ("", [], True)
        count = len(refused)
        await asyncio.sleep(0.01)
        assert len(refused) == count, "it is not tried without a reason"


@pytest.mark.parametrize("end", ["bug", "removed"])
async def test_a_refused_sync_is_not_tried_again_for_a_replica_that_ended(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The log of a replica that failed because of a bug must not change."""
    monkeypatch.setattr(log_work, "_AGAIN_S", 0.001)
    broker = memory_broker(CONFIG)
    async with table_of(broker, 1, leader=OWN, on_broken=lambda _: None) as (table, _):
        host = table.by_id[TOPIC_ID, 0]
        lead_alone(host, Durability.FSYNC)
        heal = refuse(broker, "open")
        produce(host)
        if end == "bug":
            host.found_bug(AssertionError("a bug"))
        else:
            host.is_removed = True
        heal()
        syncs: list[bool] = []
        begin = host.log.begin_sync

        def begin_sync(*, full: bool = False) -> Any:
            syncs.append(full)
            return begin(full=full)

        monkeypatch.setattr(type(host.log), "begin_sync", lambda log, **kind: begin_sync(**kind))
        await asyncio.sleep(0.02)
        assert syncs == []


async def test_a_sync_that_fails_on_the_disk_takes_the_directory_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_work, "_AGAIN_S", 0.001)
    broker, reasons = memory_broker(CONFIG), list[str]()
    async with table_of(broker, 1, leader=OWN, on_offline=reasons.append) as (table, _):
        host = table.by_id[TOPIC_ID, 0]
        lead_alone(host, Durability.FSYNC)
        heal = refuse(broker, "sync", error=errno.EIO)
        outcomes = produce(host)
        await until(lambda: bool(outcomes))
        assert outcomes[0].error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "sync failed" in outcomes[0].message
        assert len(reasons) == 1
        assert table.offline_reason == reasons[0]
        heal()
        await asyncio.sleep(0.01)
        assert host.replica.role is Role.FAILED, "until the process restarts"


async def test_a_write_without_room_fails_its_producer_alone() -> None:
    broker = memory_broker(CONFIG)
    async with table_of(broker, 1, leader=OWN) as (table, told):
        host = table.by_id[TOPIC_ID, 0]
        lead_alone(host, Durability.REPLICATED)
        heal = fill(broker)
        (outcome,) = produce(host)
        assert outcome.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "No space left" in outcome.message
        assert host.is_leader
        heal()
        await until(lambda: told == [True, False])
        (outcome,) = produce(host)
        assert (outcome.error, outcome.base_offset) == (ErrorCode.NONE, 0)


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_a_write_that_is_refused_fails_its_producer_alone(acks: int) -> None:
    broker = memory_broker(CONFIG)
    async with table_of(broker, 1, leader=OWN) as (table, told):
        host = table.by_id[TOPIC_ID, 0]
        lead_alone(host, Durability.REPLICATED)
        heal = refuse(broker, "write")
        (outcome,) = produce(host, acks=acks)
        assert outcome.error is ErrorCode.KAFKA_STORAGE_ERROR
        heal()
        (outcome,) = produce(host, acks=acks)
        assert outcome.error is ErrorCode.NONE
        assert (host.log.log_end_offset, host.is_leader) == (1, True)
        assert (told, table.offline_reason) == ([], "")


class Watched(FullDisk):
    """Records the pause before each attempt."""

    made: list[Watched]

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.pauses_s: list[float] = []
        Watched.made = [self]

    async def _remake_broken(self) -> None:
        self.pauses_s.append(self._pause_s)
        await super()._remake_broken()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_table, "FullDisk", Watched)
    monkeypatch.setattr(full_disk, "_PAUSE_S_MIN", 0.001)
    monkeypatch.setattr(full_disk, "_PAUSE_S_MAX", 0.004)


@pytest.mark.usefixtures("short_pauses")
async def test_a_replica_whose_cut_was_refused_is_opened_again_after_pauses_that_double() -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    broker.append(2)
    broker.checkpoint()
    async with table_of(broker, 1) as (table, told):
        host = table.by_id[TOPIC_ID, 0]
        heal = refuse(broker, "open")
        host._truncate_to(fx.TruncateTo(end_offset=Offset(3)))
        (watched,) = Watched.made
        await until(lambda: len(watched.pauses_s) >= 5)
        assert host.replica.role is Role.FAILED
        assert watched.pauses_s[:5] == [0.001, 0.002, 0.004, 0.004, 0.004]
        heal()
        await until(lambda: table.by_id[TOPIC_ID, 0] is not host)
        again = table.by_id[TOPIC_ID, 0]
        assert again.replica.role is Role.FOLLOWER
        assert again.log.is_intact
        await until(lambda: watched._pause_s == 0.001)
        assert (told, table.offline_reason) == ([], ""), "the controller is not told"
        attempts = len(watched.pauses_s)
        await asyncio.sleep(0.01)
        assert len(watched.pauses_s) == attempts, "nothing is left to be tried"


@pytest.mark.usefixtures("short_pauses")
async def test_a_disk_that_fails_while_a_replica_is_opened_again_takes_the_directory_offline() -> (
    None
):
    broker, reasons = memory_broker(CONFIG), list[str]()
    broker.append(3)
    broker.append(2)
    broker.checkpoint()
    async with table_of(broker, 1, on_offline=reasons.append) as (table, _):
        host = table.by_id[TOPIC_ID, 0]
        refuse(broker, "open")
        host._truncate_to(fx.TruncateTo(end_offset=Offset(3)))
        await until(lambda: host.is_failed)
        refuse(broker, "open", "read", error=errno.EIO)
        await until(lambda: bool(reasons))
        assert "refused by the test" in table.offline_reason
        with pytest.raises(StorageFailed):
            broker.directory.health.check()


@pytest.mark.usefixtures("short_pauses")
async def test_a_disk_that_fills_up_before_the_next_attempt_is_left_alone_until_it_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full_disk, "_LOOK_INTERVAL_S", 0.001)
    broker = memory_broker(CONFIG)
    broker.append(3)
    broker.append(2)
    broker.checkpoint()
    async with table_of(broker, 1) as (table, told):
        host, health = table.by_id[TOPIC_ID, 0], broker.directory.health
        noticed, heals = health.on_refused, list[Callable[[], None]]()
        assert noticed is not None

        def refused_and_then_full(refused: StorageRefused) -> None:
            noticed(refused)
            heals.append(fill(broker))
            health.fail_to_write("writing", OSError(errno.ENOSPC, "No space left on device"))

        health.on_refused = refused_and_then_full
        refuse(broker, "open")
        host._truncate_to(fx.TruncateTo(end_offset=Offset(3)))
        (watched,) = Watched.made
        await until(lambda: told == [True])
        await asyncio.sleep(0.01)
        assert watched.pauses_s == []
        heals[0]()
        await until(lambda: told == [True, False])
        assert table.by_id[TOPIC_ID, 0].replica.role is Role.FOLLOWER

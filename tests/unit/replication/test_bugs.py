"""An internal error ends only the partition in which it happens; the other partitions of the
directory stay online (rule 9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_broker.log.log_jobs import SyncJob
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.partition import events as ev
from odradek_broker.partition.effects import Role
from odradek_broker.partition.followers import FollowerProgress
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_table import BROKEN_MAX, PartitionTable
from odradek_broker.replication.streams.leader_stream import LeaderStream
from odradek_protocol.identity import BrokerEpoch, LeaderEpoch, Offset, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.log.material import TOPIC_ID, batch, memory_broker
from tests.unit.replication.memory_table import CONFIG, OTHER, OWN, table_of

SESSION = ev.FollowerSession(broker_id=OTHER, broker_epoch=BrokerEpoch(0), session_id=1)
Told = list[tuple[TopicIdPartition, ...]]


def produce(host: PartitionHost, *, acks: int = 1) -> list[ErrorCode]:
    """Produce a record, and return the outcome once there is one."""
    outcomes: list[ErrorCode] = []

    def done(outcome: ProduceOutcome) -> None:
        outcomes.append(outcome.error)

    host.produce(batch(0), acks=acks, timeout_ms=60_000, on_done=done)
    return outcomes


def bug(*_: Any, **__: Any) -> Any:
    raise AssertionError("log at 7, not at 5")


def assert_ended_alone(table: PartitionTable, told: Told) -> None:
    """Assert that the first partition has failed and clients and controller know it, while the second one serves."""
    broken, sound = table.by_id[TOPIC_ID, 0], table.by_id[TOPIC_ID, 1]
    assert broken.replica.role is Role.FAILED
    assert told[-1] == (broken.partition,), "the controller lets another lead"
    assert table.counters.partition_bugs == 1
    assert produce(broken) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert (table.offline_reason, table.storage_problem) == ("", "")
    assert produce(sound) == [ErrorCode.NONE]


def in_an_append(table: PartitionTable, patch: pytest.MonkeyPatch) -> None:
    with patch.context() as planted:
        planted.setattr(PartitionLog, "append", bug)
        assert produce(table.by_id[TOPIC_ID, 0]) == [ErrorCode.KAFKA_STORAGE_ERROR]


def in_the_core(table: PartitionTable, patch: pytest.MonkeyPatch) -> None:
    host = table.by_id[TOPIC_ID, 0]
    with patch.context() as planted:
        planted.setattr(FollowerProgress, "excuse", bug)
        host.step(ev.LeaderStalled(stall_ms=600))


def in_a_sync(table: PartitionTable, patch: pytest.MonkeyPatch) -> None:
    host = table.by_id[TOPIC_ID, 0]
    assert produce(host) == [ErrorCode.NONE]
    with patch.context() as planted:
        planted.setattr(SyncJob, "_work", bug)
        job = host.log.begin_sync()
        assert job is not None
        job.run()
    with host.guard():
        host.log.finish(job)


def in_retention(table: PartitionTable, patch: pytest.MonkeyPatch) -> None:
    host = table.by_id[TOPIC_ID, 0]
    original = PartitionLog.apply_retention

    def apply_retention(self: PartitionLog, **times: int) -> int:
        return bug() if self is host.log else original(self, **times)

    with patch.context() as planted:
        planted.setattr(PartitionLog, "apply_retention", apply_retention)
        list(table.apply_retention(wall_ms=table.clock.wall_ms()))
        list(table.apply_retention(wall_ms=table.clock.wall_ms()))


def in_a_read_for_a_follower(table: PartitionTable, patch: pytest.MonkeyPatch) -> None:
    stream = LeaderStream(
        SESSION,
        shared=table,
        credit_bytes=1 << 20,
        partition_bytes_max=1 << 20,
        message_bytes_max=1 << 20,
    )
    table.leader_streams[SESSION] = stream
    for index in (0, 1):
        host = table.by_id[TOPIC_ID, index]
        host.step(
            ev.AttachReceived(
                session=SESSION,
                attach_seq=1,
                leader_epoch=LeaderEpoch(0),
                log_end=Offset(0),
                last_epoch=LeaderEpoch(-1),
                log_start=Offset(0),
            )
        )
        assert produce(host) == [ErrorCode.NONE]
    original = PartitionLog.plan_read
    log = table.by_id[TOPIC_ID, 0].log

    def plan_read(self: PartitionLog, *args: Any, **named: Any) -> Any:
        return bug() if self is log else original(self, *args, **named)

    with patch.context() as planted:
        planted.setattr(PartitionLog, "plan_read", plan_read)
        message = stream._build()
    assert message is not None
    assert batch(0, count=1)[-20:] in message, "the other partition's records are on their way"


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "meet", [in_an_append, in_the_core, in_a_sync, in_retention, in_a_read_for_a_follower]
)
async def test_a_bug_ends_its_partition_and_no_other(
    meet: Callable[[PartitionTable, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Told = []
    async with table_of(memory_broker(CONFIG), 2, leader=OWN, on_broken=told.append) as (table, _):
        meet(table, monkeypatch)
        assert_ended_alone(table, told)


@pytest.mark.interpreted
async def test_who_waits_for_a_partition_that_a_bug_ends_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: Told = []
    async with table_of(memory_broker(CONFIG), 2, leader=OWN, on_broken=told.append) as (table, _):
        waits = produce(table.by_id[TOPIC_ID, 0], acks=-1)
        assert waits == []
        in_the_core(table, monkeypatch)
        assert waits == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert_ended_alone(table, told)


@pytest.mark.interpreted
async def test_a_bug_is_logged_with_partition_and_values(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with table_of(memory_broker(CONFIG), 2, leader=OWN, on_broken=lambda _: None) as (
        table,
        _,
    ):
        assert produce(table.by_id[TOPIC_ID, 0]) == [ErrorCode.NONE]
        in_the_core(table, monkeypatch)
    (record,) = (r for r in caplog.records if r.levelname == "ERROR")
    assert record.exc_info is not None
    assert repr(record.exc_info[1]) == "AssertionError('log at 7, not at 5')"
    assert record.odradek_fields == {  # type: ignore[attr-defined]
        "partition": "flights-0",
        "role": "leader",
        "leader_epoch": 0,
        "log_start_offset": 0,
        "high_watermark": 0,
        "log_end_offset": 1,
        "stored_end_offset": 1,
    }


@pytest.mark.interpreted
async def test_after_a_bug_the_next_start_reads_the_log_as_after_a_kill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = memory_broker(CONFIG)
    async with table_of(broker, 2, leader=OWN, on_broken=lambda _: None) as (table, _):
        assert produce(table.by_id[TOPIC_ID, 0]) == [ErrorCode.NONE]
        in_the_core(table, monkeypatch)
    broker.stop_and_start()
    assert broker.restart_class is RestartClass.PROCESS
    assert broker.log.log_end_offset == 1, "what was appended is there"


@pytest.mark.interpreted
async def test_a_replica_that_is_moved_away_is_no_longer_told_as_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: Told = []
    async with table_of(memory_broker(CONFIG), 2, leader=OWN, on_broken=told.append) as (table, _):
        in_the_core(table, monkeypatch)
        host = table.by_id[TOPIC_ID, 0]
        table._leave([(host.partition.topic_id, host.partition.partition)], None)
        assert told == [(host.partition,), ()]


async def test_a_bug_in_late_work_for_a_replica_that_is_gone_is_told_to_nobody() -> None:
    """The controller does not know that replica any more, so the report would never be
    withdrawn.
    """
    told: Told = []
    async with table_of(memory_broker(CONFIG), 2, leader=OWN, on_broken=told.append) as (table, _):
        host = table.by_id[TOPIC_ID, 0]
        table._leave([(host.partition.topic_id, host.partition.partition)], None)
        with host.guard():
            raise AssertionError("what a thread found when it was done")
        assert told == []


async def test_a_failed_write_still_takes_the_directory_offline() -> None:
    offline: list[str] = []
    broker = memory_broker(CONFIG)
    async with table_of(broker, 2, leader=OWN, on_offline=offline.append) as (table, _):
        broker.storage.fault = lambda operation, path: 0  # type: ignore[attr-defined]
        assert produce(table.by_id[TOPIC_ID, 0]) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert len(offline) == 1
        broker.storage.fault = None  # type: ignore[attr-defined]
        assert produce(table.by_id[TOPIC_ID, 1]) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert table.counters.partition_bugs == 0


@pytest.mark.interpreted
async def test_what_ends_too_many_partitions_takes_the_directory_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offline: list[str] = []
    told: Told = []
    async with table_of(
        memory_broker(CONFIG),
        BROKEN_MAX + 1,
        leader=OWN,
        on_offline=offline.append,
        on_broken=told.append,
    ) as (table, _):
        monkeypatch.setattr(FollowerProgress, "excuse", bug)
        for host in list(table.by_id.values()):
            host.step(ev.LeaderStalled(stall_ms=600))
        assert len(told[-1]) == BROKEN_MAX
        (reason,) = offline
        assert f"{BROKEN_MAX + 1} replicas failed on internal errors" in reason

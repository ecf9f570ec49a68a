"""Every system call fails once: no lost record is acknowledged, and the next process recovers the right state."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import DiskFile, LogDamaged, StorageFailed, StorageFull, write_all
from odradek_protocol.identity import (
    BrokerEpoch,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
)
from tests.unit.log.material import PARTITION, TOPIC, TOPIC_ID, Broker, batch, memory_broker
from tests.worlds.memory_storage import MemoryStorage

CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=100, file_delete_delay_ms=0)


class History:
    """The responses that a client and a follower got while the disk was failing."""

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        self.durable_end = 0
        self.failure: StorageFailed | None = None

    def act(self, broker: Broker) -> None:
        """Run appends, rolls, syncs, epochs, a truncation, retention and checkpoints."""
        log = broker.log
        for number in range(12):
            data = broker.append(3, value_bytes=40, leader_epoch=number // 4)
            self.appended.append(data)
            if number % 3 == 1:
                broker.sync()
                self.durable_end = log.durable_end_offset
            if number % 5 == 4:
                broker.checkpoint()
                self.durable_end = log.durable_end_offset
        log.set_high_watermark(Offset(30))
        log.truncate_to(Offset(33))
        self.appended = self.appended[:11]
        self.durable_end = min(self.durable_end, 33)
        log.assign_epoch(LeaderEpoch(9))
        log.advance_log_start(Offset(9))
        log.apply_retention(now_ms=0)
        broker.remove_files(now_ms=0)
        broker.sync(full=True)
        self.durable_end = log.durable_end_offset


def reopen(broker: Broker) -> PartitionLog:
    """Open the log again, from its files."""
    loaded = broker.directory.recover(broker.log)
    assert loaded is not None
    return broker.directory.replace(broker.log, loaded)


def failing(storage: MemoryStorage, number: int, code: int, kind: str) -> Callable[..., int | None]:
    """Make operation `number` fail, and all of its type from then on (or only this one)."""
    first = storage.operations + number
    state = {"kind": ""}

    def fault(operation: str, path: Path) -> int | None:
        if operation in ("read", "open"):
            return None
        if storage.operations == first:
            state["kind"] = operation
            if kind == "short" and operation == "write":
                return 1
            raise OSError(code, "injected", str(path))
        if kind == "lasting" and operation == state["kind"]:
            raise OSError(code, "injected", str(path))
        if kind == "short" and state["kind"] == "write" and storage.operations == first + 1:
            raise OSError(code, "injected", str(path))
        return None

    return fault


@pytest.mark.parametrize("kind", ["once", "lasting", "short"])
@pytest.mark.parametrize("after", ["kill", "power"])
def test_a_failure_of_any_call_takes_the_directory_offline_and_loses_nothing_synced(
    kind: str, after: str
) -> None:
    number = 0
    failed = 0
    while True:
        number += 1
        broker = memory_broker(CONFIG)
        broker.checkpoint()
        storage = broker.storage
        assert isinstance(storage, MemoryStorage)
        told: list[StorageFailed] = []
        broker.directory.on_failure = told.append
        history = History()
        first = storage.operations + number
        storage.fault = failing(storage, number, errno.EIO, kind)
        try:
            history.act(broker)
        except StorageFailed as failure:
            history.failure = failure
        storage.fault = None
        if storage.operations < first:
            break  # the history has fewer operations than that
        if history.failure is None and broker.directory.failure is None:
            continue  # a file that was not needed any more could not be removed
        failed += 1
        assert broker.directory.failure is not None, number
        assert told == [broker.directory.failure], number
        assert str(broker.directory.path) in str(broker.directory.failure), "it names the place"
        with pytest.raises(StorageFailed):
            broker.append()
        with pytest.raises(StorageFailed):
            broker.log.begin_sync()
        if after == "kill":
            broker.kill_and_start()
        else:
            broker.lose_power_and_start(Random(number))
        assert broker.restart_class is RestartClass.POWER, number
        end = broker.log.log_end_offset
        assert end >= history.durable_end, (number, end, history.durable_end)
        everything = b"".join(history.appended)
        found = broker.read_all()
        assert found in everything, number
        broker.append(2)  # and life goes on
        assert broker.log.log_end_offset == end + 2
    assert failed > 60, f"only {failed} operations failed"


def no_room(storage: MemoryStorage, number: int, kind: str) -> Callable[..., int | None]:
    """Let the disk have no space from the write or creation `number` on; if `kind` is short, the
    first write omits one byte."""
    state = {"left": number}

    def fault(operation: str, path: Path) -> int | None:
        if operation not in ("write", "create"):
            return None
        state["left"] -= 1
        if state["left"] == 0 and operation == "write" and kind == "short":
            return 1
        if state["left"] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return None

    return fault


@pytest.mark.parametrize("kind", ["whole", "short"])
def test_a_disk_that_is_full_at_any_write_loses_nothing_and_is_written_again_when_it_has_room(
    kind: str,
) -> None:
    number, full = 0, 0
    while True:
        number += 1
        broker = memory_broker(CONFIG)
        broker.checkpoint()
        storage, health = broker.storage, broker.directory.health
        assert isinstance(storage, MemoryStorage)
        told: list[StorageFull] = []
        health.on_full = told.append
        history = History()
        storage.fault = no_room(storage, number, kind)
        try:
            history.act(broker)
        except StorageFailed as failure:
            history.failure = failure
        if history.failure is None and health.full is None:
            break  # the history needs less room than that
        full += 1
        assert health.failure is None, number
        assert told == [health.full], number
        assert isinstance(history.failure, StorageFull | None), number
        with pytest.raises(StorageFull):
            broker.append()
        storage.fault = None
        health.has_room_again()
        if not broker.log.is_intact:
            reopen(broker)
        everything, found = b"".join(history.appended), broker.read_all()
        assert found in everything, number
        if history.failure is not None and len(history.appended) < 11:
            assert found == everything, number  # it was an append that had no room
        assert broker.log.durable_end_offset >= 0
        end = broker.log.log_end_offset
        after = broker.append(2)
        assert broker.log.log_end_offset == end + 2
        broker.sync(full=True)
        assert broker.log.durable_end_offset == end + 2
        broker.kill_and_start()
        assert broker.restart_class is RestartClass.PROCESS, number
        assert broker.report is not None
        assert not broker.report.power_loss, number
        assert broker.read_all() == found + after, number
    assert full > 30, f"only {full} writes found no room"


@pytest.mark.parametrize("kind", ["whole", "short"])
def test_an_append_that_had_room_for_its_first_segment_only_is_taken_back(kind: str) -> None:
    number = 0
    while True:
        number += 1
        broker = memory_broker(CONFIG)
        before = broker.append(3, value_bytes=40, leader_epoch=1)
        broker.checkpoint()
        storage, log = broker.storage, broker.log
        assert isinstance(storage, MemoryStorage)
        batches = [
            batch(log.log_end_offset + 3 * i, count=3, value_bytes=40, leader_epoch=1 + i)
            for i in range(5)
        ]
        storage.fault = no_room(storage, number, kind)
        try:
            log.append(b"".join(batches), now_ms=0)
            break
        except StorageFull:
            pass
        storage.fault = None
        broker.directory.health.has_room_again()
        if not log.is_intact:
            log = reopen(broker)
        assert broker.read_all() == before, number
        assert log.log_end_offset == 3
        assert log.epochs.latest == 1
        log.append(b"".join(batches), now_ms=0)
        broker.sync(full=True)
        broker.kill_and_start()
        assert broker.read_all() == before + b"".join(batches), number
        assert broker.report is not None
        assert not broker.report.power_loss
    assert number > 4


@pytest.mark.parametrize("number", range(1, 6))
def test_an_append_behind_a_gap_that_is_taken_back_leaves_the_gap_out_too(number: int) -> None:
    """A follower of a compacted leader has such gaps: its log end decides which records it is
    sent next."""
    broker = memory_broker(CONFIG)
    before = broker.append(3, value_bytes=40)
    broker.checkpoint()
    storage, log = broker.storage, broker.log
    assert isinstance(storage, MemoryStorage)
    whole = no_room(storage, number, "whole")
    storage.fault = lambda operation, path: (
        whole(operation, path) if path.suffix == ".log" else None
    )
    batches = b"".join(batch(10 + 3 * i, count=3, value_bytes=40) for i in range(9))
    with pytest.raises(StorageFull):
        log.append(batches, now_ms=0)
    storage.fault = None
    assert log.is_intact
    assert log.log_end_offset == 3
    assert broker.read_all() == before
    broker.directory.health.has_room_again()
    log.append(batches, now_ms=0)
    assert broker.read_all() == before + batches


def test_a_partition_is_made_once_there_is_room() -> None:
    broker = memory_broker(CONFIG)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    number = 0
    for number in range(1, 10):
        storage.fault = no_room(storage, number, "whole")
        try:
            broker.directory.create(
                TopicName("other"), TopicId(b"o" * 16), PartitionIndex(0), CONFIG
            )
            break
        except StorageFull:
            assert broker.directory.failure is None
            storage.fault = None
            broker.directory.health.has_room_again()
    assert number == 5, "a directory, its metadata and a segment take room"
    assert broker.directory.get(TopicId(b"o" * 16), PartitionIndex(0)) is not None


def no_room_for(storage: MemoryStorage, *names: str) -> None:
    """Let the disk have space, but not for these files."""

    def fault(operation: str, path: Path) -> None:
        if operation in ("write", "create", "rename") and path.name.endswith(names):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    storage.fault = fault


def killed(broker: Broker) -> MemoryStorage:
    assert isinstance(broker.storage, MemoryStorage)
    broker.storage.kill_process()
    return broker.storage


def test_logs_are_opened_though_their_indexes_find_no_room() -> None:
    broker = memory_broker(CONFIG)
    written = b"".join(broker.append(3, value_bytes=40) for _ in range(9))
    no_room_for(killed(broker), "index")
    broker.start()
    assert broker.restart_class is RestartClass.PROCESS
    assert broker.directory.failure is None
    assert broker.read_all(bytes_max=1) == written
    killed(broker)
    broker.start()
    assert broker.restart_class is RestartClass.PROCESS, "nothing was in doubt"
    broker.checkpoint()
    broker.kill_and_start()
    assert broker.read_all(bytes_max=1) == written


def test_a_start_that_finds_no_room_costs_no_place_among_the_replicas() -> None:
    broker = memory_broker(CONFIG)
    broker.storage.remove(broker.files(".log")[0])
    no_room_for(killed(broker), ".log")
    with pytest.raises(StorageFull):
        broker.start()
    killed(broker)
    broker.start()
    assert broker.restart_class is RestartClass.PROCESS


def test_a_stop_that_finds_no_room_for_its_marker_is_no_failure_of_the_disk() -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    no_room_for(storage, "clean.tmp")
    with pytest.raises(StorageFull):
        broker.directory.close(broker_epoch=BrokerEpoch(1))
    killed(broker)
    broker.start()
    assert broker.restart_class is RestartClass.PROCESS


def test_a_topic_is_deleted_though_its_new_name_finds_no_room() -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    directory, path = broker.directory, broker.log.directory
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    no_room_for(storage, path.name)
    directory.delete(TOPIC_ID, PARTITION)
    assert (directory.failure, directory.full) == (None, None)
    for gone in directory.take_removals():
        directory.remove_tree(gone)
    assert not storage.exists(path)
    assert directory.take_removals() == []
    storage.fault = None
    assert directory.create(TOPIC, TOPIC_ID, PARTITION, CONFIG).log_end_offset == 0


def test_a_sync_that_finds_no_room_is_a_failed_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def fdatasync(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fdatasync", fdatasync)
    with pytest.raises(OSError, match="sync failed") as raised:
        DiskFile(-1).datasync()
    assert raised.value.errno == errno.EIO


def test_reads_go_on_after_a_failed_write() -> None:
    broker = memory_broker(CONFIG)
    data = broker.append(3)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    storage.fault = failing(storage, 1, errno.ENOSPC, "lasting")
    with pytest.raises(StorageFailed, match="injected"):
        broker.append(3)
    assert broker.log.log_end_offset == 3
    assert broker.read_all() == data


def test_a_failed_sync_is_never_tried_again() -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    job = broker.log.begin_sync()
    assert job is not None
    storage.fault = failing(storage, 1, errno.EIO, "once")
    job.run()
    with pytest.raises(StorageFailed):
        broker.log.finish(job)
    assert broker.log.durable_end_offset == 0
    with pytest.raises(StorageFailed):
        broker.log.begin_sync()
    assert storage.handles == 2, "the job's descriptor must be given back"


def test_a_file_system_that_takes_single_bytes_is_written_to_all_the_same() -> None:
    storage = MemoryStorage()
    storage.fault = lambda operation, path: 1 if operation == "write" else None
    file = storage.open(Path("/x"), create=True)
    write_all(file, memoryview(b"segment"), 3)
    assert storage.read(Path("/x")) == b"\0\0\0segment"
    storage.fault = lambda operation, path: 0
    with pytest.raises(OSError, match="wrote no bytes"):
        write_all(file, b"segment", 0)


def test_a_read_error_takes_the_directory_offline() -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    broker.stop_and_start()
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)

    def fault(operation: str, path: Path) -> int | None:
        if operation in ("read", "open"):
            raise OSError(errno.EIO, "injected")
        return None

    storage.fault = fault
    with pytest.raises(StorageFailed):
        broker.read_all()
    assert broker.directory.failure is not None


def test_a_header_that_is_none_is_never_served() -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    broker.append(3)
    broker.stop_and_start()
    path = broker.files(".log")[0]
    file = broker.storage.open(path)
    file.pwrite(b"\xff" * 17, 0)
    file.close()
    with pytest.raises(LogDamaged, match="no batch"):
        broker.read_all()
    assert broker.directory.failure is None, "only the replica fails"


def test_an_error_on_the_marker_itself_still_makes_the_next_start_class_power() -> None:
    broker = memory_broker(CONFIG)
    broker.checkpoint()
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)

    def fault(operation: str, path: Path) -> int | None:
        if operation in ("write", "create", "rename"):
            raise OSError(errno.EIO, "injected")
        return None

    storage.fault = fault
    with pytest.raises(StorageFailed):
        broker.append(1)
    broker.kill_and_start()
    assert broker.restart_class is RestartClass.POWER


def test_a_flipped_bit_is_seen_by_a_verified_read_and_fails_the_replica_alone() -> None:
    broker = memory_broker(CONFIG)
    batches = [broker.append(3, value_bytes=10) for _ in range(3)]
    broker.stop_and_start()
    path = broker.files(".log")[0]
    file = broker.storage.open(path)
    at = len(batches[0]) + 90
    file.pwrite(bytes([file.pread(1, at)[0] ^ 4]), at)
    file.close()
    log, end = broker.log, Offset(9)
    plan = log.plan_read(Offset(0), bytes_max=1, end_offset=end, verify=True)
    assert not plan.is_hot, "checking takes time: not on the loop"
    assert plan.run().size_bytes == len(batches[0])
    plan = log.plan_read(Offset(0), bytes_max=1 << 20, end_offset=end, verify=True)
    with pytest.raises(LogDamaged, match="base offset 3"):
        plan.run()
    assert broker.directory.failure is None, "only the replica fails"


def test_a_bug_in_a_sync_is_no_sync() -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)

    def fault(operation: str, path: Path) -> int | None:
        assert (operation, path.suffix) != ("sync", ".log"), f"a bug at {path}"
        return None

    storage.fault = fault
    with pytest.raises(AssertionError, match="a bug at"):
        broker.sync()
    assert broker.log.durable_end_offset == 0
    assert broker.directory.failure is None, "it says nothing of the disk"
    storage.fault = None
    broker.kill_and_start()
    assert broker.restart_class is RestartClass.PROCESS

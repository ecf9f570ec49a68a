"""A storage whose logs keep fewer descriptors than there are logs."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.open_files import OpenFiles
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import DiskFile, DiskStorage, StorageFailed, StorageRefused
from odradek_protocol.identity import Offset, PartitionIndex, TopicId
from tests.unit.log.material import PARTITION, TOPIC, TOPIC_ID, Broker, batch, memory_broker
from tests.worlds.memory_storage import MemoryStorage

FILES_MAX = 5
LOGS = 3 * FILES_MAX
CONFIG = LogConfig(segment_bytes=400)


def all_of(steps: Generator[None, None, list[PartitionLog]]) -> list[PartitionLog]:
    """Return the result of a generator of steps."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return list(done.value)


def log_files(directory: Path) -> int:
    """Return how many descriptors of this process are log files in that directory."""
    paths = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            paths.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return sum(path.endswith(".log") and path.startswith(f"{directory}/") for path in paths)


def content(log: PartitionLog) -> bytes:
    """Read a whole log."""
    data = b""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.plan_read(offset, bytes_max=1 << 20, end_offset=log.log_end_offset).run()
        data += b"".join(read.slices)
        offset = read.end_offset
    return data


def test_more_logs_than_descriptors_are_written_read_and_recovered(tmp_path: Path) -> None:
    storage = DiskStorage()
    storage.open_files = OpenFiles(lambda: FILES_MAX)
    broker = Broker(storage, tmp_path / "data", CONFIG)
    logs = [
        broker.directory.create(TOPIC, TOPIC_ID, PartitionIndex(number), CONFIG)
        for number in range(1, LOGS)
    ]
    expected = dict.fromkeys(logs, b"")
    for turn in range(12):
        for log in logs:
            data = batch(turn, value_bytes=100)
            log.append(data, now_ms=turn, retain=False)
            expected[log] += data
            assert log_files(tmp_path) <= FILES_MAX
    assert logs[0].segment_count > 1
    for log in reversed(logs):
        assert content(log) == expected[log]
        assert log_files(tmp_path) <= FILES_MAX
    for log in logs:
        job = log.begin_sync(full=True)
        assert job is not None
        job.run()
        log.finish(job)
        assert log.durable_end_offset == log.log_end_offset
    logs[0].truncate_to(Offset(3))
    logs[0].append(batch(3, value_bytes=100), now_ms=20)
    assert log_files(tmp_path) <= FILES_MAX
    by_partition = {log.partition: data for log, data in expected.items() if log is not logs[0]}
    broker.directory.close(broker_epoch=None)
    assert (log_files(tmp_path), len(storage.open_files)) == (0, 0)
    broker.start()
    assert log_files(tmp_path) <= FILES_MAX
    for partition, data in by_partition.items():
        log_again = broker.directory.get(TOPIC_ID, partition)
        assert log_again is not None
        assert content(log_again) == data


def test_a_log_that_is_written_to_keeps_its_descriptor_longest(tmp_path: Path) -> None:
    opened: list[Path] = []

    class Noting(DiskStorage):
        def open(self, path: Path, *, create: bool = False) -> DiskFile:
            opened.append(path.parent)
            return super().open(path, create=create)

    storage = Noting()
    storage.open_files = OpenFiles(lambda: 2)
    broker = Broker(storage, tmp_path / "data", LogConfig())
    busy, *others = [
        broker.directory.create(TOPIC, TOPIC_ID, PartitionIndex(number), LogConfig())
        for number in range(1, 5)
    ]
    opened.clear()
    busy.append(batch(0), now_ms=0)
    for offset, log in enumerate(others, 1):
        busy.append(batch(offset), now_ms=0)
        log.append(batch(0), now_ms=0)
    assert opened.count(busy.directory) == 1
    assert all(opened.count(log.directory) == 1 for log in others)


_MANY = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.storage import DiskStorage
from odradek_protocol.identity import PartitionIndex
from tests.unit.log.material import TOPIC, TOPIC_ID, Broker, batch
config = LogConfig()
broker = Broker(DiskStorage(), Path(sys.argv[1]), config)
count = int(sys.argv[2])
logs = [broker.directory.create(TOPIC, TOPIC_ID, PartitionIndex(n), config) for n in range(1, count)]
for log in logs:
    log.append(batch(0), now_ms=0)
for log in logs:
    log.append(batch(1), now_ms=0)
broker.directory.close(broker_epoch=None)
broker.start()
assert [broker.directory.get(TOPIC_ID, log.partition).log_end_offset for log in logs] == [2] * len(logs)
print(len(logs))
"""


def test_a_process_holds_more_partitions_than_it_may_have_files_open(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _MANY, str(tmp_path / "data"), "1000"]
    run = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "999\n"


def two_logs() -> tuple[Broker, PartitionLog, PartitionLog]:
    """Return a broker with two logs of which one has a record that is not synced; one file may be open."""
    broker = memory_broker(LogConfig())
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    storage.log_files_max = 1
    second = broker.directory.create(TOPIC, TOPIC_ID, PartitionIndex(1), LogConfig())
    broker.append()
    return broker, broker.log, second


def test_no_descriptor_of_unsynced_bytes_is_closed_before_a_sync() -> None:
    broker, first, second = two_logs()
    second.append(batch(0), now_ms=0)
    assert len(broker.storage.open_files) == 1
    assert isinstance(broker.storage, MemoryStorage)
    broker.storage.fail_write_back(first.directory / "00000000000000000000.log")
    with contextlib.suppress(StorageFailed):
        broker.sync()
    durable_end = first.durable_end_offset
    broker.lose_power_and_start()
    assert broker.log.log_end_offset >= durable_end == 1


def test_the_sync_that_sees_an_error_of_writing_back_takes_the_directory_offline() -> None:
    broker, first, second = two_logs()
    assert isinstance(broker.storage, MemoryStorage)
    broker.storage.fail_write_back(first.directory / "00000000000000000000.log")
    with pytest.raises(StorageFailed, match="sync failed"):
        second.append(batch(0), now_ms=0)
    assert broker.directory.failure is not None
    with pytest.raises(StorageFailed):
        first.begin_sync()
    assert first.durable_end_offset == second.durable_end_offset == 0


def test_a_read_that_needs_the_descriptor_hides_no_error_of_writing_back() -> None:
    broker, first, second = two_logs()
    assert isinstance(broker.storage, MemoryStorage)
    second.append(batch(0), now_ms=0, retain=False)
    broker.sync_log(second)
    first.append(batch(1), now_ms=0)  # closes the file of the second one
    broker.storage.fail_write_back(first.directory / "00000000000000000000.log")
    read = second.plan_read(Offset(0), bytes_max=1, end_offset=Offset(2)).run()
    assert read.end_offset == 1
    assert broker.directory.failure is not None


def test_clean_files_give_way_when_the_process_has_no_descriptor_left() -> None:
    broker, first, second = two_logs()
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    storage.log_files_max = 10
    broker.sync()
    assert len(storage.open_files) == 1

    def no_descriptor(operation: str, path: Path) -> int | None:
        if operation == "open" and storage.handles > 1:  # the lock's
            raise OSError(errno.EMFILE, "Too many open files")
        return None

    storage.fault = no_descriptor
    second.append(batch(0), now_ms=0)
    assert len(storage.open_files) == 1
    with pytest.raises(StorageRefused, match="ulimit -n"):
        first.append(batch(1), now_ms=0)  # the only open file has unsynced bytes
    storage.fault = None
    first.append(batch(1), now_ms=0)
    assert broker.directory.failure is None


def test_a_deleted_log_opens_no_file_of_a_new_topic_of_that_name() -> None:
    broker, first, second = two_logs()
    second.append(batch(0), now_ms=0)  # closes the file of the first one
    first_segment = first._segments.active
    broker.directory.delete(TOPIC_ID, PARTITION)
    again = broker.directory.create(TOPIC, TopicId(bytes(16)), PARTITION, LogConfig())
    again.append(batch(0, value_bytes=100), now_ms=0, retain=False)
    with pytest.raises(FileNotFoundError):
        first_segment.file()


def test_logs_are_flushed_early_while_most_files_are_not_synced() -> None:
    broker, _, second = two_logs()
    assert isinstance(broker.storage, MemoryStorage)
    broker.storage.log_files_max = 4
    assert all_of(broker.directory.due_flushes(now_ms=0)) == []
    for number in range(2, 4):
        log = broker.directory.create(TOPIC, TOPIC_ID, PartitionIndex(number), LogConfig())
        log.append(batch(0), now_ms=0)
    assert broker.directory.is_crowded
    due = all_of(broker.directory.due_flushes(now_ms=0))
    assert len(due) == 3
    assert second not in due
    for log in due:
        broker.sync_log(log)
    assert not broker.directory.is_crowded
    assert all_of(broker.directory.due_flushes(now_ms=0)) == []

"""A deleted partition does not return, whatever its name is and whatever errors its removal has, and other
partitions are not affected.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import StorageFailed, StorageRefused
from odradek_protocol.identity import PartitionIndex, TopicId, TopicName
from tests.unit.log.material import PARTITION, SMALL, Broker, batch, memory_broker
from tests.worlds.memory_storage import Fault, MemoryStorage

LONGEST = TopicName("x" * 249)
LAST = PartitionIndex(99_999)
ID, NEXT_ID = TopicId(bytes([1] * 16)), TopicId(bytes([2] * 16))


class Killed(BaseException):
    """The process was killed at this point."""


def make(directory: LogDirectory, topic_id: TopicId = ID, *, records: int = 3) -> PartitionLog:
    log = directory.create(LONGEST, topic_id, LAST, SMALL)
    log.append(batch(0, count=records), now_ms=0)
    return log


def storage_of(broker: Broker) -> MemoryStorage:
    assert isinstance(broker.storage, MemoryStorage)
    return broker.storage


def killing(storage: MemoryStorage, operation: int) -> Fault:
    def kill(_operation: str, _path: Path) -> None:
        if storage.operations == operation:
            raise Killed

    return kill


def remove_all(directory: LogDirectory) -> None:
    for path in directory.take_removals():
        directory.remove_tree(path)


def partitions_on_disk(broker: Broker) -> list[str]:
    kept = (".lock", "running", "meta.properties", "checkpoint")
    return [n for n in broker.storage.names(broker.path) if not n.endswith(kept)]


def test_the_longest_name_with_the_last_partition_is_deleted_and_made_again() -> None:
    broker = memory_broker()
    directory = broker.directory
    log = make(directory)
    assert len(log.directory.name) == 255
    directory.delete(ID, LAST)
    assert directory.failure is None
    again = make(directory, NEXT_ID, records=2)
    (gone,) = directory.take_removals()
    assert len(gone.name) < 100
    directory.remove_tree(gone)
    broker.kill_and_start()
    assert broker.directory.get(ID, LAST) is None
    found = broker.directory.get(NEXT_ID, LAST)
    assert found is not None
    assert found.log_end_offset == again.log_end_offset == 2
    assert not broker.directory.take_removals()


def test_a_name_that_fits_no_file_refuses_its_partition_alone() -> None:
    broker = memory_broker()
    with pytest.raises(StorageRefused, match="too long"):
        broker.directory.create(LONGEST, ID, PartitionIndex(100_000), SMALL)
    assert (broker.directory.failure, broker.directory.full) == (None, None)
    assert broker.directory.get(ID, PartitionIndex(100_000)) is None
    broker.append(1)
    make(broker.directory)


@pytest.mark.parametrize("after", ["kill", "power"])
def test_a_kill_at_any_step_leaves_the_old_log_or_none_and_the_namesake_whole(after: str) -> None:
    """The process is killed at each step of the deletion, the removal of files, and the creation of
    a topic with the same name.
    """
    step = 0
    while True:
        step += 1
        broker = memory_broker()
        storage = storage_of(broker)
        broker.append(1)
        broker.sync()
        make(broker.directory)
        storage.sync_directory(broker.path)
        last = storage.operations + step
        is_over = True

        storage.fault = killing(storage, last)
        try:
            broker.directory.delete(ID, LAST)
            make(broker.directory, NEXT_ID)
            remove_all(broker.directory)
        except Killed:
            is_over = False
        storage.fault = None
        if after == "kill":
            broker.kill_and_start()
        else:
            broker.lose_power_and_start()
        directory = broker.directory
        old, new = directory.get(ID, LAST), directory.get(NEXT_ID, LAST)
        assert old is None or new is None, step
        assert broker.report is not None
        assert not broker.report.stray, (step, "an unfinished creation is nobody's data")
        if old is not None:
            assert old.log_end_offset in (0, 3), step
            directory.delete(ID, LAST)
        if new is None:
            make(directory, NEXT_ID)
        remove_all(directory)
        assert partitions_on_disk(broker) == ["flights-0", f"{LONGEST}-{LAST}"], step
        if is_over:
            break
    assert step > 5, "a deletion has more steps"


def test_a_removal_that_fails_is_tried_again_and_fails_nobody() -> None:
    broker = memory_broker()
    storage, directory = storage_of(broker), broker.directory
    make(directory)
    directory.delete(ID, LAST)

    def fault(operation: str, path: Path) -> None:
        if operation == "remove":
            raise OSError(errno.EIO, "Input/output error", str(path))

    storage.fault = fault
    (path,) = directory.take_removals()
    with pytest.raises(OSError, match="Input/output"):
        directory.remove_tree(path)
    assert directory.failure is None
    assert storage.exists(path)
    storage.fault = None
    remove_all(directory)
    assert partitions_on_disk(broker) == ["flights-0"]


@pytest.mark.parametrize("code", [errno.ENAMETOOLONG, errno.ENOSPC, errno.EMFILE, errno.EACCES])
def test_a_directory_that_cannot_be_renamed_is_removed_and_holds_up_only_its_namesake(
    code: int,
) -> None:
    broker = memory_broker()
    storage, directory = storage_of(broker), broker.directory
    make(directory)

    def fault(operation: str, path: Path) -> None:
        if operation == "rename" and path.name.startswith(LONGEST):
            raise OSError(code, "injected", str(path))

    storage.fault = fault
    directory.delete(ID, LAST)
    assert directory.failure is None
    assert directory.get(ID, LAST) is None
    with pytest.raises(StorageRefused, match="of another topic has this name"):
        make(directory, NEXT_ID)
    taken = directory.take_removals()
    assert taken, "it is removed under its old name"
    with pytest.raises(StorageRefused, match="of another topic has this name"):
        make(directory, NEXT_ID)
    assert not directory.take_removals(), "it is being removed: the namesake keeps away"
    for path in taken:
        directory.remove_tree(path)
    make(directory, NEXT_ID)
    assert broker.append(1)
    broker.kill_and_start()
    assert broker.directory.get(ID, LAST) is None
    assert broker.directory.get(NEXT_ID, LAST) is not None


def test_a_namesake_is_made_as_soon_as_the_old_directory_can_be_renamed() -> None:
    broker = memory_broker()
    storage, directory = storage_of(broker), broker.directory
    make(directory)
    refused = OSError(errno.EMFILE, "Too many open files")

    def fault(operation: str, _path: Path) -> None:
        if operation == "rename":
            raise refused

    storage.fault = fault
    directory.delete(ID, LAST)
    storage.fault = None
    make(directory, NEXT_ID)
    (path,) = directory.take_removals()
    assert path.name.startswith(ID.hex())
    assert storage.exists(path)


def test_a_rename_that_the_disk_fails_takes_it_offline() -> None:
    broker = memory_broker()
    make(broker.directory)

    def fault(operation: str, path: Path) -> None:
        if operation == "rename":
            raise OSError(errno.EIO, "Input/output error", str(path))

    storage_of(broker).fault = fault
    with pytest.raises(StorageFailed):
        broker.directory.delete(ID, LAST)
    assert broker.directory.failure is not None


def test_what_an_earlier_version_could_not_rename_is_a_log_like_any_other() -> None:
    """An earlier version went offline because of the name `<249 characters>-0.<hex>-delete`, and
    again at each start.
    """
    broker = memory_broker()
    make(broker.directory)
    broker.append(2)
    broker.sync()
    broker.directory.health.fail("deleting", OSError(errno.ENAMETOOLONG, "File name too long"))
    broker.storage.sync_directory(broker.path)
    broker.kill_and_start()
    assert broker.directory.get(ID, LAST) is not None
    broker.directory.delete(ID, LAST)
    remove_all(broker.directory)
    assert broker.directory.failure is None
    assert partitions_on_disk(broker) == ["flights-0"]
    assert broker.log.log_end_offset == 2


def test_directories_that_an_earlier_version_deleted_are_removed() -> None:
    broker = memory_broker()
    storage = storage_of(broker)
    storage.rename(broker.log.directory, broker.path / f"flights-0.{'a' * 32}-delete")
    broker.kill_and_start()
    remove_all(broker.directory)
    assert partitions_on_disk(broker) == []


@pytest.mark.parametrize("content", [b"", b"version: 0\n", None])
def test_an_unfinished_creation_is_removed_and_one_with_records_is_put_aside(
    content: bytes | None,
) -> None:
    broker = memory_broker()
    storage = storage_of(broker)
    for topic, records in (("empty", 0), ("full", 3)):
        name = TopicName((topic + "-" * 249)[:249])
        log = broker.directory.create(name, TopicId(topic.encode().ljust(16)), LAST, SMALL)
        if records:
            log.append(batch(0, count=records), now_ms=0)
        path = log.directory / "partition.metadata"
        storage.remove(path)
        if content is not None:
            storage.open(path, create=True).pwrite(content, 0)
    broker.kill_and_start()
    assert broker.report is not None
    (stray,) = broker.report.stray
    assert stray.startswith("full-")
    remove_all(broker.directory)
    assert sorted(partitions_on_disk(broker)) == sorted(["flights-0", stray])
    assert broker.directory.get(TopicId(b"full".ljust(16)), PARTITION) is None

"""A data directory: its lock and owner, the restart class, creating and deleting logs, and upkeep."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from odradek_broker.log.directory.checkpoints import decode_offsets, encode_offsets
from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_broker.log.log_config import Durability, LogConfig, TimestampKind
from odradek_broker.log.log_directory import DirectoryRefused, LogDirectory
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import DiskStorage
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    IncarnationId,
    MetadataIncarnationId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from tests.unit.log.material import (
    PARTITION,
    PATH,
    SMALL,
    TOPIC,
    TOPIC_ID,
    batch,
    memory_broker,
)
from tests.worlds.memory_storage import MemoryStorage

CLUSTER, NODE = ClusterId("weaving"), BrokerId(3)


def opened(path: Path, cluster: str = CLUSTER, node: int = NODE) -> LogDirectory:
    return LogDirectory.open(
        path,
        cluster_id=ClusterId(cluster),
        node_id=BrokerId(node),
        incarnation=IncarnationId(bytes(16)),
        storage=DiskStorage(),
        boot_id="boot",
    )


def formatted(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    LogDirectory.format(path, cluster_id=CLUSTER, node_id=NODE)
    return path


def test_a_held_directory_names_its_holder(tmp_path: Path) -> None:
    path = formatted(tmp_path)
    first = opened(path)
    with pytest.raises(DirectoryRefused, match=rf"{path} is in use by the process {os.getpid()}"):
        opened(path)
    first.close(broker_epoch=None)
    opened(path).close(broker_epoch=None)


@pytest.mark.parametrize(
    ("cluster", "node", "message"),
    [
        ("other", 3, "belongs to the cluster weaving, not to other"),
        ("weaving", 4, "belongs to node 3, not to node 4"),
    ],
)
def test_a_directory_of_somebody_else_is_refused_and_left_alone(
    tmp_path: Path, cluster: str, node: int, message: str
) -> None:
    path = formatted(tmp_path)
    opened(path).close(broker_epoch=BrokerEpoch(5))
    before = sorted(p.name for p in path.iterdir())
    with pytest.raises(DirectoryRefused, match=message):
        opened(path, cluster, node)
    with pytest.raises(DirectoryRefused, match=message):
        LogDirectory.format(path, cluster_id=ClusterId(cluster), node_id=BrokerId(node))
    assert sorted(p.name for p in path.iterdir()) == before
    again = opened(path)
    assert again.restart_class is RestartClass.CLEAN, "the refusal must not use the marker up"
    again.close(broker_epoch=None)


def test_what_was_never_formatted_says_how_to_format(tmp_path: Path) -> None:
    with pytest.raises(DirectoryRefused, match="does not exist: run `odradek storage format`"):
        opened(tmp_path / "nothing")
    with pytest.raises(DirectoryRefused, match=r"has no meta.properties: run `odradek storage"):
        opened(tmp_path)


@pytest.mark.parametrize("text", ["", "version=1\n", "version=2\ncluster.id=a\nnode.id=1\n"])
def test_a_damaged_meta_properties_is_named(tmp_path: Path, text: str) -> None:
    path = formatted(tmp_path)
    (path / "meta.properties").write_text(text)
    with pytest.raises(DirectoryRefused, match=r"meta.properties is damaged: "):
        opened(path)


def test_the_metadata_log_that_is_followed_is_remembered(tmp_path: Path) -> None:
    path = formatted(tmp_path)
    directory = opened(path)
    assert directory.metadata_incarnation_id is None
    directory.follow_metadata(MetadataIncarnationId(bytes(range(16))))
    directory.close(broker_epoch=None)
    again = opened(path)
    assert again.metadata_incarnation_id == bytes(range(16))
    again.close(broker_epoch=None)
    text = (path / "meta.properties").read_text()
    assert text.count("=") == 5, "the four lines that older programs read, and one that they ignore"
    (path / "meta.properties").write_text(text.replace("0e0f", "0e"))
    with pytest.raises(DirectoryRefused, match=r"meta.properties is damaged: "):
        opened(path)


def test_formatting_again_changes_nothing(tmp_path: Path) -> None:
    path = formatted(tmp_path)
    before = (path / "meta.properties").read_bytes()
    again = LogDirectory.format(path, cluster_id=CLUSTER, node_id=NODE)
    assert (path / "meta.properties").read_bytes() == before
    directory = opened(path)
    assert directory.directory_id == again
    directory.close(broker_epoch=None)


def test_the_restart_class_follows_from_what_was_left() -> None:
    broker = memory_broker()
    assert broker.restart_class is RestartClass.POWER, "a first start trusts nothing"
    broker.kill_and_start()
    assert broker.restart_class is RestartClass.PROCESS
    broker.stop_and_start()
    assert broker.restart_class is RestartClass.CLEAN
    assert broker.directory.previous_broker_epoch == 2
    broker.kill_and_start()
    assert broker.restart_class is RestartClass.PROCESS
    assert broker.directory.previous_broker_epoch == -1
    broker.boot_id = "another"
    broker.kill_and_start()
    assert broker.restart_class is RestartClass.POWER
    broker.lose_power_and_start()
    assert broker.restart_class is RestartClass.POWER


def test_a_copy_of_a_directory_vouches_only_for_what_was_synced(tmp_path: Path) -> None:
    """An operator restores a backup that was made while the broker was running."""
    path = formatted(tmp_path)
    killed = opened(path)
    killed.loss_reported()
    shutil.copytree(path, tmp_path / "backup")
    again = opened(tmp_path / "backup")
    assert again.restart_class is RestartClass.POWER
    again.loss_reported()
    os.rename(tmp_path / "backup", tmp_path / "moved")
    again._lock.close()  # type: ignore[union-attr]
    moved = opened(tmp_path / "moved")
    assert moved.restart_class is RestartClass.PROCESS, "a renamed directory is no copy"
    for directory in (killed, moved):
        directory.close(broker_epoch=None)


def test_the_lock_file_tells_a_copy_from_the_directory() -> None:
    broker = memory_broker()
    broker.storage.remove(PATH / ".lock")  # a copy has another one
    broker.kill_and_start()
    assert broker.restart_class is RestartClass.POWER


def test_a_marker_of_the_first_release_names_no_lock_file() -> None:
    broker = memory_broker()
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    marker = storage.inode(PATH / "running")
    content = json.loads(bytes(marker.data))
    del content["lock"]
    marker.data[:] = json.dumps(content).encode()
    broker.kill_and_start()
    assert broker.restart_class is RestartClass.PROCESS


def test_a_loss_that_nobody_was_told_of_outlives_a_kill() -> None:
    broker = memory_broker()
    broker.registers = False
    broker.lose_power_and_start()
    broker.kill_and_start()
    assert broker.restart_class is RestartClass.POWER, "killed before it could register"
    broker.directory.loss_reported()
    broker.kill_and_start()
    assert broker.restart_class is RestartClass.PROCESS


def test_a_clean_marker_is_written_last() -> None:
    broker = memory_broker()
    broker.append(3)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    stops = 0
    while True:
        broker = memory_broker()
        broker.checkpoint()
        broker.append(3)
        storage = broker.storage
        assert isinstance(storage, MemoryStorage)
        stop_at = storage.operations + stops

        def fault(
            operation: str, path: Path, s: MemoryStorage = storage, at: int = stop_at
        ) -> None:
            if s.operations > at:
                raise KeyboardInterrupt

        storage.fault = fault
        try:
            broker.directory.close(broker_epoch=BrokerEpoch(9))
            finished = True
        except KeyboardInterrupt:
            finished = False
        broker.lose_power_and_start()
        if broker.restart_class is RestartClass.CLEAN:
            assert broker.log.log_end_offset == 3, stops
            assert broker.directory.previous_broker_epoch == 9
        stops += 1
        if finished:
            break
    assert stops > 15
    assert broker.restart_class is RestartClass.CLEAN


def test_a_stop_syncs_what_an_unfinished_sync_left() -> None:
    broker = memory_broker()
    broker.checkpoint()
    broker.append(3)
    job = broker.log.begin_sync()
    assert job is not None
    broker.append(3)
    broker.directory.close(broker_epoch=BrokerEpoch(2))
    job.run()
    broker.lose_power_and_start()
    assert broker.restart_class is RestartClass.CLEAN
    assert broker.log.log_end_offset == 6


def test_a_stop_in_the_middle_of_a_cut_is_not_clean() -> None:
    broker = memory_broker()
    broker.append(3)
    broker.append(3)
    broker.log.begin_truncate(Offset(3)).run()
    broker.directory.close(broker_epoch=BrokerEpoch(2))
    broker.start()
    assert broker.restart_class is RestartClass.PROCESS
    assert broker.log.log_end_offset == 3


def test_a_deleted_partition_makes_room_for_its_namesake() -> None:
    broker = memory_broker()
    broker.append(5)
    broker.checkpoint()
    directory = broker.directory
    plan_job = broker.log.begin_sync(full=True)
    assert plan_job is None
    broker.append(1)
    job = broker.log.begin_sync(full=True)
    assert job is not None
    old = broker.log
    directory.delete(TOPIC_ID, PARTITION)
    directory.delete(TOPIC_ID, PARTITION)
    assert directory.get(TOPIC_ID, PARTITION) is None
    job.run()
    old.finish(job)
    assert directory.failure is None, "a job of a deleted partition fails nobody"
    other = TopicId(bytes(16 * [9]))
    log = directory.create(TOPIC, other, PARTITION, SMALL)
    assert log.log_end_offset == 0
    (gone,) = directory.take_removals()
    assert gone.name.startswith(f"{TOPIC_ID.hex()}-0."), "short, whatever the topic is called"
    assert gone.name.endswith("-delete")
    directory.remove_tree(gone)
    directory.remove_tree(gone)
    broker.storage.sync_directory(PATH)
    broker.kill_and_start()
    assert broker.directory.get(TOPIC_ID, PARTITION) is None
    found = broker.directory.get(other, PARTITION)
    assert found is not None
    assert found.log_end_offset == 0
    assert found.high_watermark == 0


def test_a_deletion_cut_short_is_finished_by_the_next_life() -> None:
    broker = memory_broker()
    broker.append(5)
    broker.directory.delete(TOPIC_ID, PARTITION)
    broker.kill_and_start()
    assert broker.directory.get(TOPIC_ID, PARTITION) is None
    assert len(broker.directory.take_removals()) == 1


def test_a_truncation_is_not_undone_by_a_checkpoint_gathered_before() -> None:
    broker = memory_broker()
    for _ in range(4):
        broker.append(5)
    broker.checkpoint()
    job = broker.directory.begin_checkpoint()
    broker.log.truncate_to(Offset(10))
    job.run()
    broker.directory.finish_checkpoint(job)
    text = broker.storage.read(PATH / "recovery-point-offset-checkpoint")
    assert decode_offsets(text) == {TopicIdPartition(TOPIC_ID, PARTITION): 10}


def due_flushes(directory: LogDirectory, *, now_ms: int) -> list[PartitionLog]:
    """Return the logs whose flush is due, as the upkeep takes them from the generator."""
    steps = directory.due_flushes(now_ms=now_ms)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            due: list[PartitionLog] = done.value
            return due


def test_flushes_are_due_by_bytes_and_by_age() -> None:
    broker = memory_broker(LogConfig(segment_bytes=1 << 30))
    directory = broker.directory
    log = broker.log
    assert due_flushes(directory, now_ms=10**9) == []
    broker.append(1)
    assert due_flushes(directory, now_ms=59_999) == []
    assert due_flushes(directory, now_ms=60_000) == [log]
    broker.sync(full=True)
    assert log.recovery_point == log.durable_end_offset == 1
    assert due_flushes(directory, now_ms=10**9) == []
    broker.append(1, value_bytes=64 << 20)
    assert due_flushes(directory, now_ms=1) == [log]
    job = log.begin_sync(full=True)
    assert job is not None
    assert log.begin_sync() is None, "one sync at a time"
    job.run()
    log.finish(job)
    assert log.unsynced_bytes == 0


def test_syncs_for_producers_do_not_put_off_the_flush() -> None:
    """The log of a topic with durability=fsync is always synced; its recovery point must advance nevertheless, or
    the log is never compacted and each restart scans it.
    """
    broker = memory_broker(LogConfig(segment_bytes=1 << 30))
    broker.append(1)
    broker.sync()
    assert broker.log.durable_end_offset == 1
    assert due_flushes(broker.directory, now_ms=60_000) == [broker.log]
    broker.sync(full=True)
    assert due_flushes(broker.directory, now_ms=10**9) == []


def test_what_is_appended_during_a_flush_is_not_old_at_once() -> None:
    broker = memory_broker(LogConfig(segment_bytes=1 << 30))
    log = broker.log
    log.append(batch(0), now_ms=1_000)
    job = log.begin_sync(full=True)
    assert job is not None
    log.append(batch(1), now_ms=61_000)
    job.run()
    log.finish(job)
    assert due_flushes(broker.directory, now_ms=62_000) == [], (
        "or a busy log is flushed every second"
    )
    assert due_flushes(broker.directory, now_ms=121_000) == [log]


def test_a_flush_that_a_cut_overtakes_is_due_again() -> None:
    broker = memory_broker(LogConfig(segment_bytes=1 << 30))
    log = broker.log
    log.append(batch(0), now_ms=1_000)
    log.append(batch(1), now_ms=1_000)
    job = log.begin_sync(full=True)
    assert job is not None
    log.truncate_to(Offset(1))
    job.run()
    log.finish(job)
    assert log.recovery_point == 0
    assert due_flushes(broker.directory, now_ms=60_000) == [log]


def test_all_logs_together_have_a_bound_and_the_neediest_go_first() -> None:
    broker = memory_broker(LogConfig(segment_bytes=1 << 30))
    assert isinstance(broker.storage, MemoryStorage)
    broker.storage.log_files_max = 100
    directory = broker.directory
    logs = []
    for number in range(4):
        topic_id = TopicId(bytes([number + 1]) * 16)
        log = directory.create(TopicName(f"t{number}"), topic_id, PARTITION, LogConfig())
        log.append(batch(0, value_bytes=(number + 1) << 20), now_ms=0)
        logs.append(log)
    assert due_flushes(directory, now_ms=1) == []
    directory.flush_total_bytes_max = 5 << 20
    assert due_flushes(directory, now_ms=1) == [logs[3], logs[2]]


def test_a_sync_covers_what_was_there_when_it_began() -> None:
    broker = memory_broker()
    broker.append(3)
    job = broker.log.begin_sync()
    assert job is not None
    broker.append(3)
    job.run()
    broker.log.finish(job)
    assert broker.log.durable_end_offset == 3
    broker.sync()
    assert broker.log.durable_end_offset == 6
    assert broker.log.recovery_point == 0, "a plain sync writes no indexes"


def test_a_sync_of_before_a_cut_says_nothing_of_what_came_after() -> None:
    broker = memory_broker()
    for _ in range(4):
        broker.append(5)
    job = broker.log.begin_sync(full=True)
    assert job is not None
    cut = broker.log.begin_truncate(Offset(5))
    cut.run()
    job.run()
    broker.log.finish(cut)
    broker.append(5)
    broker.append(5)
    broker.log.finish(job)
    assert broker.log.durable_end_offset <= 5
    assert broker.log.recovery_point <= 5
    broker.sync(full=True)
    assert broker.log.durable_end_offset == 15


def test_offset_checkpoints_are_kafkas_text_with_topic_ids() -> None:
    partition = TopicIdPartition(TopicId(bytes(range(16))), PartitionIndex(4))
    text = encode_offsets({partition: Offset(77)})
    assert text == b"0\n1\nAAECAwQFBgcICQoLDA0ODw 4 77\n"
    assert decode_offsets(text) == {partition: 77}


@pytest.mark.parametrize(
    "text",
    [b"", b"0\n", b"0\n1\n", b"1\n0\n", b"0\n1\nx 4 7\n", b"0\n2\nAAECAwQFBgcICQoLDA0ODw 4 7\n"],
)
def test_a_torn_offset_checkpoint_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decode_offsets(text)


def test_an_empty_cleanup_policy_neither_deletes_nor_compacts() -> None:
    config = LogConfig.from_topic_configs({"cleanup.policy": ""})
    assert (config.cleanup_delete, config.cleanup_compact) == (False, False)


def test_topic_configs_become_log_settings() -> None:
    config = LogConfig.from_topic_configs(
        {
            "segment.bytes": "1000",
            "cleanup.policy": "compact,delete",
            "durability": "fsync",
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": "2",
        },
        defaults=LogConfig(retention_ms=5),
    )
    assert config == LogConfig(
        segment_bytes=1000,
        cleanup_compact=True,
        cleanup_delete=True,
        durability=Durability.FSYNC,
        timestamp_kind=TimestampKind.LOG_APPEND_TIME,
        retention_ms=5,
    )
    for key, value in [("segment.bytes", "many"), ("cleanup.policy", "shred"), ("durability", "")]:
        with pytest.raises(ValueError, match=f"{key}={value!r} is not a valid value"):
            LogConfig.from_topic_configs({key: value})


@pytest.mark.parametrize(
    "content", [b"{}", b'{"broker_epoch": "7"}', b'{"broker_epoch": null}', b"7"]
)
def test_a_clean_marker_that_is_damaged_is_none(content: bytes) -> None:
    broker = memory_broker()
    broker.append(3)
    broker.directory.close(broker_epoch=BrokerEpoch(7))
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    storage.inode(broker.path / "clean").data[:] = content
    broker.start()
    assert broker.restart_class is RestartClass.POWER, "without another marker nothing is trusted"
    assert broker.directory.previous_broker_epoch == -1
    assert broker.log.log_end_offset == 3

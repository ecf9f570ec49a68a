"""Opening a partition's log after a crash, after disk damage, and with files that somebody changed
by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from odradek_broker.log.directory.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS
from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_broker.log.log_config import LogConfig
from odradek_protocol.identity import (
    BrokerEpoch,
    LeaderEpoch,
    Offset,
    ProducerId,
    TopicIdPartition,
)
from odradek_protocol.records.batch_header import MAGIC_AT
from odradek_protocol.records.control import ControlType, encode_marker
from tests.unit.log.material import PARTITION, TOPIC_ID, Broker, batch, memory_broker
from tests.worlds.memory_storage import MemoryStorage

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200)
US = TopicIdPartition(TOPIC_ID, PARTITION)

Damage = Callable[[bytes], bytes | None]
DAMAGES: dict[str, Damage] = {
    "lost": lambda content: None,
    "empty": lambda content: b"",
    "torn": lambda content: content[: len(content) * 2 // 3 | 1],  # within an entry
    "zeroed": lambda content: bytes(len(content)),
    "noise": lambda content: b"\x7f\xfe\x01" * (len(content) // 3 + 1),
    "too long": lambda content: content + b"\x01" * 17,
}


def damage(broker: Broker, path: Path, how: Damage) -> None:
    storage = broker.storage
    content = how(bytes(storage.read(path)))
    if content is None:
        storage.remove(path)
        return
    file = storage.open(path)
    file.truncate(0)
    file.pwrite(content, 0)
    file.close()


def history(broker: Broker) -> list[bytes]:
    """Return a log with three epochs, producers, an aborted transaction, several segments, and a checkpoint in
    between.
    """
    log = broker.log
    parts: list[bytes] = []

    def put(data: bytes) -> None:
        log.append(data, now_ms=0)
        parts.append(data)

    for number in range(20):
        put(batch(log.log_end_offset, count=3, leader_epoch=number // 8, value_bytes=60))
        put(
            batch(
                log.log_end_offset,
                count=2,
                leader_epoch=number // 8,
                producer_id=5,
                producer_epoch=1,
                base_sequence=2 * number,
                transactional=number in (6, 14),
            )
        )
        if number in (6, 14):
            put(
                encode_marker(
                    ControlType.ABORT,
                    producer_id=5,
                    producer_epoch=1,
                    coordinator_epoch=number,
                    timestamp_ms=9000,
                    base_offset=log.log_end_offset,
                    leader_epoch=number // 8,
                )
            )
        if number == 12:
            log.set_high_watermark(Offset(log.log_end_offset - 4))
            broker.checkpoint()
    return parts


def facts(broker: Broker) -> object:
    """Return everything that a reader, a follower or a producer can learn from the log."""
    log = broker.log
    return (
        log.log_end_offset,
        log.epochs.entries(),
        log.producers.entries(),
        log.aborted_transactions(Offset(0), log.log_end_offset),
        log.offset_for_timestamp(9000),
        log.max_timestamp_offset(),
        broker.read_all(),
    )


@pytest.mark.parametrize("how", list(DAMAGES))
@pytest.mark.parametrize(
    "suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint", ".txnindex"]
)
@pytest.mark.parametrize("restart", ["clean", "kill"])
def test_everything_beside_the_log_itself_can_be_made_again(
    suffix: str, how: str, restart: str
) -> None:
    if suffix == ".txnindex" and how in ("lost", "empty"):
        pytest.skip("whole entries that are gone cannot be missed: as in Kafka")
    broker = memory_broker(CONFIG)
    history(broker)
    before = facts(broker)
    assert len(broker.files(".log")) > 3
    if restart == "clean":
        broker.stop_and_start()
        assert facts(broker) == before
        broker.directory.close(broker_epoch=7)  # type: ignore[arg-type]
    for path in broker.files(suffix):
        damage(broker, path, DAMAGES[how])
    broker.kill_and_start()
    assert broker.restart_class is (
        RestartClass.CLEAN if restart == "clean" else RestartClass.PROCESS
    )
    assert broker.report is not None
    assert not broker.report.power_loss
    assert facts(broker) == before


@pytest.mark.parametrize("how", list(DAMAGES))
@pytest.mark.parametrize("name", [RECOVERY_POINTS, HIGH_WATERMARKS])
def test_without_a_checkpoint_everything_is_scanned_and_nothing_lost(name: str, how: str) -> None:
    broker = memory_broker(CONFIG)
    history(broker)
    before = facts(broker)
    damage(broker, broker.path / name, DAMAGES[how])
    broker.kill_and_start()
    assert facts(broker) == before
    assert broker.report is not None
    if name == RECOVERY_POINTS:
        assert broker.report.scanned_bytes == broker.log.size_bytes
    else:
        assert 0 < broker.report.scanned_bytes < broker.log.size_bytes
        assert broker.log.high_watermark == 0


def test_a_clean_restart_scans_nothing() -> None:
    broker = memory_broker(CONFIG)
    history(broker)
    before = facts(broker)
    broker.stop_and_start()
    assert broker.restart_class is RestartClass.CLEAN
    assert broker.directory.previous_broker_epoch == 1
    assert broker.report is not None
    assert broker.report.scanned_bytes == 0
    assert facts(broker) == before


def test_after_a_kill_only_what_is_past_the_recovery_point_is_read() -> None:
    broker = memory_broker(CONFIG)
    history(broker)
    size = broker.log.size_bytes
    broker.checkpoint()
    tail = b"".join(broker.append(2, leader_epoch=2) for _ in range(3))
    broker.kill_and_start()
    assert broker.report is not None
    assert broker.report.scanned_bytes == len(tail)
    assert broker.log.size_bytes == size + len(tail)
    assert broker.log.recovery_point < broker.log.log_end_offset
    assert broker.log.durable_end_offset == broker.log.recovery_point


def flip(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]


@pytest.mark.parametrize("position_in_batch", [3, 9, 16, 18, 22, 30, 60, 75])
def test_the_log_ends_before_the_first_batch_with_a_wrong_bit(position_in_batch: int) -> None:
    broker = memory_broker(CONFIG)
    batches = [broker.append(2, value_bytes=50) for _ in range(3)]
    at = len(batches[0]) + position_in_batch
    damage(broker, broker.files(".log")[0], lambda content: flip(content, at))
    broker.kill_and_start()
    assert broker.read_all() == batches[0]
    assert broker.log.log_end_offset == 2
    assert broker.files(".log")[0].name == "00000000000000000000.log"
    assert broker.storage.size_bytes(broker.files(".log")[0]) == len(batches[0])


@pytest.mark.parametrize("position_in_batch", [3, 16, 18, 22, 30, 60, 75])
def test_damage_is_told_from_a_torn_write(position_in_batch: int) -> None:
    """A killed process tears only its last write: a complete batch with a wrong CRC was damaged by the disk."""
    broker = memory_broker(CONFIG)
    batches = [broker.append(2, value_bytes=50) for _ in range(3)]
    at = len(batches[0]) + position_in_batch
    path = broker.files(".log")[0]
    damage(broker, path, lambda content: flip(content, at))
    broker.kill_and_start()
    assert broker.report is not None
    assert broker.report.power_loss == (US,), "the controller is told, as of lost bytes"
    (told,) = broker.report.damage
    dropped = len(batches[1]) + len(batches[2])
    assert f"{path} is damaged at byte {len(batches[0])}; {dropped} bytes" in told
    broker.kill_and_start()
    assert broker.report.power_loss == (US,), "until a registration told of it"


@pytest.mark.parametrize("left", [1, 11, 12, 40, -1])
def test_a_torn_write_is_no_damage(left: int) -> None:
    broker = memory_broker(CONFIG)
    first, second = (broker.append(2, value_bytes=50) for _ in range(2))
    end = len(first) + (left if left > 0 else len(second) + left)
    damage(broker, broker.files(".log")[0], lambda content: content[:end])
    broker.kill_and_start()
    assert broker.report is not None
    assert (broker.report.power_loss, broker.report.damage) == ((), ())
    assert broker.read_all() == first


def test_a_cut_removes_the_segments_behind_it_and_is_told() -> None:
    broker = memory_broker(CONFIG)
    history(broker)
    broker.checkpoint()
    paths = broker.files(".log")
    damage(broker, paths[1], lambda content: content[:-1])
    broker.kill_and_start()
    assert [path.name for path in broker.files(".log")] == [path.name for path in paths[:2]]
    assert broker.report is not None
    assert broker.report.power_loss == (US,)
    assert broker.report.cut_bytes > 0
    assert broker.log.epochs.entries()[-1][1] < broker.log.log_end_offset
    broker.append(3, leader_epoch=5)
    broker.kill_and_start()
    assert broker.report.power_loss == (US,), "until a registration told of it"
    assert broker.log.epochs.latest == 5, "what replaced the lost bytes was not synced: read it"
    broker.checkpoint()
    broker.kill_and_start()
    assert broker.report.power_loss == ()


def test_a_cut_above_what_was_vouched_for_is_no_loss() -> None:
    broker = memory_broker(CONFIG)
    history(broker)
    broker.checkpoint()
    broker.append(2, leader_epoch=2)
    damage(broker, broker.files(".log")[-1], lambda content: content[:-1])
    broker.kill_and_start()
    assert broker.report is not None
    assert broker.report.power_loss == ()
    assert broker.report.cut_bytes > 0


def test_a_partition_that_vanished_is_told() -> None:
    broker = memory_broker(CONFIG)
    history(broker)
    broker.checkpoint()
    broker.storage.remove_tree(broker.log.directory)
    broker.kill_and_start()
    assert broker.report is not None
    assert broker.report.power_loss == (US,)


def test_a_directory_of_nobody_is_put_aside() -> None:
    broker = memory_broker(CONFIG)
    history(broker)
    path = broker.log.directory
    broker.storage.remove(path / "partition.metadata")
    broker.kill_and_start()
    assert broker.report is not None
    (name,) = broker.report.stray
    assert name.startswith("flights-0.")
    assert name.endswith("-stray")
    assert broker.storage.exists(broker.path / name)
    assert broker.directory.get(TOPIC_ID, PARTITION) is None


def test_litter_is_removed() -> None:
    broker = memory_broker(CONFIG)
    data = broker.append(3)
    path = broker.log.directory
    for litter in (f"{9:020d}.log.cleaned", f"{9:020d}.log.deleted", f"{9:020d}.index", "a.tmp"):
        broker.storage.open(path / litter, create=True).close()
    broker.kill_and_start()
    assert broker.read_all() == data
    left = set(broker.storage.names(path))
    assert not {n for n in left if n.endswith((".cleaned", ".deleted", ".tmp"))}
    assert f"{9:020d}.index" not in left


def test_epochs_are_found_again_without_reading_every_header() -> None:
    broker = memory_broker(LogConfig(segment_bytes=1 << 20, index_interval_bytes=4096))
    for number in range(2000):
        epoch = (number > 700) + (number > 701) + (number >= 1500)
        broker.append(1, leader_epoch=epoch, value_bytes=3000)
    entries = broker.log.epochs.entries()
    assert entries == [(0, 0), (1, 701), (2, 702), (3, 1500)]
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.directory.close(broker_epoch=1)  # type: ignore[arg-type]
    broker.storage.remove(broker.log.directory / "leader-epoch-checkpoint")
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    reads = 0

    def count(operation: str, path: Path) -> None:
        nonlocal reads
        reads += operation == "read" and path.suffix == ".log"

    storage.kill_process()
    storage.fault = count
    broker.start()
    assert broker.log.epochs.entries() == entries
    assert reads < 200, f"{reads} reads; one of every window would be 750"


def test_an_unclean_restart_forgets_epochs_in_which_nothing_was_written() -> None:
    broker = memory_broker(CONFIG)
    broker.append(2, leader_epoch=3)
    broker.log.assign_epoch(LeaderEpoch(8))
    broker.checkpoint()
    assert broker.log.epochs.latest == 8
    broker.kill_and_start()
    assert broker.log.epochs.entries() == [(3, 0)]


def test_a_log_whose_records_were_all_deleted_stays_empty_after_an_unclean_restart() -> None:
    broker = memory_broker(CONFIG)
    broker.append(7, leader_epoch=3)
    broker.checkpoint()
    broker.log.set_high_watermark(Offset(7))
    broker.log.advance_log_start(Offset(7))
    broker.sync(full=True)  # the epochs are written, the checkpoint of log starts is not
    broker.kill_and_start()
    assert (broker.log.log_start_offset, broker.log.log_end_offset) == (7, 7)


def test_older_batches_of_a_producer_survive_a_restart() -> None:
    broker = memory_broker(CONFIG)
    log = broker.log
    for number in range(9):
        data = batch(
            log.log_end_offset,
            count=2,
            producer_id=5,
            producer_epoch=0,
            base_sequence=2 * number,
        )
        log.append(data, now_ms=0)
    log.set_high_watermark(log.log_end_offset)
    broker.stop_and_start()
    entry = broker.log.producers.entry(ProducerId(5))
    assert entry is not None
    assert [stored.base_sequence for stored in entry.batches] == [8, 10, 12, 14, 16]


def test_progress_is_told_while_opening() -> None:
    broker = memory_broker(CONFIG)
    broker.append()
    broker.directory.close(broker_epoch=None)
    seen: list[tuple[int, int]] = []
    directory = type(broker.directory).open(
        broker.path,
        cluster_id=broker.directory.cluster_id,
        node_id=1,  # type: ignore[arg-type]
        incarnation=bytes(16),  # type: ignore[arg-type]
        storage=broker.storage,
        boot_id="b",
    )
    directory.load(on_progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 1)]


def test_a_transaction_whose_marker_was_not_replicated_holds_readers_back_after_a_restart() -> None:
    broker = memory_broker(CONFIG)
    log = broker.log
    data = batch(0, count=3, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.append(data, now_ms=0)
    log.set_high_watermark(Offset(3))
    marker = encode_marker(
        ControlType.COMMIT,
        producer_id=5,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=1000,
        base_offset=3,
        leader_epoch=0,
    )
    log.append(marker, now_ms=0)
    assert log.last_stable_offset == 0
    broker.stop_and_start()
    assert broker.log.high_watermark == 3
    assert broker.log.last_stable_offset == 0
    broker.log.set_high_watermark(Offset(4))
    assert broker.log.last_stable_offset == 4


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_header_that_is_none_below_the_recovery_point_costs_what_follows_not_the_broker(
    is_clean: bool,
) -> None:
    broker = memory_broker(CONFIG)
    batches = history(broker)
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.sync(full=True)
    broker.checkpoint()
    if is_clean:
        broker.directory.close(broker_epoch=BrokerEpoch(1))
    for path in broker.files(".snapshot"):
        broker.storage.remove(path)  # so that all headers are read
    at = len(batches[0]) + MAGIC_AT
    damage(broker, broker.files(".log")[0], lambda content: flip(content, at))
    if is_clean:
        broker.start()
    else:
        broker.kill_and_start()
    assert broker.log.log_end_offset == 3, "it ends before the damage"
    assert broker.report is not None
    assert broker.report.power_loss == (US,), "its replicas are to restore it"
    (told,) = broker.report.damage
    assert f"is damaged at byte {len(batches[0])}" in told
    broker.append(1)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_gap_behind_an_empty_log_does_not_move_its_start(is_clean: bool) -> None:
    broker = memory_broker(CONFIG)
    broker.append(10)
    broker.log.set_high_watermark(Offset(10))
    broker.log.advance_log_start(Offset(10))
    broker.checkpoint()
    broker.kill_and_start()
    broker.log.append(batch(13), now_ms=0)  # a follower of a leader that was compacted
    broker.log.set_high_watermark(Offset(14))
    broker.checkpoint()
    if is_clean:
        broker.stop_and_start()
    else:
        broker.kill_and_start()
    assert broker.log.log_start_offset == 10, "who has read up to 10 goes on there"


def test_times_of_a_segment_that_ended_at_the_recovery_point_outlive_the_power() -> None:
    """The indexes of the segment were written while it was active, and not synced. A power loss may
    cut either one short, and recovery must still find the times.
    """
    broker = memory_broker(LogConfig(segment_bytes=700, index_interval_bytes=0))
    while broker.log.segment_count == 1:
        end = broker.log.log_end_offset
        broker.checkpoint()
        broker.append(1, timestamp_ms=5_000 if end == 2 else 1_000 + end, value_bytes=30)
    assert broker.log.recovery_point == end == broker.log._segments.bases[1]
    broker.sync()
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    for suffix, bytes_kept in ((".index", 1 << 20), (".timeindex", 12)):
        inode = storage.inode(broker.files(suffix)[0])
        del inode.data[bytes_kept:]
        inode.sync()
    broker.lose_power_and_start()
    assert broker.restart_class is RestartClass.POWER
    assert broker.log.log_end_offset == end + 1
    assert broker.log.offset_for_timestamp(2_000) == (5_000, 2, 0)


@pytest.mark.parametrize("has_checkpoint", [False, True], ids=["file", "checkpoint"])
@pytest.mark.parametrize("restart", ["stop_and_start", "kill_and_start", "lose_power_and_start"])
def test_a_record_survives_that_takes_the_offset_of_a_deleted_one_that_was_lost(
    restart: str, has_checkpoint: bool
) -> None:
    """Records are deleted, the disk loses the last of them, and a new record gets the same
    offset.
    """
    broker = memory_broker(CONFIG)
    broker.append(2)
    broker.sync(full=True)
    broker.append(1)
    broker.log.set_high_watermark(Offset(3))
    broker.log.advance_log_start(Offset(3))
    if has_checkpoint:
        broker.checkpoint()
    file = broker.storage.open(broker.files(".log")[-1])
    file.truncate(file.size_bytes() - 1)
    file.sync()
    file.close()
    broker.kill_and_start()
    assert broker.log.log_start_offset == broker.log.log_end_offset == 2
    data = broker.append(1)
    broker.sync(full=True)
    getattr(broker, restart)()
    assert broker.log.log_start_offset == 2
    assert broker.read_all() == data

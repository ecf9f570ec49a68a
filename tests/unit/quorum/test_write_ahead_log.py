"""Torn tails of the log are truncated and damage is refused, whichever pages a crash keeps."""

from __future__ import annotations

import random

import pytest

from odradek_metadata_quorum.errors import CorruptStorage
from odradek_metadata_quorum.storage.log_frame import (
    ENTRY,
    SEGMENT_HEADER,
    encode_frame,
    encode_record,
    is_segment,
)
from odradek_metadata_quorum.storage.write_ahead_log import WriteAheadLog
from tests.sim.quorum.simulated_disk import PowerCut, SimulatedDisk


def new_disk(seed: int = 0, *, page_bytes: int = 4096) -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(seed), page_bytes=page_bytes)
    WriteAheadLog.create(disk)
    disk.sync_directory()
    return disk


def open_log(disk: SimulatedDisk, *, segment_bytes_max: int = 1 << 20) -> WriteAheadLog:
    return WriteAheadLog(disk, segment_bytes_max=segment_bytes_max)


def append(log: WriteAheadLog, *, count: int = 1, size: int = 20, term: int = 1) -> None:
    """Append and sync one frame of `count` entries."""
    for _ in range(count):
        log.append(b"x" * size, log.last_index + 1, term)
    log.write(log.take())
    log.written()


def segments(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.names() if is_segment(name)]


def test_entries_come_back_as_they_were_written() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes_max=400)
    for number in range(40):
        append(log, count=1 + number % 3, size=number, term=1 + number // 10)
    log.truncate_from(50)
    append(log, count=2, term=9)
    assert len(segments(disk)) > 3
    assert open_log(disk).entries == log.entries


def test_a_trimmed_log_comes_back_from_its_first_kept_segment() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes_max=400)
    for _ in range(60):
        append(log)
    log.trim_to(40)
    log.remove_before(40)
    again = open_log(disk)
    assert again.first_index <= 40
    offset = 40 - again.first_index
    assert again.entries[offset + 1 :] == log.entries[1:]
    assert again.term_at(40) == 1


def test_a_cut_below_a_removed_segment_keeps_the_term_of_the_entry_before_it() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes_max=200)
    for _ in range(10):
        append(log, term=1)
    first = segments(disk)
    log.truncate_from(6)
    for _ in range(20):
        append(log, term=2)
    log.trim_to(9)
    log.remove_before(9)
    assert segments(disk)[0] not in first[:2]
    again = open_log(disk)
    assert [entry[1:] for entry in again.entries[-10:]] == [
        entry[1:] for entry in log.entries[-10:]
    ]


def test_a_reset_log_follows_the_snapshot_and_its_old_segments_are_gone() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes_max=300)
    for _ in range(30):
        append(log)
    log.reset(500, 7)
    append(log, term=8)
    assert len(segments(disk)) == 1
    again = open_log(disk)
    assert [entry[1:] for entry in again.entries] == [(500, 7), (501, 8)]


def test_a_legal_torn_write_is_cut_whichever_pages_made_it() -> None:
    """Frames take several pages; the last frame (or two, without a sync between them) was being
    written.
    """
    for seed in range(300):
        rng = random.Random(seed)
        disk = new_disk(seed, page_bytes=64)
        log = open_log(disk)
        for _ in range(rng.randint(0, 4)):
            append(log, count=rng.randint(1, 4), size=rng.randint(1, 200))
        synced = log.last_index
        name = segments(disk)[0]
        position = disk.size_of(name) - SEGMENT_HEADER.size
        file = disk.open(name)
        at = position
        for number in range(rng.randint(1, 2)):  # both frames say: durable up to `position`
            body = encode_record(ENTRY, synced + 1 + number, 1, b"y" * rng.randint(1, 300))
            frame = encode_frame(at, position, body)
            file.write(frame, SEGMENT_HEADER.size + at)
            at += len(frame)
        disk.crash()
        again = open_log(disk)
        assert synced <= again.last_index <= synced + 2, seed
        before = again.last_index
        append(again)
        assert open_log(disk).last_index == before + 1, seed


@pytest.mark.parametrize("size", [100, 3 << 20])
def test_a_damaged_frame_that_durable_ones_follow_refuses_to_start(size: int) -> None:
    """This holds for frames of any size: nothing after them may be truncated silently."""
    disk = new_disk()
    log = open_log(disk, segment_bytes_max=64 << 20)
    append(log)
    damaged_at = disk.size_of(segments(disk)[0])
    append(log, size=size)
    append(log)
    disk.corrupt(segments(disk)[0], damaged_at + 60)
    with pytest.raises(CorruptStorage, match="damaged at byte"):
        open_log(disk)


def test_damage_in_a_segment_that_another_follows_refuses_to_start() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes_max=300)
    for _ in range(12):
        append(log)
    first = segments(disk)[0]
    disk.corrupt(first, disk.size_of(first) - 3)
    with pytest.raises(CorruptStorage, match="another segment"):
        open_log(disk)


def test_a_damaged_header_of_the_last_segment_refuses_to_start() -> None:
    """The frames of this segment were durable.

    A crash while a segment is created leaves no complete frame in it.
    """
    disk = new_disk()
    log = open_log(disk, segment_bytes_max=300)
    for _ in range(12):
        append(log)
    disk.corrupt(segments(disk)[-1], 20)
    with pytest.raises(CorruptStorage, match="header is damaged"):
        open_log(disk)


def test_a_segment_that_a_crash_left_half_started_is_taken_away() -> None:
    for seed in range(200):
        disk = new_disk(seed, page_bytes=64)
        log = open_log(disk, segment_bytes_max=300)
        append(log, size=150)
        synced = log.last_index
        disk.interrupt_after = seed % 4
        with pytest.raises(PowerCut):
            append(log, size=250)
        disk.crash()
        again = open_log(disk)
        assert synced <= again.last_index <= synced + 1, seed
        append(again)
        assert open_log(disk).entries == again.entries, seed


def test_a_missing_segment_refuses_to_start() -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes_max=300)
    for _ in range(30):
        append(log)
    disk.remove(segments(disk)[1])
    with pytest.raises(CorruptStorage, match="ends at"):
        open_log(disk)


def test_what_a_truncation_overtook_is_not_called_synced() -> None:
    log = open_log(new_disk())
    append(log, count=10)
    log.append(b"a", 12, 1)
    write = log.take()  # under way with entry 12 when a new leader truncates from 9
    log.truncate_from(9)
    log.append(b"b", 9, 2)
    log.write(write)
    log.written()
    assert log.synced_index == 8
    log.write(log.take())
    log.written()
    assert log.synced_index == 9

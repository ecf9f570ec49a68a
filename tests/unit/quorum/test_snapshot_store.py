"""Only a complete and newer snapshot replaces the current one, and after a crash one of the two is
there.
"""

from __future__ import annotations

import random
import zlib

import pytest

from odradek_metadata_quorum.errors import CorruptStorage
from odradek_metadata_quorum.storage.snapshot_store import SnapshotId, SnapshotStore
from tests.sim.quorum.simulated_disk import PowerCut, SimulatedDisk


def new_disk(seed: int = 0) -> SimulatedDisk:
    return SimulatedDisk(random.Random(seed), page_bytes=64)


def identify(offset: int, data: bytes) -> SnapshotId:
    return SnapshotId(offset, 1, len(data), zlib.crc32(data))


def receive(store: SnapshotStore, snapshot: SnapshotId, data: bytes) -> bytes | None:
    store.begin_receiving(snapshot)
    for position in range(0, len(data), 100):
        store.receive(position, data[position : position + 100])
    return store.finish_receiving(snapshot)


def test_the_newest_snapshot_comes_back_and_older_files_are_gone() -> None:
    disk = new_disk()
    store = SnapshotStore(disk)
    store.write(10, 1, b"old" * 100)
    store.write(20, 2, b"new" * 100)
    again = SnapshotStore(disk)
    assert again.current is not None
    assert (again.current.offset, again.current.epoch) == (20, 2)
    assert again.read_current() == b"new" * 100
    assert len(disk.names()) == 1


def test_what_a_killed_life_left_is_removed_at_the_next_start() -> None:
    disk = new_disk()
    SnapshotStore(disk).write(10, 1, b"older" * 100)
    (older,) = disk.names()
    content = disk.open(older).read(1 << 20, 0)
    store = SnapshotStore(disk)
    store.write(20, 2, b"newest" * 100)
    (newest,) = disk.names()
    store.begin_receiving(identify(30, b"half" * 100))
    store.receive(0, b"half")
    file = disk.open(older, create=True)
    file.write(content, 0)
    file.close()
    assert len(disk.names()) == 3
    again = SnapshotStore(disk)
    assert disk.names() == [newest]
    assert again.read_current() == b"newest" * 100


def test_a_stale_snapshot_received_whole_replaces_nothing() -> None:
    disk = new_disk()
    store = SnapshotStore(disk)
    store.write(20, 2, b"ours" * 100)
    old = b"stale" * 100
    assert receive(store, identify(15, old), old) == old
    assert SnapshotStore(disk).read_current() == b"ours" * 100


def test_a_damaged_snapshot_received_replaces_nothing() -> None:
    disk = new_disk()
    store = SnapshotStore(disk)
    store.write(20, 2, b"ours" * 100)
    data = b"newer" * 100
    wrong = SnapshotId(30, 2, len(data), zlib.crc32(data) ^ 1)
    assert receive(store, wrong, data) is None
    assert SnapshotStore(disk).read_current() == b"ours" * 100
    assert receive(store, identify(30, data), data) == data
    assert SnapshotStore(disk).read_current() == data


def test_a_crash_at_any_step_leaves_the_old_snapshot_or_the_new_one_whole() -> None:
    for cut_after in range(14):
        for seed in range(10):
            disk = new_disk(seed)
            store = SnapshotStore(disk)
            store.write(20, 2, b"old" * 100)
            disk.sync_directory()
            disk.interrupt_after = cut_after
            new = b"new" * 150
            try:
                if seed % 2:
                    store.write(30, 3, new)
                else:
                    receive(store, identify(30, new), new)
            except PowerCut:
                pass
            disk.crash()
            assert SnapshotStore(disk).read_current() in (b"old" * 100, new), (cut_after, seed)


def test_bit_rot_in_the_snapshot_refuses_to_start() -> None:
    for position in (5, 30, 100):
        disk = new_disk()
        SnapshotStore(disk).write(20, 2, b"ours" * 100)
        disk.corrupt(disk.names()[0], position)
        with pytest.raises(CorruptStorage, match=r"damaged|does not belong"):
            SnapshotStore(disk).read_current()


def test_a_snapshot_being_sent_stays_readable_when_a_newer_one_replaces_it() -> None:
    disk = new_disk()
    store = SnapshotStore(disk)
    store.write(20, 2, b"first" * 100)
    opened = store.open_current()
    assert opened is not None
    store.write(30, 2, b"second")
    assert opened.chunk(5, 5) == b"first"
    assert opened.read() == b"first" * 100

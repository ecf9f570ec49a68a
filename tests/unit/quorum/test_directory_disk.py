"""The quorum's disk on a real file system: nothing is lost once a call has returned, and no write
or read is done in part.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek_metadata_quorum.errors import StorageMismatch
from odradek_metadata_quorum.storage.data_directory import (
    IDENTITY_NAME,
    StorageIdentity,
    check_disk,
    format_disk,
    format_storage,
    save_identity,
)
from odradek_metadata_quorum.storage.disk import (
    DirectoryDisk,
    DirectoryFile,
    read_file,
    sync_file,
    write_file,
)
from odradek_metadata_quorum.storage.vote_file import VoteFile
from tests.sim.quorum.simulated_disk import PowerCut, SimulatedDisk

IDENTITY = StorageIdentity(cluster_id="c", node_id=1, voters=(1, 2, 3), joined=False)


def _disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(0))


def test_a_small_file_is_durable_when_its_write_returns() -> None:
    disk = _disk()
    write_file(disk, "a", b"old")
    assert read_file(disk.after_power_cut(), "a") == b"old"
    write_file(disk, "a", b"the new one")
    after = disk.after_power_cut()
    assert (after.names(), read_file(after, "a")) == (["a"], b"the new one")


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_at_any_step_of_a_small_write_leaves_the_old_file_or_the_new_one(
    seed: int,
) -> None:
    for steps in range(5):  # create, write, sync, rename, sync of the directory
        disk = SimulatedDisk(random.Random(seed))
        write_file(disk, "a", b"old")
        disk.interrupt_after = steps
        with pytest.raises(PowerCut):
            write_file(disk, "a", b"the new one")
        disk.crash()
        assert read_file(disk, "a") in (b"old", b"the new one"), steps


def test_bytes_of_an_earlier_process_are_made_durable() -> None:
    disk = _disk()
    write_file(disk, "a", b"old")
    disk.open("a").write(b"new", 0)
    assert read_file(disk.after_power_cut(), "a") == b"old"
    sync_file(disk, "a")
    assert read_file(disk.after_power_cut(), "a") == b"new"


def test_a_format_is_durable_when_it_returns_also_one_that_was_done_before() -> None:
    disk = _disk()
    assert format_disk(disk, IDENTITY, "here") == IDENTITY
    after = disk.after_power_cut()
    assert check_disk(after, IDENTITY, "here") == IDENTITY
    assert VoteFile(after).term == 0
    # The first format was killed before its last step.
    disk = _disk()
    disk.fail = lambda call, name: call == "sync_directory" and IDENTITY_NAME in disk.names()
    with pytest.raises(OSError, match="injected"):
        format_disk(disk, IDENTITY, "here")
    disk.fail = None
    assert IDENTITY_NAME not in disk.after_power_cut().names()
    assert format_disk(disk, IDENTITY, "here") == IDENTITY
    assert check_disk(disk.after_power_cut(), IDENTITY, "here") == IDENTITY


def test_a_power_cut_at_any_step_of_a_format_lets_the_next_one_succeed() -> None:
    steps = 0
    while True:
        disk = _disk()
        disk.interrupt_after = steps
        try:
            format_disk(disk, IDENTITY, "here")
        except PowerCut:
            is_over = False
        else:
            is_over = True
        killed = disk.after_power_cut()
        disk.interrupt_after = None
        for again in (disk, killed):  # after a kill, and after the loss of power
            assert format_disk(again, IDENTITY, "here") == IDENTITY, steps
            durable = again.after_power_cut()
            assert check_disk(durable, IDENTITY, "here") == IDENTITY, steps
            assert VoteFile(durable).vote is None
        if is_over:
            break
        steps += 1
    assert steps > 8


def test_a_changed_identity_is_durable() -> None:
    disk = _disk()
    format_disk(disk, IDENTITY, "here")
    joined = StorageIdentity(cluster_id="c", node_id=1, voters=(1, 2, 3), joined=True)
    save_identity(disk, joined)
    assert check_disk(disk.after_power_cut(), IDENTITY, "here") == joined


class Calls:
    """Records the system calls that matter for durability, with the path of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str]] = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._of_descriptor(name, getattr(os, name)))
        rename = os.rename

        def renamed(old: Any, new: Any) -> None:
            rename(old, new)
            self.made.append(("rename", str(new)))

        monkeypatch.setattr(os, "rename", renamed)

    def _of_descriptor(self, name: str, call: Callable[[int], None]) -> Callable[[int], None]:
        def called(descriptor: int) -> None:
            call(descriptor)
            self.made.append((name, os.readlink(f"/proc/self/fd/{descriptor}")))

        return called


def test_on_a_real_disk_bytes_are_synced_before_their_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DirectoryDisk(tmp_path)
    calls = Calls(monkeypatch)
    write_file(disk, "a", b"x")
    place = str(tmp_path)
    assert calls.made == [
        ("fdatasync", f"{place}/a.tmp"),
        ("rename", f"{place}/a"),
        ("fsync", place),
    ]
    disk.close()


def test_every_directory_above_a_formatted_one_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A format makes missing parents, and their names must survive a power cut too."""
    calls = Calls(monkeypatch)
    place = tmp_path / "a" / "b" / "q"
    format_storage(place, cluster_id="c", node_id=1, voters=[1])
    synced = {path for call, path in calls.made if call == "fsync"}
    assert {str(place), *map(str, place.parents)} <= synced


@pytest.mark.parametrize("step_bytes", [1, 3, 1 << 20])
def test_a_short_write_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, position: pwrite(fd, data[:step_bytes], position)
    )
    disk = DirectoryDisk(tmp_path)
    file = disk.open("a", create=True)
    file.write(b"0123456789", 0)
    file.write(b"abcd", 7)
    assert file.read(100, 0) == b"0123456abcd"
    disk.close()


@pytest.mark.parametrize("size_bytes", [0, 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 5])
def test_a_read_is_whole_whatever_its_size(tmp_path: Path, size_bytes: int) -> None:
    content = random.Random(1).randbytes(size_bytes)
    (tmp_path / "a").write_bytes(b"head" + content)
    file: DirectoryFile = DirectoryDisk(tmp_path).open("a")
    assert file.size() == size_bytes + 4
    assert file.read(size_bytes, 4) == content
    assert file.read(size_bytes + 100, 4) == content, "fewer only at the end of the file"
    file.truncate(3)
    assert file.read(100, 0) == b"hea"
    file.close()


def test_a_directory_in_use_is_refused_until_it_is_closed(tmp_path: Path) -> None:
    first = DirectoryDisk(tmp_path)
    write_file(first, "b", b"")
    write_file(first, "a", b"")
    with pytest.raises(StorageMismatch, match="locked by another process"):
        DirectoryDisk(tmp_path)
    assert first.names() == ["a", "b"], "sorted, without the lock"
    first.remove("b")
    first.close()
    second = DirectoryDisk(tmp_path)
    assert second.names() == ["a"]
    second.close()

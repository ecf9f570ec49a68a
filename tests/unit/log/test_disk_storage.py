"""The log's storage on a real file system: what is durable when a call returns, and what a call does when it fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odradek_broker.log.storage import (
    DiskStorage,
    File,
    replace_file,
    write_all,
)
from tests.unit.log.material import PATH
from tests.worlds.memory_storage import MemoryStorage

STORAGE = DiskStorage()


class Calls:
    """Records the system calls that make bytes and names durable, with the path of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str]] = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._of_descriptor(name, getattr(os, name)))
        replace = os.replace

        def replaced(source: Any, target: Any) -> None:
            replace(source, target)
            self.made.append(("replace", str(target)))

        monkeypatch.setattr(os, "replace", replaced)

    def _of_descriptor(self, name: str, call: Callable[[int], None]) -> Callable[[int], None]:
        def called(descriptor: int) -> None:
            call(descriptor)
            self.made.append((name, os.readlink(f"/proc/self/fd/{descriptor}")))

        return called


def test_a_small_file_is_synced_before_it_gets_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"the old content, which is longer")
    (tmp_path / "a.tmp").write_bytes(
        b"left by a process that was killed, and longer than the new one"
    )
    calls = Calls(monkeypatch)
    replace_file(STORAGE, path, b"new")
    assert path.read_bytes() == b"new"
    assert calls.made == [
        ("fsync", f"{tmp_path}/a.tmp"),
        ("replace", f"{tmp_path}/a"),
        ("fsync", f"{tmp_path}"),
    ]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_small_file_that_finds_no_room_keeps_none(operation: str) -> None:
    storage = MemoryStorage()
    storage.make_directory(PATH)
    replace_file(storage, PATH / "a", b"old")

    def fault(asked: str, path: Path) -> int | None:
        if asked == "write" and operation == "write" and not storage.inode(path).data:
            return 3
        if asked == operation:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return None

    storage.fault = fault
    with pytest.raises(OSError, match="No space left"):
        replace_file(storage, PATH / "a", b"the new content")
    storage.fault = None
    assert storage.read(PATH / "a") == b"old"
    assert storage.read(PATH / "a.tmp") == b"", "its bytes would take room that is needed"
    assert storage.handles == 0


def test_a_file_is_written_and_read_at_its_positions(tmp_path: Path) -> None:
    file = STORAGE.open(tmp_path / "a", create=True)
    assert file.pwrite(b"0123456789", 0) == 10
    assert file.pread(4, 3) == b"3456"
    assert file.pread(100, 8) == b"89"
    twin = file.duplicate()
    file.close()
    twin.truncate(5)
    twin.datasync()
    twin.sync()
    assert (twin.size_bytes(), twin.pread(100, 0)) == (5, b"01234")
    twin.close()
    assert STORAGE.size_bytes(tmp_path / "a") == 5
    again = STORAGE.open(tmp_path / "a", create=True)
    assert again.size_bytes() == 5, "an existing file is kept"
    again.close()
    with pytest.raises(FileNotFoundError):
        STORAGE.open(tmp_path / "b")


def test_what_is_removed_is_gone_and_may_be_gone_before(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    STORAGE.make_directory(directory)
    STORAGE.make_directory(directory)
    (directory / "a").write_bytes(b"x")
    assert sorted(STORAGE.names(directory)) == ["a"]
    assert STORAGE.exists(directory / "a")
    STORAGE.remove(directory / "a")
    STORAGE.remove(directory / "a")
    assert not STORAGE.exists(directory / "a")
    (directory / "b").write_bytes(b"x")
    STORAGE.remove_tree(directory)
    assert not directory.exists()
    with pytest.raises(FileNotFoundError):
        STORAGE.remove_tree(directory)


def test_free_space_is_what_an_ordinary_user_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = os.statvfs(tmp_path)
    assert 0 < STORAGE.free_bytes(tmp_path) <= stats.f_blocks * stats.f_frsize
    values = list(stats)
    values[1], values[3], values[4] = 4096, 1_000, 7  # fragment size, blocks free, and for users
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))
    assert STORAGE.free_bytes(tmp_path) == 7 * 4096


@pytest.mark.parametrize(
    ("error", "is_resident"), [(errno.EAGAIN, False), (errno.EOPNOTSUPP, True), (errno.EIO, None)]
)
def test_a_probe_that_would_wait_says_that_a_read_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, is_resident: bool | None
) -> None:
    """A file system in memory does not support the question, and never waits."""
    (tmp_path / "a").write_bytes(b"x" * 10)
    file = STORAGE.open(tmp_path / "a")

    def preadv(fd: int, buffers: Any, position: int, flags: int) -> int:
        raise OSError(error, "from the test")

    monkeypatch.setattr(os, "preadv", preadv)
    if is_resident is None:
        with pytest.raises(OSError, match="from the test"):
            file.is_resident(0, 10)
    else:
        assert file.is_resident(0, 10) is is_resident
    file.close()


def test_both_ends_of_a_range_are_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    file = STORAGE.open(tmp_path / "a")
    probed: list[int] = []

    def preadv(fd: int, buffers: Any, position: int, flags: int) -> int:
        probed.append(position)
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    assert file.is_resident(20, 30)
    assert file.is_resident(20, 0)
    assert probed == [20, 49, 20, 20]
    file.close()


class StuckFile:
    """A file that accepts some bytes of each write, and then none."""

    def __init__(self, *taken: int) -> None:
        self._taken = list(taken)
        self.content = bytearray()

    def pwrite(self, data: bytes | memoryview, position: int) -> int:
        assert position == len(self.content)
        taken = self._taken.pop(0)
        self.content += bytes(data)[:taken]
        return taken


def test_a_write_that_makes_no_progress_is_an_error() -> None:
    whole: Any = StuckFile(3, 2, 5)
    write_all(whole, b"0123456789", 0)
    assert whole.content == b"0123456789"
    stuck: File | Any = StuckFile(3, 2, 0)
    with pytest.raises(OSError, match="wrote no bytes at position 5") as raised:
        write_all(stuck, b"0123456789", 0)
    assert raised.value.errno == errno.EIO


def test_a_locked_file_is_refused_until_its_holder_closes_it(tmp_path: Path) -> None:
    held = STORAGE.lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        STORAGE.lock(tmp_path / "lock")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BlockingIOError):
        STORAGE.lock(tmp_path / "lock")
    assert len(os.listdir("/proc/self/fd")) == before, "the refused one holds no descriptor"
    held.close()
    STORAGE.lock(tmp_path / "lock").close()

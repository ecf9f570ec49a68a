"""The interface between the quorum and its disk: one directory of files, and a queue of disk jobs.

All data that must survive a crash is written through `Disk` and `DiskFile`. `DirectoryDisk` is the implementation for
the real file system. The simulator has another one, which can lose bytes that were not synced, tear pages, and let any
call fail. Names are names of files in the quorum's directory.

Callers may rely on the following only. Written bytes survive a power failure when `sync` has returned. The creation,
renaming or removal of a file survives when `sync_directory` has returned. After a failed call neither is certain, so
the caller must not continue. Bytes that were read from a file may not be durable, because an earlier process may have
been killed before its sync, or its sync may have failed. A caller that depends on bytes that it read must first make
them durable.

A `DiskQueue` runs disk jobs in order, outside the event loop, and stops at the first failure. A failed job may have
written a part of its bytes, and the page cache may have dropped bytes that could not be written. A later successful
sync would prove nothing about them. So jobs are not retried, and callers need not handle errors: `fatal` is called at
once on the disk thread. After that, no job and no `done` callback runs, even if `fatal` returns, as it does in tests.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from odradek_metadata_quorum.errors import StorageMismatch

_LOCK_NAME = "lock"


class DiskFile(Protocol):
    """One open file. Positions are in bytes from the start of the file."""

    def size(self) -> int:
        """Return the length of the file in bytes."""

    def read(self, size: int, position: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the file."""

    def write(self, data: bytes, position: int) -> None:
        """Write all of `data`, or raise OSError."""

    def sync(self) -> None:
        """Make the written bytes and the file's length durable, so that they survive a power failure."""

    def truncate(self, size: int) -> None:
        """Shorten the file. The new length is durable after `sync`."""

    def close(self) -> None:
        """Close the file; no other method may be called afterwards."""


class Disk(Protocol):
    """A directory of files, without subdirectories."""

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""

    def open(self, name: str, *, create: bool = False) -> DiskFile:
        """Open a file for reading and writing. With `create` the file is new and empty, and replaces an older one."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file. A file that has the new name is replaced."""

    def remove(self, name: str) -> None:
        """Remove a file. If it is open, it can still be read."""

    def sync_directory(self) -> None:
        """Make created, renamed and removed names durable, so that they survive a power failure."""


class DirectoryFile:
    """A file of the real file system."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, size: int, position: int) -> bytes:
        parts = []
        while size > 0:
            part = os.pread(self._descriptor, min(size, 1 << 20), position)
            if not part:
                break
            parts.append(part)
            size -= len(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, data: bytes, position: int) -> None:
        written = os.pwrite(self._descriptor, data, position)
        # The system may write only the first part of the bytes. This is rare, but the other bytes must not be lost.
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], position + written)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        os.close(self._descriptor)


class DirectoryDisk:
    """A directory of the real file system. It is locked, so that no second process can use it."""

    def __init__(self, path: Path) -> None:
        """Open and lock the directory. Raises `StorageMismatch` if it does not exist or another process
        has locked it.
        """
        self._path = path
        if not path.is_dir():
            raise StorageMismatch(
                f"{path} does not exist: run `odradek storage format` for it before the first start"
            )
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise StorageMismatch(
                f"{path} is locked by another process: stop that process, or use another directory"
            ) from None

    def close(self) -> None:
        """Release the lock, and close the directory."""
        os.close(self._lock)
        os.close(self._directory)

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self._path) if name != _LOCK_NAME)

    def open(self, name: str, *, create: bool = False) -> DirectoryFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_TRUNC
        return DirectoryFile(os.open(self._path / name, flags, 0o600))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path / old, self._path / new)

    def remove(self, name: str) -> None:
        os.unlink(self._path / name)

    def sync_directory(self) -> None:
        os.fsync(self._directory)


def write_file(disk: Disk, name: str, data: bytes) -> None:
    """Create or replace a small file, so that after a crash the old or the new file exists and is complete."""
    temporary = f"{name}.tmp"
    file = disk.open(temporary, create=True)
    try:
        file.write(data, 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, name)
    disk.sync_directory()


def sync_file(disk: Disk, name: str) -> None:
    """Sync a file, including bytes that an earlier process wrote."""
    file = disk.open(name)
    try:
        file.sync()
    finally:
        file.close()


def read_file(disk: Disk, name: str) -> bytes:
    """Return the contents of a small file."""
    file = disk.open(name)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


Result = TypeVar("Result")
Fatal = Callable[[str, BaseException | None], None]


class DiskQueue(Protocol):
    """Runs disk jobs one after the other. If a job fails, the process ends, as the docstring of the
    module describes.
    """

    def submit(self, job: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Run `job` later outside the event loop, then `done(result)` on the event loop. Jobs and callbacks run in the
        order of the calls.
        """


class DiskThread:
    """A `DiskQueue` with a thread of its own. Its queue stays short, because callers with many jobs submit the next
    one only after `done` was called.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, fatal: Fatal) -> None:
        self._loop = loop
        self._fatal = fatal
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Result], done: Callable[[Result], None]) -> None:
        def run() -> None:
            result = job()
            self._loop.call_soon_threadsafe(done, result)

        self._jobs.put(run)

    async def close(self) -> None:
        """Wait until the queued jobs are finished and the thread has ended."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._failed:
                continue
            try:
                job()
            except RuntimeError as error:
                if self._loop.is_closed():
                    return  # the process is ending, and nothing waits for the result
                self._fail(error)
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._fatal("a write to the quorum's disk failed", error)

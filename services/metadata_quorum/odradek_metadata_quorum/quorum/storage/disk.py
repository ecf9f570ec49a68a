"""The seam between the quorum and its disk: one flat directory of files, and an order of writes.

Everything that must survive a crash goes through `Disk` and `DiskFile`. `DirectoryDisk` is the real
one. The simulator has another, which forgets what was not synced, tears pages and fails any call.
Names are plain file names in the quorum's own directory.

What callers may rely on, and no more: bytes survive a power cut once `sync` has returned; a name
(created, renamed, removed) survives once `sync_directory` has returned; a failed call leaves both
in doubt, so that whoever gets an exception must not go on (`DiskQueue` ends the process). What a file
reads as is not what is durable: an earlier process may have been killed before its sync, or have
failed at it. Whoever opens a file and acts on what it says makes that durable first.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

from odradek_metadata_quorum.quorum.errors import StorageMismatch

_LOCK_NAME = "lock"


class DiskFile(Protocol):
    """One open file; positions are bytes from its start."""

    def size(self) -> int:
        """Length in bytes."""

    def read(self, size: int, position: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""

    def write(self, data: bytes, position: int) -> None:
        """All of `data`, or an OSError."""

    def sync(self) -> None:
        """What was written, and the file's length, survives a power cut from here on."""

    def truncate(self, size: int) -> None:
        """Cut the file; durable after `sync`."""

    def close(self) -> None:
        """Release the descriptor; the object is dead."""


class Disk(Protocol):
    """One directory."""

    def names(self) -> list[str]:
        """Every file in it, sorted."""

    def open(self, name: str, *, create: bool = False) -> DiskFile:
        """Open for reading and writing; `create` makes a new, empty one, replacing an old one."""

    def rename(self, old: str, new: str) -> None:
        """Give a file a new name, replacing another of that name."""

    def remove(self, name: str) -> None:
        """Remove a name; open files stay readable."""

    def sync_directory(self) -> None:
        """Names survive a power cut from here on."""


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
        while written < len(data):  # a short write: rare, and never an excuse to lose the rest
            written += os.pwrite(self._descriptor, data[written:], position + written)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        os.close(self._descriptor)


class DirectoryDisk:
    """A directory of the real file system, locked against a second process."""

    def __init__(self, path: Path) -> None:
        """Raises `StorageMismatch` when the directory is missing or in use."""
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
                f"{path} is locked by another process: stop that one, or use another directory"
            ) from None

    def close(self) -> None:
        """Release the lock."""
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
    """Create or replace a small file so that a crash leaves the old one or the new one, whole."""
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
    """Make a file's bytes durable, whoever wrote them."""
    file = disk.open(name)
    try:
        file.sync()
    finally:
        file.close()


def read_file(disk: Disk, name: str) -> bytes:
    """The whole of a small file."""
    file = disk.open(name)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()

"""The seam between the log and the disk: every byte that the log reads or writes passes through here.

`DiskStorage` is the operating system. Tests replace it by a storage that fails a chosen call, writes
short, or keeps everything in memory and forgets what was not synced when the power goes.

All methods raise plain `OSError`. `error_class` says what such an error means:

    DISK      the device or the file system is broken    the data directory goes offline
    FULL      there is no room                           the directory is read-only until there is
    PROCESS   this call, or this process, is at fault    the call is refused; nothing else changes
    CONTENT   the bytes are not those that were written  the partition is damaged, and no other one

A data directory that goes offline ends every replica in it, so only an error of the disk may do that.
Running out of descriptors or memory passes when others give theirs back, and a name that is too long
concerns the one file of that name. An error without a number, or of a sync, counts as the disk's:
nobody knows what is left of the bytes. After a failed fdatasync the kernel may have dropped the dirty
pages and marked them clean, so a second one that succeeds proves nothing. That is why any error of a
sync becomes EIO here.

The log turns the first DISK error into `StorageFailed`, and from then on it acknowledges nothing more
from that directory in this process's life (R11). A full disk has not failed: where a write finds no
room, nothing that was written before is in doubt. The error becomes `StorageFull`, the caller undoes
what reached the file, and the directory takes nothing more until there is room again
(`DirectoryHealth.has_room_again`). A PROCESS error becomes `StorageRefused`: the caller undoes what
reached the file, and no other partition is concerned.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Final, Protocol, TypeVar

from odradek_protocol.records.batch_header import ByteBuffer
from odradek_runtime.open_files import DescriptorReserve, has_room_for_partitions


class ErrorClass(Enum):
    """Whose fault an OSError is."""

    DISK = "disk"
    FULL = "full"
    PROCESS = "process"
    CONTENT = "content"


class DamagedContent(OSError):
    """A file has no batches where batches were written, or others. `offsets`: of the batch, where it is known."""

    def __init__(self, error: Exception) -> None:
        super().__init__(errno.EBADMSG, str(error))
        self.offsets: tuple[int, int] | None = getattr(error, "offsets", None)


# EFBIG: files may not grow further (`ulimit -f`), so another broker is to lead as with a full disk.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
OF_THE_DISK: Final = frozenset(
    {
        errno.EIO,
        errno.EROFS,
        errno.ENODEV,
        errno.ENXIO,
        errno.EUCLEAN,  # the file system's own structures are damaged
        errno.EBADMSG,
        errno.ENOMEDIUM,
        errno.EMEDIUMTYPE,
        errno.EREMOTEIO,
        errno.ESTALE,  # a network file system lost the file
        errno.ETIMEDOUT,
        errno.ENOLINK,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ENOKEY,  # an encrypted directory was locked
        errno.EKEYEXPIRED,
        errno.EKEYREVOKED,
    }
)


def error_class(error: OSError) -> ErrorClass:
    """Classify one error."""
    if isinstance(error, DamagedContent):
        return ErrorClass.CONTENT
    if error.errno in NO_ROOM:
        return ErrorClass.FULL
    if error.errno is None or error.errno in OF_THE_DISK:
        return ErrorClass.DISK
    return ErrorClass.PROCESS


_WAYS_OUT: Final = {
    errno.EMFILE: "raise the process's limit of open files above the number of partitions"
    " (ulimit -n, or LimitNOFILE of systemd)",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max)",
}


def _described(what: str, error: OSError) -> str:
    """Say what failed and why, with the way out where an operator has one."""
    text = f"{what}: {error.strerror or error}"
    way_out = _WAYS_OUT.get(error.errno or 0)
    return f"{text}; {way_out}" if way_out is not None else text


T = TypeVar("T")
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)


class StorageFailed(Exception):
    """A write, sync or rename failed: the directory is offline until the process restarts.

    Never retried. The message names the directory, what was tried and the operating system's
    error; the remedy is a human's (space, a disk) or a restart.
    """


class StorageRefused(StorageFailed):
    """One call was refused, and not by the disk: nothing of it counts, and nothing else is lost.

    The directory goes on; the same may be tried again.
    """


class LogDamaged(StorageRefused):
    """One log holds what was not written to it. `offsets`: of the damaged batch (end exclusive), where known.

    The message names file and position; the remedy is another replica's copy.
    """

    def __init__(self, message: str, offsets: tuple[int, int] | None) -> None:
        super().__init__(message)
        self.offsets = offsets


class StorageFull(StorageRefused):
    """There was no room for a write: nothing of it counts, and nothing else is lost.

    The directory is read-only until there is room; the remedy is space.
    """


class File(Protocol):
    """One open file. Positions and sizes in bytes. Methods may block; none is cancellable."""

    def pwrite(self, data: ByteBuffer, position: int) -> int:
        """Write at `position`; returns how many bytes were taken, perhaps fewer than given."""

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Read; fewer bytes only at the end of the file."""

    def send_to(self, socket_fd: int, position: int, size_bytes: int) -> int:
        """Copy to a socket, as sendfile(2); how much it took. BlockingIOError if it takes nothing."""

    def is_resident(self, position: int, size_bytes: int) -> bool:
        """Whether reading this range would probably not wait for the disk."""

    def truncate(self, size_bytes: int) -> None: ...

    def datasync(self) -> None:
        """Make the bytes and the size durable; times may lag (fdatasync)."""

    def sync(self) -> None:
        """Make everything about the file durable (fsync): after a truncation."""

    def size_bytes(self) -> int: ...

    def duplicate(self) -> File:
        """A second handle for a thread, which closes it; it survives this one's close."""

    def close(self) -> None: ...


class Storage(Protocol):
    """A file system, as much of one as a log needs."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open to read and write; with `create`, make the file if it is not there."""

    def read(self, path: Path) -> bytes:
        """The whole of a small file; FileNotFoundError if it is not there."""

    def names(self, directory: Path) -> list[str]: ...

    def exists(self, path: Path) -> bool: ...

    def size_bytes(self, path: Path) -> int: ...

    def modified_ms(self, path: Path) -> int:
        """When a file's content last changed, ms since the epoch."""

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        """Let a copy pass for as old as what it was made of; durable with the file's next sync."""

    def make_directory(self, path: Path) -> None:
        """Make one directory; no error if it is there."""

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; replaces a file named `target`."""

    def remove(self, path: Path) -> None:
        """Remove a file; no error if it is gone."""

    def remove_tree(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in `path` durable."""

    def free_bytes(self, path: Path) -> int:
        """What an unprivileged process may still write."""

    def lock(self, path: Path) -> File:
        """Lock a file, made if need be, until it is closed; BlockingIOError if another has it."""

    def process_id(self) -> int: ...

    def require_room_for_partition(self) -> None:
        """Raises OSError EMFILE if one more open file would leave too few descriptors for others."""


class DiskFile:
    """A file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pwrite(self, data: ByteBuffer, position: int) -> int:
        return os.pwrite(self._fd, data, position)

    def pread(self, size_bytes: int, position: int) -> bytes:
        return os.pread(self._fd, size_bytes, position)

    def send_to(self, socket_fd: int, position: int, size_bytes: int) -> int:
        return os.sendfile(socket_fd, self._fd, position, size_bytes)

    def is_resident(self, position: int, size_bytes: int) -> bool:
        # Two one-byte reads that refuse to wait: cheap, and the kernel reads ahead in order, so
        # with both ends cached the middle nearly always is.
        try:
            probe = bytearray(1)
            os.preadv(self._fd, (probe,), position, _NOWAIT)
            os.preadv(self._fd, (probe,), max(position, position + size_bytes - 1), _NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # memory file systems: nothing to wait for
                return True
            raise
        return True

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    def datasync(self) -> None:
        _sync(os.fdatasync, self._fd)

    def sync(self) -> None:
        _sync(os.fsync, self._fd)

    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def duplicate(self) -> DiskFile:
        return DiskFile(_with_reserve(lambda: os.dup(self._fd)))

    def close(self) -> None:
        os.close(self._fd)


class DiskStorage:
    """The operating system's file system."""

    __slots__ = ()

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return DiskFile(_with_reserve(lambda: os.open(path, flags, 0o644)))

    def read(self, path: Path) -> bytes:
        return _with_reserve(path.read_bytes)

    def names(self, directory: Path) -> list[str]:
        return os.listdir(directory)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size_bytes(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000,) * 2)

    def make_directory(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: Path) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        fd = _with_reserve(lambda: os.open(path, flags))
        try:
            _sync(os.fsync, fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: Path) -> int:
        stats = os.statvfs(path)
        return stats.f_bavail * stats.f_frsize

    def lock(self, path: Path) -> DiskFile:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return DiskFile(fd)

    def process_id(self) -> int:
        return os.getpid()

    def require_room_for_partition(self) -> None:
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.close(fd)
        if not has_room_for_partitions(fd):
            raise OSError(errno.EMFILE, "too few file descriptors are left for a new partition")


RESERVE: Final = DescriptorReserve(16)
"""What all data directories of the process fall back on; filled by the upkeep."""


def _with_reserve(opening: Callable[[], T]) -> T:
    """Open something, with a descriptor of the reserve if there is no other."""
    while True:
        try:
            return opening()
        except OSError as error:
            if error.errno != errno.EMFILE or not RESERVE.spend():
                raise


def _sync(sync: Callable[[int], None], fd: int) -> None:
    try:
        sync(fd)
    except OSError as error:
        raise failed_sync(error) from error


def failed_sync(error: OSError) -> OSError:
    """What a sync could not write is lost, whatever it met: the disk's error."""
    return OSError(errno.EIO, f"sync failed: {error.strerror or error}")


def write_all(file: File, data: ByteBuffer, position: int) -> None:
    """Write all of `data`; a short write is followed by the rest, or by the error that cut it."""
    written = file.pwrite(data, position)
    if written == len(data):
        return
    view = memoryview(data)
    while written < len(view):
        more = file.pwrite(view[written:], position + written)
        if more <= 0:
            raise OSError(errno.EIO, f"write made no progress at byte {position + written}")
        written += more


def replace_file(storage: Storage, path: Path, content: bytes) -> None:
    """Replace a small file so that a crash at any moment leaves the old one or the new one whole.

    Durable on return: temporary file, fsync, rename, fsync of the directory.
    """
    temporary = path.with_name(path.name + ".tmp")
    file = storage.open(temporary, create=True)
    try:
        file.truncate(0)
        write_all(file, content, 0)
        file.sync()
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(0)  # a full disk needs the room
        raise
    finally:
        file.close()
    storage.rename(temporary, path)
    storage.sync_directory(path.parent)


class DirectoryHealth:
    """Whether a data directory may still be written; shared by all that lies in it.

        WRITABLE <--> FULL        no room, and room again
        either    --> FAILED      once, for the rest of this process's life

    `on_failure` is called once, `on_full` each time that the room ends, `on_refused` for each other write that
    was refused; all at that moment, and in whatever thread met the error.
    """

    __slots__ = ("failure", "full", "on_failure", "on_full", "on_refused")

    def __init__(self) -> None:
        self.failure: StorageFailed | None = None
        self.full: StorageFull | None = None
        self.on_failure: Callable[[StorageFailed], None] | None = None
        self.on_full: Callable[[StorageFull], None] | None = None
        self.on_refused: Callable[[StorageRefused], None] | None = None

    def check(self) -> None:
        """Raise the first failure, if there was one."""
        if self.failure is not None:
            raise self.failure

    def check_room(self) -> None:
        """`check`, for what needs room: raises StorageFull too."""
        self.check()
        if self.full is not None:
            raise self.full

    def has_room_again(self) -> None:
        """Somebody looked: writes may be tried."""
        self.full = None

    def fail(self, what: str, error: OSError) -> StorageFailed:
        """Take note of a failed write, sync or rename; returns what to raise."""
        failure = StorageFailed(f"{what}: {error.strerror or error}")
        if self.failure is None:
            self.failure = failure
            if self.on_failure is not None:
                self.on_failure(failure)
        return failure

    @contextlib.contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Around calls none of whose errors may pass: `fail` of an OSError."""
        try:
            yield
        except OSError as error:
            raise self.fail(what, error) from error

    @contextlib.contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Around calls that leave things as they were if they fail: `fail_to_write` of an OSError."""
        try:
            yield
        except OSError as error:
            raise self.fail_to_write(what, error) from error

    def fail_to_write(self, what: str, error: OSError) -> StorageFailed:
        """What to raise by the class of the error: the caller undoes what was written.

        StorageFull where there was no room, StorageRefused where the disk is not at fault; else `fail`.
        """
        kind = error_class(error)
        if kind is ErrorClass.DISK or self.failure is not None:
            return self.fail(what, error)
        text = _described(what, error)
        if isinstance(error, DamagedContent):
            return LogDamaged(text, error.offsets)
        if kind is ErrorClass.PROCESS:
            refused = StorageRefused(text)
            if self.on_refused is not None:
                self.on_refused(refused)
            return refused
        full = StorageFull(text)
        if self.full is None:
            self.full = full
            if self.on_full is not None:
                self.on_full(full)
        return full

    def fail_to_read(self, what: str, error: OSError) -> StorageFailed:
        """What to raise: StorageRefused where the disk is not at fault; else `fail`."""
        if error_class(error) is ErrorClass.DISK:
            return self.fail(what, error)
        text = _described(what, error)
        if isinstance(error, DamagedContent):
            return LogDamaged(text, error.offsets)
        return StorageRefused(text)


class FileSlice:
    """Batches that stay in their file until they are sent: the kernel copies them from the page cache.

    The holder sends or reads a slice once, while the partition is still led in the epoch in which the
    slice was made: below the high watermark a leader's files do not change, but a truncation after a
    lost leadership may change them. The slice has a descriptor of its own, which it closes when it is
    dropped. Its `len` is its size in bytes.
    """

    __slots__ = ("_file", "_position", "_size_bytes")

    def __init__(self, file: File, position: int, size_bytes: int) -> None:
        self._file = file.duplicate()
        self._position = position
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def __del__(self) -> None:
        self._file.close()

    def send(self, socket_fd: int) -> int:
        """Give the socket as much as it takes without waiting; how many bytes that was.

        Raises OSError: the socket is broken, or the file ends before the slice does.
        """
        sent = 0
        while sent < self._size_bytes:
            try:
                count = self._file.send_to(
                    socket_fd, self._position + sent, self._size_bytes - sent
                )
            except BlockingIOError:
                break
            if not count:
                raise OSError(errno.EIO, "the file ends inside a slice of it")
            sent += count
        return sent

    def read(self, start: int = 0) -> bytes:
        """What follows the first `start` bytes. Raises OSError if the file ends before that."""
        data = self._file.pread(self._size_bytes - start, self._position + start)
        if len(data) != self._size_bytes - start:
            raise OSError(errno.EIO, "the file ends inside a slice of it")
        return data

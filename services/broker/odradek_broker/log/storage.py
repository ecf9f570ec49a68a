"""The interface between the log and the disk: the log reads and writes every byte through it.

`DiskStorage` calls the operating system. Tests replace it by a storage that fails a chosen call, writes fewer bytes
than it was given, or keeps files in memory and discards unsynced bytes at a simulated power loss.

All methods raise plain `OSError`. `error_class` says what such an error means:

    DISK      the device or the file system is broken    the data directory goes offline
    FULL      the disk is full                           the directory is read-only until space is free
    PROCESS   this call, or this process, is at fault    the call is refused; nothing else changes
    CONTENT   the bytes are not those that were written  only this partition is damaged

A data directory that goes offline takes every replica in it offline, so only a disk error may do that. A shortage of
descriptors or memory is temporary, and a name that is too long concerns only the file of that name. An error without an
errno, and any error of a sync, counts as a disk error, because it is unknown which bytes are on disk. After a failed
fdatasync the kernel may have dropped the dirty pages and marked them clean, so a second fdatasync that succeeds proves
nothing. Therefore any error of a sync is turned into EIO here.

The log turns the first DISK error into `StorageFailed`. After that the log acknowledges no write to the directory until
the process restarts (rule R11 in partition/README.md). A full disk is no failure: a write that finds no space does not
affect earlier writes. A FULL error becomes `StorageFull`, the caller removes the bytes that reached the file, and the
directory accepts no writes until space is free again (`DirectoryHealth.has_room_again`). A PROCESS error becomes
`StorageRefused`: the caller removes the bytes that reached the file, and no other partition is affected.
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

from odradek_broker.log.open_files import OpenFiles
from odradek_protocol.records.batch_header import ByteBuffer
from odradek_runtime.open_files import DescriptorReserve, has_room_for_partitions, log_files_max


class ErrorClass(Enum):
    """The cause of an OSError. It determines whether the error affects one call, one log or the whole directory."""

    DISK = "disk"
    FULL = "full"
    PROCESS = "process"
    CONTENT = "content"


class DamagedContent(OSError):
    """A file does not contain the batches that were written to it. `offsets`: the first offset of the damaged batch,
    and its last offset + 1; None if they are unknown.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(errno.EBADMSG, str(error))
        self.offsets: tuple[int, int] | None = getattr(error, "offsets", None)


# EFBIG means that files may not grow further (`ulimit -f`). As with a full disk, another broker should be the leader.
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
        errno.ESTALE,  # a network file system no longer knows the file
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
    if isinstance(error, DamagedContent):
        return ErrorClass.CONTENT
    if error.errno in NO_ROOM:
        return ErrorClass.FULL
    if error.errno is None or error.errno in OF_THE_DISK:
        return ErrorClass.DISK
    return ErrorClass.PROCESS


_WAYS_OUT: Final = {
    errno.EMFILE: "raise the process's limit of open files (ulimit -n, or LimitNOFILE of systemd)",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max)",
}


def _described(operation: str, error: OSError) -> str:
    """Return a text with the operation that failed, the cause, and, if there is a remedy, what an operator can do."""
    text = f"{operation}: {error.strerror or error}"
    way_out = _WAYS_OUT.get(error.errno or 0)
    return f"{text}; {way_out}" if way_out is not None else text


READ_BYTES: Final = 1 << 16
T = TypeVar("T")
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)


class StorageFailed(Exception):
    """A read, write, sync or rename had a disk error: the directory is offline until the process restarts.

    The operation is never retried. The message names the directory, the operation and the operating system's error. An
    operator has to repair or replace the disk, then restart the process.
    """


class StorageRefused(StorageFailed):
    """One call failed, but the disk is not at fault. The call had no effect, and no other data is lost.

    The directory stays online; the call may be retried.
    """


class LogDamaged(StorageRefused):
    """One log contains bytes that were not written to it. `offsets`: the first offset of the damaged batch, and its
    last offset + 1; None if they are unknown.

    The message names the file and the position. The remedy is to copy the log from another replica.
    """

    def __init__(self, message: str, offsets: tuple[int, int] | None) -> None:
        super().__init__(message)
        self.offsets = offsets


class StorageFull(StorageRefused):
    """The disk had no space for a write. The write had no effect, and no other data is lost.

    The directory is read-only until an operator or retention frees space.
    """


class File(Protocol):
    """One open file. Positions and sizes are in bytes. Methods may block and cannot be cancelled."""

    def pwrite(self, data: ByteBuffer, position: int) -> int:
        """Write at `position`. Return the number of bytes that were written; it may be less than the length
        of `data`.
        """

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Read at `position`. Fewer bytes are returned only at the end of the file."""

    def send_to(self, socket_fd: int, position: int, size_bytes: int) -> int:
        """Copy to a socket with sendfile(2). Return the bytes sent; raise BlockingIOError if the socket
        accepts none.
        """

    def is_resident(self, position: int, size_bytes: int) -> bool:
        """Return whether this range is probably in the page cache, so that a read does not wait for the disk."""

    def truncate(self, size_bytes: int) -> None: ...

    def datasync(self) -> None:
        """Make the bytes and the size durable, but not the file times (fdatasync)."""

    def sync(self) -> None:
        """Make the bytes and all metadata of the file durable (fsync); needed after a truncation."""

    def size_bytes(self) -> int: ...

    def inode(self) -> int:
        """Return the inode number of the file. A copy of the file has another inode number."""

    def duplicate(self) -> File:
        """Return a second handle for use in another thread, which must close it. The first handle stays open."""

    def close(self) -> None: ...


class Storage(Protocol):
    """The file system operations that a log needs."""

    open_files: OpenFiles  # the descriptors that the logs keep open between uses

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; with `create`, create the file if it does not exist."""

    def read(self, path: Path) -> bytes:
        """Return the content of a small file. Raises FileNotFoundError."""

    def names(self, directory: Path) -> list[str]: ...

    def exists(self, path: Path) -> bool: ...

    def size_bytes(self, path: Path) -> int: ...

    def modified_ms(self, path: Path) -> int:
        """Return when a file's content last changed, in ms since the epoch."""

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        """Set the modification time of a file, for a copy that must have the time of its source. The time is durable
        after the file's next sync.
        """

    def make_directory(self, path: Path) -> None:
        """Create one directory; no error if it exists."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically, replacing a file named `target`."""

    def remove(self, path: Path) -> None:
        """Delete a file; no error if it does not exist."""

    def remove_tree(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and deletions in `path` durable."""

    def free_bytes(self, path: Path) -> int:
        """Return the free space that an unprivileged process may use."""

    def lock(self, path: Path) -> File:
        """Lock a file, which is created if necessary, until the handle is closed. Raises BlockingIOError if another
        process has locked it.
        """

    def process_id(self) -> int: ...

    def require_room_for_partition(self) -> None:
        """Raise OSError EMFILE if the descriptors of a new partition would leave too few for connections and other
        uses.
        """


class DiskFile:
    """An open file of the operating system."""

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
        # Probe the first and the last byte with reads that do not wait. The kernel reads ahead in order, so if both are
        # cached, the bytes between them nearly always are, too.
        try:
            probe = bytearray(1)
            os.preadv(self._fd, (probe,), position, _NOWAIT)
            os.preadv(self._fd, (probe,), max(position, position + size_bytes - 1), _NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            # File systems in memory do not support RWF_NOWAIT; reads from them never wait.
            if error.errno == errno.EOPNOTSUPP:
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

    def inode(self) -> int:
        return os.fstat(self._fd).st_ino

    def duplicate(self) -> DiskFile:
        return DiskFile(_with_reserve(lambda: os.dup(self._fd)))

    def close(self) -> None:
        os.close(self._fd)


class DiskStorage:
    """The file system of the operating system."""

    __slots__ = ("open_files",)

    def __init__(self) -> None:
        self.open_files = OpenFiles(log_files_max)

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return DiskFile(_with_reserve(lambda: os.open(path, flags, 0o644)))

    def read(self, path: Path) -> bytes:
        fd = _with_reserve(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        try:
            # `Path.read_bytes` makes twice as many system calls, and a broker reads a small file of each partition at
            # its start.
            content = os.read(fd, READ_BYTES)
            while more := os.read(fd, READ_BYTES):
                content += more
            return content
        finally:
            os.close(fd)

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
            raise OSError(
                errno.EMFILE,
                "too few file descriptors are left for a new partition; raise the limit of open files",
            )


RESERVE: Final = DescriptorReserve(16)
"""Spare descriptors, shared by all data directories of the process. `Upkeep` opens them again after use."""


def _with_reserve(opening: Callable[[], T]) -> T:
    """Call `opening`. If the process has no free descriptor, release one of RESERVE and call it again."""
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
    """Return a disk error (EIO) for a failed sync, because the unsynced bytes may be lost whatever the cause was."""
    return OSError(errno.EIO, f"a sync failed: {error.strerror or error}")


def write_all(file: File, data: ByteBuffer, position: int) -> None:
    """Write all of `data`. After a short write, the write of the remaining bytes raises the cause of the
    short write.
    """
    written = file.pwrite(data, position)
    if written == len(data):
        return
    view = memoryview(data)
    while written < len(view):
        more = file.pwrite(view[written:], position + written)
        if more <= 0:
            raise OSError(
                errno.EIO,
                f"the operating system wrote no bytes at position {position + written}",
            )
        written += more


def replace_file(storage: Storage, path: Path, content: bytes) -> None:
    """Replace a small file so that after a crash at any moment either the old or the new content is complete.

    The new content is durable on return: temporary file, fsync, rename, fsync of the directory.
    """
    temporary = path.with_name(path.name + ".tmp")
    file = storage.open(temporary, create=True)
    try:
        file.truncate(0)
        write_all(file, content, 0)
        file.sync()
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(0)  # frees the space, because the disk may be full
        raise
    finally:
        file.close()
    storage.rename(temporary, path)
    storage.sync_directory(path.parent)


class DirectoryHealth:
    """Whether a data directory accepts writes. All logs in the directory share this object.

        WRITABLE <--> FULL        the disk became full; space is free again
        either    --> FAILED      once; the state lasts until the process restarts

    `on_failure` is called once, `on_full` each time that the disk becomes full, `on_refused` for each other refused
    write. They are called immediately, in the thread in which the error occurred.
    """

    __slots__ = ("failure", "full", "on_failure", "on_full", "on_refused")

    def __init__(self) -> None:
        self.failure: StorageFailed | None = None
        self.full: StorageFull | None = None
        self.on_failure: Callable[[StorageFailed], None] | None = None
        self.on_full: Callable[[StorageFull], None] | None = None
        self.on_refused: Callable[[StorageRefused], None] | None = None

    def check(self) -> None:
        """Raise the failure that took the directory offline, if there was one."""
        if self.failure is not None:
            raise self.failure

    def check_room(self) -> None:
        """Do the same as `check`, and raise StorageFull if the disk is full. For operations that need disk space."""
        if self.failure is not None:
            raise self.failure
        if self.full is not None:
            raise self.full

    def has_room_again(self) -> None:
        """Leave the state FULL, because the caller found free space. Logs try to write again from now on."""
        self.full = None

    def fail(self, operation: str, error: OSError) -> StorageFailed:
        """Take the directory offline after a disk error, and return the exception for the caller to raise."""
        failure = StorageFailed(f"{operation}: {error.strerror or error}")
        if self.failure is None:
            self.failure = failure
            if self.on_failure is not None:
                self.on_failure(failure)
        return failure

    @contextlib.contextmanager
    def failing(self, operation: str) -> Iterator[None]:
        """Turn every OSError of the `with` block into StorageFailed: the directory goes offline."""
        try:
            yield
        except OSError as error:
            raise self.fail(operation, error) from error

    @contextlib.contextmanager
    def writing(self, operation: str) -> Iterator[None]:
        """If the `with` block raises an OSError, raise the error that `fail_to_write` returns for it instead. A call in
        the block that fails must leave the files unchanged.
        """
        try:
            yield
        except OSError as error:
            raise self.fail_to_write(operation, error) from error

    def fail_to_write(self, operation: str, error: OSError) -> StorageFailed:
        """Return the exception to raise for a failed write. The caller must remove the bytes that were written.

        The exception is StorageFull if the disk is full, LogDamaged or StorageRefused if the disk is not at fault, and
        otherwise the result of `fail`.
        """
        kind = error_class(error)
        if kind is ErrorClass.DISK or self.failure is not None:
            return self.fail(operation, error)
        text = _described(operation, error)
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

    def fail_to_read(self, operation: str, error: OSError) -> StorageFailed:
        """Return the exception for a failed read: StorageFailed if the disk is at fault, LogDamaged if the content is
        damaged, and otherwise StorageRefused.
        """
        if error_class(error) is ErrorClass.DISK:
            return self.fail(operation, error)
        text = _described(operation, error)
        if isinstance(error, DamagedContent):
            return LogDamaged(text, error.offsets)
        return StorageRefused(text)


class FileSlice:
    """Batches that stay in their file until they are sent: the kernel copies them from the page cache.

    The owner sends or reads a slice once, while this broker still leads the partition in the epoch in which the slice
    was made: below the high watermark a leader's files do not change, but a truncation after the leadership was lost
    may change them. The slice has its own descriptor, which is closed when the slice is garbage-collected. `len` is the
    size in bytes.
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
        """Send as many bytes as the socket accepts without waiting, and return their number.

        Raises OSError if the connection is broken, or if the file ends before the slice does.
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
                raise OSError(
                    errno.EIO, "the file was truncated: it ends inside a slice that is being read"
                )
            sent += count
        return sent

    def read(self, start: int = 0) -> bytes:
        """Return the bytes from `start` to the end of the slice. Raises OSError if the file is shorter."""
        data = self._file.pread(self._size_bytes - start, self._position + start)
        if len(data) != self._size_bytes - start:
            raise OSError(
                errno.EIO, "the file was truncated: it ends inside a slice that is being read"
            )
        return data

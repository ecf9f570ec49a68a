"""The snapshots on disk. At most one snapshot is current, and only a newer snapshot replaces it.

A snapshot that this voter took or received from the leader is first written to a file with a temporary name. When it is
complete, synced and, if it was received, checked, the file is renamed. The old snapshot is removed after the directory
was synced. So a crash leaves either the old or the new snapshot, and a damaged transfer does not affect the current
one.

If the disk is full, `SnapshotNotWritten` is raised, the incomplete file is removed, and the current snapshot stays. The
voter continues with its log. Any other failure ends the process.

All methods wait for the disk and run on one disk queue. `current` may be read by any thread at any time.
"""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from odradek_metadata_quorum.errors import CorruptStorage, is_newer, newer_format
from odradek_metadata_quorum.storage.disk import Disk, DiskFile

_HEADER: Final = struct.Struct("<4sIIQQQ")  # magic, version, crc of the data, offset, epoch, length
_SEAL: Final = struct.Struct("<I")  # crc of the header
_DATA_START: Final = _HEADER.size + _SEAL.size
_MAGIC: Final = b"ODSN"
_VERSION: Final = 1
_PREFIX: Final = "snapshot-"
_WRITING: Final = "writing-snapshot"
_RECEIVING: Final = "receiving-snapshot"
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SnapshotId:
    """Identifies a snapshot of the state after the entry at `offset`, whose term is `epoch`.

    `size` is the size of the encoded state in bytes, and `crc` its CRC-32.
    """

    offset: int
    epoch: int
    size: int
    crc: int

    @property
    def name(self) -> str:
        """The name of the snapshot's file."""
        return f"{_PREFIX}{self.offset:020d}-{self.epoch:020d}"

    def encode(self) -> bytes:
        """Encode the header of the snapshot's file."""
        header = _HEADER.pack(_MAGIC, _VERSION, self.crc, self.offset, self.epoch, self.size)
        return header + _SEAL.pack(zlib.crc32(header))


class SnapshotNotWritten(OSError):
    """The snapshot was not written because the disk is full. The voter can continue without it."""


@contextmanager
def _full_disk_is_no_failure(abandon: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        abandon()
        raise SnapshotNotWritten(error.errno, error.strerror) from error


class OpenSnapshot:
    """A snapshot that is open for reading. It can be read to its end even if a newer snapshot replaces it meanwhile."""

    def __init__(self, snapshot: SnapshotId, file: DiskFile) -> None:
        self.snapshot = snapshot
        self._file = file

    def chunk(self, position: int, size: int) -> bytes:
        """Return at most `size` bytes of the encoded state, from `position` on."""
        return self._file.read(min(size, self.snapshot.size - position), _DATA_START + position)

    def read(self) -> bytes:
        """Return the whole encoded state. Raises `CorruptStorage` if its CRC is wrong. The call waits for the disk."""
        return _read_checked(self._file, self.snapshot)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SnapshotStore:
    """The snapshots in the voter's data directory."""

    def __init__(self, disk: Disk) -> None:
        """Find the newest snapshot, and remove older ones and the incomplete files that a crash left.

        Raises `CorruptStorage`, and `StorageMismatch` for a snapshot of a later format.
        """
        self._disk = disk
        self._incoming: DiskFile | None = None
        self.current: SnapshotId | None = None
        names = disk.names()
        snapshots = sorted(name for name in names if name.startswith(_PREFIX))
        if snapshots:
            self.current = self._read_header(snapshots[-1])
        leftovers = [name for name in names if name in (_WRITING, _RECEIVING)]
        for name in leftovers + snapshots[:-1]:
            disk.remove(name)
        # A snapshot is synced before it is renamed. But the new name may not be durable, if the process was killed
        # after the renaming. The name must be durable before the log entries that the snapshot replaces are removed.
        disk.sync_directory()

    def read_current(self) -> bytes | None:
        """Return the encoded state of the current snapshot, or None if there is no snapshot. Raises
        `CorruptStorage`.
        """
        if self.current is None:
            return None
        file = self._disk.open(self.current.name)
        try:
            return _read_checked(file, self.current)
        finally:
            file.close()

    def open_current(self) -> OpenSnapshot | None:
        """Open the current snapshot for reading. Return None if there is none, or if it is being replaced right now."""
        current = self.current
        if current is None:
            return None
        try:
            return OpenSnapshot(current, self._disk.open(current.name))
        except FileNotFoundError:
            return None

    def write(self, offset: int, epoch: int, data: bytes) -> SnapshotId:
        """Store a snapshot that this voter took, unless the current one is newer. Return its id in both cases.

        Raises `SnapshotNotWritten`.
        """
        snapshot = SnapshotId(offset, epoch, len(data), zlib.crc32(data))
        with _full_disk_is_no_failure(lambda: self._remove(_WRITING)):
            self._write_whole(snapshot, data)
        self._publish(_WRITING, snapshot)
        return snapshot

    def _write_whole(self, snapshot: SnapshotId, data: bytes) -> None:
        file = self._disk.open(_WRITING, create=True)
        try:
            file.write(snapshot.encode(), 0)
            for position in range(0, len(data), _READ_BYTES):
                file.write(data[position : position + _READ_BYTES], _DATA_START + position)
            file.sync()
        finally:
            file.close()

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._disk.remove(name)

    def begin_receiving(self, snapshot: SnapshotId) -> None:
        """Create the file for a snapshot that the leader sends in chunks. Raises `SnapshotNotWritten`."""
        self.abandon_receiving()
        with _full_disk_is_no_failure(self._remove_received):
            self._incoming = self._disk.open(_RECEIVING, create=True)
            self._incoming.write(snapshot.encode(), 0)

    def receive(self, position: int, data: bytes) -> None:
        """Write one received chunk. `position` is its position in the encoded state. Raises `SnapshotNotWritten`."""
        assert self._incoming is not None
        with _full_disk_is_no_failure(self._remove_received):
            self._incoming.write(data, _DATA_START + position)

    def finish_receiving(self, snapshot: SnapshotId) -> bytes | None:
        """Check a completely received snapshot, and return its encoded state, or None if it is damaged.

        If the snapshot is newer than the current one, it becomes durable and current. Otherwise its file is removed.
        Raises `SnapshotNotWritten`.
        """
        assert self._incoming is not None
        try:
            data = _read_checked(self._incoming, snapshot)
        except CorruptStorage:
            self.abandon_receiving()
            return None
        with _full_disk_is_no_failure(self._remove_received):
            self._incoming.sync()
        self.abandon_receiving()
        self._publish(_RECEIVING, snapshot)
        return data

    def abandon_receiving(self) -> None:
        """Close the file of the snapshot that is being received, if there is one."""
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None

    def _remove_received(self) -> None:
        self.abandon_receiving()
        self._remove(_RECEIVING)

    def _publish(self, name: str, snapshot: SnapshotId) -> None:
        old = self.current
        if old is not None and not self._is_newer(snapshot, old):
            self._disk.remove(name)
            return
        self._disk.rename(name, snapshot.name)
        self._disk.sync_directory()
        self.current = snapshot
        if old is not None and old.name != snapshot.name:
            self._disk.remove(old.name)

    @staticmethod
    def _is_newer(snapshot: SnapshotId, old: SnapshotId) -> bool:
        return snapshot.offset > old.offset

    def _read_header(self, name: str) -> SnapshotId:
        file = self._disk.open(name)
        try:
            data = file.read(_DATA_START, 0)
        finally:
            file.close()
        if len(data) >= _HEADER.size and data.startswith(_MAGIC):
            written_version = _HEADER.unpack_from(data)[1]
            if is_newer(written_version, _VERSION):
                raise newer_format(name, written_version, _VERSION)
        if len(data) < _DATA_START or _SEAL.unpack_from(data, _HEADER.size)[0] != zlib.crc32(
            data[: _HEADER.size]
        ):
            raise CorruptStorage(f"{name}: the snapshot's header is damaged")
        magic, version, crc, offset, epoch, size = _HEADER.unpack_from(data)
        snapshot = SnapshotId(offset, epoch, size, crc)
        if magic != _MAGIC or version != _VERSION or snapshot.name != name:
            raise CorruptStorage(f"{name}: the snapshot's header does not match the file's name")
        return snapshot


def _read_checked(file: DiskFile, snapshot: SnapshotId) -> bytes:
    data = file.read(snapshot.size, _DATA_START)
    if len(data) != snapshot.size or zlib.crc32(data) != snapshot.crc:
        raise CorruptStorage(f"{snapshot.name}: the snapshot is damaged")
    return data

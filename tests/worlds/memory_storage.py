"""A file system in memory that can lose power and fail: the log's `Storage` for tests and simulator.

Written and durable bytes are stored separately, as in a real file system: a file's writes become
durable by `datasync` or `sync`, a directory's entries by `sync_directory`. `lose_power` discards
changes that are not durable. If it is given a random source, some of these changes survive: each unsynced write
survives completely, in part or not at all, and of each directory's changes a prefix survives, as
with a file system's journal. `fault`, if set, is called before each operation that changes something, before each
read ("read") and each opening ("open"). It may raise an OSError or shorten a write.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

from odradek_broker.log.open_files import OpenFiles
from odradek_broker.log.storage import failed_sync
from odradek_protocol.records.batch_header import ByteBuffer

NAME_BYTES_MAX = 255  # limit of a file name in common file systems


class Inode:
    """A file's present content, its durable content, and the changes in between."""

    def __init__(self, number: int, modified_ms: int) -> None:
        self.number = number
        self.modified_ms = modified_ms
        self.data = bytearray()
        self.durable = b""
        # (position, bytes) of a write, or (size, None) of a truncation
        self.changes: list[tuple[int, bytes | None]] = []
        self.locked_by: MemoryFile | None = None
        self.handles: set[MemoryFile] = set()  # the open handles of this file
        self.is_lossy = False  # changes were not written back, and no later sync will write them

    def sync(self) -> None:
        if self.is_lossy:
            durable = bytearray(self.durable)
            for position, written in self.changes:
                _resize(durable, position if written is None else max(len(durable), position))
                if written is not None:
                    durable[position : position + len(written)] = written
            self.durable = bytes(durable)
        else:
            self.durable = bytes(self.data)
        self.changes = []

    def lose_power(self, random: Random | None, _changes_kept: int) -> None:
        data = bytearray(self.durable)
        for position, written in self.changes if random is not None else ():
            assert random is not None
            fate = random.random()
            if fate < 0.4:
                continue
            if written is None:
                _resize(data, position)
                continue
            kept = written if fate < 0.8 else written[: random.randrange(len(written) + 1)]
            if len(data) < position:
                _resize(data, position)
            data[position : position + len(kept)] = kept
        self.data = data
        self.is_lossy = False
        self.sync()
        self.locked_by = None


def _check_name(path: Path) -> None:
    if len(path.name.encode()) > NAME_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, "File name too long", str(path))


def _resize(data: bytearray, size_bytes: int) -> None:
    if size_bytes <= len(data):
        del data[size_bytes:]
    else:
        data.extend(bytes(size_bytes - len(data)))


class MemoryDirectory:
    """A directory's present names, its durable names, and the changes in between.

    A change maps a name to the file that it names from then on, or to None if the name was removed.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Inode | MemoryDirectory] = {}
        self.durable: dict[str, Inode | MemoryDirectory] = {}
        self.changes: list[dict[str, Inode | MemoryDirectory | None]] = []

    def change(self, change: dict[str, Inode | MemoryDirectory | None]) -> None:
        self.changes.append(change)
        self._apply(change)

    def _apply(self, change: dict[str, Inode | MemoryDirectory | None]) -> None:
        for name, entry in change.items():
            if entry is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = entry

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.changes = []

    def lose_power(self, random: Random | None, changes_kept: int) -> None:
        if random is not None:
            changes_kept = random.randrange(len(self.changes) + 1)
        self.entries = dict(self.durable)
        for change in self.changes[:changes_kept]:
            self._apply(change)
        self.sync()
        for entry in self.entries.values():
            entry.lose_power(random, changes_kept)


Fault = Callable[[str, Path], int | None]
"""(operation, path) -> None to continue, or the number of bytes to write at most. May raise OSError."""


class MemoryFile:
    """One open file handle."""

    def __init__(self, storage: MemoryStorage, inode: Inode, path: Path) -> None:
        self._storage = storage
        self._inode = inode
        self._path = path
        self.is_open = True
        self.failed_write_back = False  # whether the next sync through this handle must fail, once
        inode.handles.add(self)
        storage.handles += 1

    def pwrite(self, data: ByteBuffer, position: int) -> int:
        short = self._storage.ask("write", self._path)
        assert self.is_open
        written = bytes(data) if short is None else bytes(data)[:short]
        content = self._inode.data
        if len(content) < position:
            _resize(content, position)
        content[position : position + len(written)] = written
        self._inode.changes.append((position, written))
        self._inode.modified_ms = self._storage.now_ms
        return len(written)

    def pread(self, size_bytes: int, position: int) -> bytes:
        self._storage.ask("read", self._path)
        assert self.is_open
        return bytes(self._inode.data[position : position + size_bytes])

    def send_to(self, socket_fd: int, position: int, size_bytes: int) -> int:
        return os.write(socket_fd, self.pread(size_bytes, position))

    def is_resident(self, position: int, size_bytes: int) -> bool:
        return self._storage.is_hot

    def truncate(self, size_bytes: int) -> None:
        self._storage.ask("truncate", self._path)
        _resize(self._inode.data, size_bytes)
        self._inode.changes.append((size_bytes, None))
        self._inode.modified_ms = self._storage.now_ms

    def datasync(self) -> None:
        try:
            self._storage.ask("sync", self._path)
        except OSError as error:
            raise failed_sync(error) from error
        assert self.is_open
        if self.failed_write_back:
            self.failed_write_back = False
            raise failed_sync(OSError(errno.EIO, "write-back failed"))
        self._inode.sync()

    def sync(self) -> None:
        self.datasync()

    def size_bytes(self) -> int:
        return len(self._inode.data)

    def inode(self) -> int:
        return self._inode.number

    def duplicate(self) -> MemoryFile:
        assert self.is_open
        self._storage.ask("open", self._path)
        duplicate = MemoryFile(self._storage, self._inode, self._path)
        duplicate.failed_write_back = self.failed_write_back
        return duplicate

    def close(self) -> None:
        assert self.is_open
        self.is_open = False
        self._inode.handles.discard(self)
        self._storage.handles -= 1
        if self._inode.locked_by is self:
            self._inode.locked_by = None


class MemoryStorage:
    """The file system.

    `handles` counts open files; `is_hot` is the result of every check whether bytes are in the page
    cache; `now_ms` is its clock.
    """

    def __init__(self) -> None:
        self.root = MemoryDirectory()
        self.fault: Fault | None = None
        self.handles = 0
        self.log_files_max = 3  # so few that logs close and open their files all the time
        self.open_files = OpenFiles(lambda: self.log_files_max)
        self.is_hot = True
        self.now_ms = 0
        self.operations = 0
        self._inodes = count(1)

    def ask(self, operation: str, path: Path) -> int | None:
        """Count an operation, and let `fault`, if it is set, fail it."""
        if operation not in ("read", "open"):
            self.operations += 1
        return self.fault(operation, path) if self.fault is not None else None

    def fail_write_back(self, path: Path) -> None:
        """Simulate that the kernel fails to write back a file's unsynced changes, and then drops the
        inode from memory.

        Descriptors that are open now report the failure at their next sync. Descriptors that are
        opened later never report it.
        """
        inode = self.inode(path)
        if inode.changes:
            inode.changes = []
            inode.is_lossy = True
            for file in inode.handles:
                file.failed_write_back = True

    def kill_process(self) -> None:
        """Close all handles, as the end of the process does; the page cache keeps all writes."""
        self.handles = 0
        self.open_files = OpenFiles(lambda: self.log_files_max)
        self.fault = None
        self._unlock(self.root)

    def lose_power(self, random: Random | None = None, *, changes_kept: int = 0) -> None:
        """Keep only what was synced, and the first `changes_kept` of each directory's changes since
        its sync.

        If `random` is given, it chooses how many of these changes, and which of the unsynced
        writes, are kept.
        """
        self.kill_process()
        self.root.lose_power(random, changes_kept)

    def durable_files(self, path: Path) -> dict[str, bytes]:
        """Return the files of a directory that survive any power cut: all synced bytes under synced
        names.

        A directory that was renamed since its last sync keeps its earlier name.
        """
        parent: Inode | MemoryDirectory | None = self.root
        for part in path.parts[1:-1]:
            parent = parent.durable.get(part) if isinstance(parent, MemoryDirectory) else None
        node: Inode | MemoryDirectory | None = None
        if isinstance(parent, MemoryDirectory):
            node = parent.durable.get(path.name)
            present = parent.entries.get(path.name)
            if node is None and any(entry is present for entry in parent.durable.values()):
                node = present
        if not isinstance(node, MemoryDirectory):
            return {}
        return {
            name: entry.durable for name, entry in node.durable.items() if isinstance(entry, Inode)
        }

    def _unlock(self, directory: MemoryDirectory) -> None:
        for entry in directory.entries.values():
            if isinstance(entry, MemoryDirectory):
                self._unlock(entry)
            else:
                entry.locked_by = None

    def _directory(self, path: Path) -> MemoryDirectory:
        node: Inode | MemoryDirectory = self.root
        for part in path.parts[1:]:
            if not isinstance(node, MemoryDirectory) or part not in node.entries:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
            node = node.entries[part]
        if not isinstance(node, MemoryDirectory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        return node

    def inode(self, path: Path) -> Inode:
        """Return the file's content, which a test may read or damage."""
        node = self._directory(path.parent).entries.get(path.name)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        directory = self._directory(path.parent)
        self.ask("open", path)
        if create and path.name not in directory.entries:
            _check_name(path)
            self.ask("create", path)
            directory.change({path.name: Inode(next(self._inodes), self.now_ms)})
        return MemoryFile(self, self.inode(path), path)

    def read(self, path: Path) -> bytes:
        self.ask("read", path)
        return bytes(self.inode(path).data)

    def names(self, directory: Path) -> list[str]:
        return sorted(self._directory(directory).entries)

    def exists(self, path: Path) -> bool:
        try:
            parent = self._directory(path.parent)
        except OSError:
            return False
        return path.name in parent.entries

    def size_bytes(self, path: Path) -> int:
        return len(self.inode(path).data)

    def modified_ms(self, path: Path) -> int:
        return self.inode(path).modified_ms

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        self.inode(path).modified_ms = modified_ms

    def make_directory(self, path: Path) -> None:
        self.ask("create", path)
        _check_name(path)
        parent = self._directory(path.parent)
        if path.name not in parent.entries:
            parent.change({path.name: MemoryDirectory()})

    def rename(self, source: Path, target: Path) -> None:
        self.ask("rename", source)
        _check_name(target)
        parent = self._directory(source.parent)
        if source.name not in parent.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        assert source.parent == target.parent, (source, target)
        parent.change({source.name: None, target.name: parent.entries[source.name]})

    def remove(self, path: Path) -> None:
        directory = self._directory(path.parent)
        if path.name in directory.entries:
            self.ask("remove", path)
            directory.change({path.name: None})

    def remove_tree(self, path: Path) -> None:
        self.ask("remove", path)
        parent = self._directory(path.parent)
        if path.name not in parent.entries:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        parent.change({path.name: None})

    def sync_directory(self, path: Path) -> None:
        self.ask("open", path)
        try:
            self.ask("sync", path)
        except OSError as error:
            raise failed_sync(error) from error
        self._directory(path).sync()

    def free_bytes(self, path: Path) -> int:
        return 1 << 30

    def lock(self, path: Path) -> MemoryFile:
        file = self.open(path, create=True)
        inode = self.inode(path)
        if inode.locked_by is not None:
            file.close()
            raise BlockingIOError(errno.EAGAIN, "locked", str(path))
        inode.locked_by = file
        return file

    def process_id(self) -> int:
        return 4242

    def require_room_for_partition(self) -> None:
        """Do nothing, because there is always space."""

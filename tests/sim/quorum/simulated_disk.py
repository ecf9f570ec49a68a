"""A disk that loses unsynced bytes, writes pages in part, and fails any call on demand.

For each file it stores the bytes, and the old content of every page written since the last sync; a crash restores a
random subset of these pages. Names (created, renamed, removed) are durable after `sync_directory`; a crash keeps a
random prefix of the changes since then. A sync that fails marks the pages as clean without making them durable, as
Linux does: a later sync that succeeds proves nothing about these pages until they are written again.

The process may stop in the middle of a call (`interrupt_after`): a write is then done in part, any other call not at
all. If no `crash` follows, the process was killed: the next process reads the bytes that were written, synced or not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from errno import EIO

PAGE_BYTES = 4096


class PowerCut(BaseException):
    """The process, or its machine, stopped in the middle of a call."""


class SimulatedInode:
    """The bytes of one file, now and at its last sync."""

    def __init__(self, page_bytes: int) -> None:
        self.content = bytearray()
        self.page_bytes = page_bytes
        self.durable_size = 0
        self.dirty: dict[int, bytes] = {}  # page -> its durable content
        self.lost: dict[int, bytes] = {}  # pages that a failed sync dropped
        # The content before a truncation that is not synced; None: no such truncation.
        self.uncut: bytes | None = None

    def write(self, data: bytes, position: int) -> None:
        size = self.page_bytes
        if len(self.content) < position:
            self.content.extend(bytes(position - len(self.content)))
        for page in range(position // size, (position + len(data) - 1) // size + 1):
            if page not in self.dirty:
                end = min((page + 1) * size, self.durable_size)
                durable = self.lost.pop(page, None)
                if durable is None:
                    durable = bytes(self.content[page * size : end])
                self.dirty[page] = durable
        self.content[position : position + len(data)] = data

    def truncate(self, size: int) -> None:
        self.uncut = bytes(self.content)
        del self.content[size:]

    def sync(self) -> None:
        self.dirty.clear()
        self.uncut = None
        self.durable_size = len(self.content)

    @property
    def synced(self) -> bool:
        """Whether a crash at this moment would change nothing."""
        return not (self.dirty or self.lost or self.uncut is not None)

    def sync_failed(self) -> None:
        for page, old in self.dirty.items():
            self.lost.setdefault(page, old)
        self.dirty.clear()

    def crash(self, keep_page: Callable[[], bool]) -> None:
        """Lose the bytes that did not reach the disk."""
        if self.uncut is not None and not keep_page():
            self.content[:] = self.uncut
        size = self.page_bytes
        end = self.durable_size
        gone = dict(self.lost)
        for page, old in self.dirty.items():
            if keep_page():
                end = max(end, min((page + 1) * size, len(self.content)))
            else:
                gone.setdefault(page, old)
        for page, old in gone.items():
            start, stop = page * size, min((page + 1) * size, len(self.content))
            if start < stop:
                self.content[start:stop] = old[: stop - start].ljust(stop - start, b"\0")
        if not keep_page():  # the length is not durable either
            del self.content[end:]
        self.dirty.clear()
        self.lost.clear()
        self.uncut = None
        self.durable_size = len(self.content)


class SimulatedFile:
    """An open file (implements `DiskFile`)."""

    def __init__(self, disk: SimulatedDisk, inode: SimulatedInode, name: str) -> None:
        self._disk = disk
        self._inode = inode
        self._name = name

    def size(self) -> int:
        return len(self._inode.content)

    def read(self, size: int, position: int) -> bytes:
        return bytes(self._inode.content[position : position + size])

    def write(self, data: bytes, position: int) -> None:
        self._disk.enter("write", self._name, lambda part: self._write_part(data, position, part))
        self._inode.write(data, position)

    def _write_part(self, data: bytes, position: int, part: float) -> None:
        if written := data[: int(len(data) * part)]:
            self._inode.write(written, position)

    def sync(self) -> None:
        self._disk.enter("sync", self._name, failed=self._inode.sync_failed)
        self._inode.sync()

    def truncate(self, size: int) -> None:
        self._disk.enter("truncate", self._name)
        self._inode.truncate(size)

    def close(self) -> None:
        pass


class SimulatedDisk:
    """One directory (implements `Disk`)."""

    def __init__(self, randomness: random.Random, *, page_bytes: int = PAGE_BYTES) -> None:
        self._random = randomness
        self._page_bytes = page_bytes
        self._inodes: dict[str, SimulatedInode] = {}
        self._durable_names: dict[str, SimulatedInode] = {}
        self._changes: list[tuple[str, SimulatedInode | None]] = []
        self.calls: Counter[str] = Counter()
        self.call_names: list[str] = []
        # Maps (call, name) to whether the call fails: True: with EIO; a number: with this errno.
        self.fail: Callable[[str, str], bool | int] | None = None
        self.interrupt_after: int | None = None  # interrupt the call after this number of calls

    def enter(
        self,
        call: str,
        name: str,
        in_part: Callable[[float], None] = lambda part: None,
        *,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin a call that changes something. The call may be interrupted or fail here.

        `in_part` does a share (0 to 1) of the call before it is interrupted or fails. `failed` is called only if the
        call fails.
        """
        self.calls[call] += 1
        self.call_names.append(f"{call} {name}")
        if self.interrupt_after is not None:
            if self.interrupt_after == 0:
                in_part(self._random.random())
                raise PowerCut
            self.interrupt_after -= 1
        if self.fail is not None and (errno := self.fail(call, name)):
            in_part(self._random.random())
            failed()
            raise OSError(int(errno) if errno is not True else EIO, f"injected: {call} {name}")

    def names(self) -> list[str]:
        return sorted(self._inodes)

    def open(self, name: str, *, create: bool = False) -> SimulatedFile:
        if create:
            self.enter("create", name)
            inode = SimulatedInode(self._page_bytes)
            self._set(name, inode)
        elif name not in self._inodes:
            raise FileNotFoundError(name)
        return SimulatedFile(self, self._inodes[name], name)

    def rename(self, old: str, new: str) -> None:
        self.enter("rename", new)
        inode = self._inodes[old]
        self._set(old, None)
        self._set(new, inode)
        # A rename is one change, so a crash never keeps the removal without the new name.
        removal = self._changes.pop(-2)
        assert removal == (old, None)
        self._changes.append(removal)

    def remove(self, name: str) -> None:
        self.enter("remove", name)
        if name not in self._inodes:
            raise FileNotFoundError(name)
        self._set(name, None)

    def sync_directory(self) -> None:
        self.enter("sync_directory", "")
        self._durable_names = dict(self._inodes)
        self._changes.clear()

    def _set(self, name: str, inode: SimulatedInode | None) -> None:
        self._changes.append((name, inode))
        if inode is None:
            del self._inodes[name]
        else:
            self._inodes[name] = inode

    def crash(self, *, keep_page: Callable[[], bool] | None = None) -> None:
        """Cut the power. Unsynced bytes and names are lost, or kept in part."""
        keep = keep_page if keep_page is not None else lambda: self._random.random() < 0.5
        names = dict(self._durable_names)
        for name, inode in self._changes[: self._random.randint(0, len(self._changes))]:
            if inode is None:
                names.pop(name, None)
            else:
                names[name] = inode
        for inode in {id(inode): inode for inode in names.values()}.values():
            inode.crash(keep)
        self._inodes = names
        self._durable_names = dict(names)
        self._changes.clear()
        self.fail = None
        self.interrupt_after = None

    def unsynced(self, prefixes: tuple[str, ...]) -> list[str]:
        """Return the names with these prefixes that a crash would remove, or whose bytes a crash would change."""
        return [
            name
            for name, inode in self._inodes.items()
            if name.startswith(prefixes)
            and (self._durable_names.get(name) is not inode or not inode.synced)
        ]

    def after_power_cut(self) -> SimulatedDisk:
        """Return a copy of the disk with only what is durable at this moment. This disk does not change."""
        other = SimulatedDisk(random.Random(0), page_bytes=self._page_bytes)
        copies: dict[int, SimulatedInode] = {}
        for name, inode in self._durable_names.items():
            copy = copies.setdefault(id(inode), SimulatedInode(self._page_bytes))
            copy.content = bytearray(inode.content)
            copy.durable_size = inode.durable_size
            copy.dirty = dict(inode.dirty)
            copy.lost = dict(inode.lost)
            copy.uncut = inode.uncut
            copy.crash(lambda: False)
            other._inodes[name] = copy
        other._durable_names = dict(other._inodes)
        return other

    def corrupt(self, name: str, position: int, size: int = 1) -> None:
        """Flip all bits of some durable bytes of a file."""
        content = self._inodes[name].content
        for at in range(position, position + size):
            content[at] ^= 0xFF

    def size_of(self, name: str) -> int:
        """Return the length of a file in bytes."""
        return len(self._inodes[name].content)

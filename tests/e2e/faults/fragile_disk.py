"""Disks that lose unsynced bytes: a power loss for real processes, on a machine that keeps running.

    fragile = FragileDisks(root, workspace)   compiles power_loss_shim.c
    fragile.plug_in()                         treats all present files as durable
    ... processes run with the variables of `environment()`, and are killed ...
    fragile.cut_power()                       leaves in `root` what its disks held

Processes may be killed at any moment, or in the middle of a change by `kill_within`. The shim
writes a journal for each process; these journals are replayed here. A file holds what its last
fsync covered, and a directory the entries of its last fsync (a synced file in an unsynced directory
is lost, as POSIX allows). With a `chance` the disk may also have written some of the unsynced changes: any
sectors of 512 bytes of any unsynced write, and a prefix of the changes of a directory.
"""

from __future__ import annotations

import heapq
import random
import shutil
import struct
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.tools import c_compiler, need

SHIM_SOURCE = Path(__file__).with_name("power_loss_shim.c")
SECTOR_BYTES = 512
_ENTRY = struct.Struct("<IBxHHxxIQQQQ")
_MAGIC = 0x0FF0FF01


@dataclass(slots=True, eq=False)
class _File:
    """The durable bytes of a file, and its later changes: (offset, data), or (size, None) for a truncation."""

    synced: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)

    def sync(self) -> None:
        for offset, data in self.unsynced:
            _apply(self.synced, offset, data)
        self.unsynced.clear()

    def after_power_loss(self, chance: random.Random | None) -> bytes:
        """Return the bytes that the disk holds after a power loss."""
        content = bytearray(self.synced)
        if chance is None:
            return bytes(content)
        # The share of the file's unsynced sectors that the disk has written.
        share = chance.choice((0.0, 0.5, 0.9, 1.0))
        for offset, data in self.unsynced:
            if data is None:
                if chance.random() < share:
                    _apply(content, offset, None)
                continue
            for start, end in _sectors(offset, len(data)):
                if chance.random() < share:
                    _apply(content, start, data[start - offset : end - offset])
        return bytes(content)


@dataclass(slots=True, eq=False)
class _Directory:
    """The durable entries of a directory, and its later changes: (name, file or directory, or None if removed)."""

    synced: dict[str, _Node] = field(default_factory=dict)
    unsynced: list[list[tuple[str, _Node | None]]] = field(default_factory=list)
    now: dict[str, _Node] = field(default_factory=dict)

    def change(self, *entries: tuple[str, _Node | None]) -> None:
        """Record one change, of one name or, for a rename, of two names."""
        self.unsynced.append(list(entries))
        _enter(self.now, entries)

    def sync(self) -> None:
        self.synced = dict(self.now)
        self.unsynced.clear()

    def after_power_loss(self, chance: random.Random | None) -> dict[str, _Node]:
        """Return the entries that the disk holds after a power loss."""
        entries = dict(self.synced)
        survivors = 0 if chance is None else chance.randint(0, len(self.unsynced))
        for change in self.unsynced[:survivors]:
            _enter(entries, change)
        return entries


_Node = _File | _Directory


@dataclass(frozen=True, slots=True)
class PowerLoss:
    """What a power cut lost: the number of unsynced bytes, and of changes in directories."""

    unsynced_bytes: int
    unsynced_entries: int


class FragileDisks:
    """The disks that hold everything below `root`.

    `workspace` is a directory outside of `root` for the journals.
    """

    def __init__(self, root: Path, workspace: Path) -> None:
        self.root = root
        self._workspace = workspace
        self._journals = workspace / "journals"
        self._boot_id = workspace / "boot_id"
        self._stops = workspace / "stops"
        self._shim = build_shim(workspace)
        self._nodes: dict[int, _Node] = {}
        self._root_node = _Directory()

    def environment(self, *, lies: str = "", sync_ms: int = 0) -> dict[str, str]:
        """Return the environment variables for processes whose unsynced files are to be lost.

        Syncs of files whose names end in `lies` do nothing; each sync takes at least `sync_ms`.
        """
        return {
            "LD_PRELOAD": str(self._shim),
            "POWER_LOSS_ROOT": str(self.root),
            "POWER_LOSS_JOURNALS": str(self._journals),
            "POWER_LOSS_BOOT_ID": str(self._boot_id),
            "POWER_LOSS_LIES": lies,
            "POWER_LOSS_SYNC_MS": str(sync_ms),
            "POWER_LOSS_STOPS": str(self._stops),
        }

    def plug_in(self) -> None:
        """Treat the present files as durable, and simulate a boot. No process may run."""
        for folder in (self._journals, self._stops):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        self._boot_id.write_text(f"{uuid.uuid4()}\n")
        self._nodes = {}
        self._root_node = self._found(self.root)

    def kill_within(self, pid: int, changes: int) -> None:
        """Let a running process be killed in the middle of its n-th change from now, such as a
        write, a sync or a rename.
        """
        assert changes > 0
        with (self._stops / str(pid)).open("r+b", buffering=0) as stops:
            stops.write(struct.pack("=I", changes))

    def cut_power(self, chance: random.Random | None = None) -> PowerLoss:
        """Leave what the disks held, and simulate a boot; all processes must have been killed
        before.
        """
        self._replay()
        loss = PowerLoss(
            sum(len(data or b"") for file in self._files() for _, data in file.unsynced),
            sum(len(d.unsynced) for d in self._nodes.values() if isinstance(d, _Directory)),
        )
        for child in self.root.iterdir():
            # The root itself has only log files of processes, which are not data.
            if child.is_dir():
                shutil.rmtree(child)
        _write(self.root, self._root_node, chance)
        self.plug_in()
        return loss

    def differences(self) -> list[str]:
        """Return where the files below the root differ from the journals; any difference means that
        the shim missed a change.
        """
        self._replay()
        return list(_differences(self.root, self._root_node))

    def _files(self) -> Iterator[_File]:
        return (node for node in self._nodes.values() if isinstance(node, _File))

    def _found(self, path: Path) -> _Directory:
        entries: dict[str, _Node] = {}
        for child in path.iterdir():
            if child.is_dir():
                entries[child.name] = self._found(child)
            elif path != self.root:
                node = _File(synced=bytearray(child.read_bytes()))
                entries[child.name] = self._nodes[child.stat().st_ino] = node
        directory = _Directory(synced=dict(entries), now=entries)
        self._nodes[path.stat().st_ino] = directory
        return directory

    def _replay(self) -> None:
        """Replay the journals of all processes in order of time, because one process may reuse an
        inode that another one freed.
        """
        journals = sorted(self._journals.iterdir())
        for entry in heapq.merge(*map(_entries, journals), key=lambda entry: entry[0]):
            self._take(*entry[1:])
        for journal in journals:
            journal.unlink()

    def _take(
        self, kind: str, inode: int, parent: int, offset: int, name: str, target: str, data: bytes
    ) -> None:
        match kind:
            case "C" | "D":
                node: _Node = _File() if kind == "C" else _Directory()
                self._nodes[inode] = node
                self._directory(parent).change((name, node))
            case "W":
                self._file(inode).unsynced.append((offset, data))
            case "T":
                self._file(inode).unsynced.append((offset, None))
            case "S":
                self._nodes[inode].sync()
            case "R":
                directory = self._directory(inode)
                directory.change((target, directory.now[name]), (name, None))
            case "U":
                self._directory(inode).change((name, None))
            case _:
                raise AssertionError(f"an entry of kind {kind}")

    def _file(self, inode: int) -> _File:
        node = self._nodes[inode]
        assert isinstance(node, _File), inode
        return node

    def _directory(self, inode: int) -> _Directory:
        node = self._nodes[inode]
        assert isinstance(node, _Directory), inode
        return node


def build_shim(workspace: Path) -> Path:
    """Compile the shim; skip the test if there is no C compiler.

    Raises:
        RuntimeError: the compiler refused the source.
    """
    need("a C compiler")
    library = workspace / "power_loss_shim.so"
    command = [str(c_compiler()), "-shared", "-fPIC", "-O2"]
    command += ["-Wall", "-Wextra", "-Werror", "-o", str(library), str(SHIM_SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if built.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{built.stderr}")
    return library


def _entries(path: Path) -> Iterator[tuple[int, str, int, int, int, str, str, bytes]]:
    """Yield (time, kind, inode, parent, offset, name, target, data) of each entry of a journal."""
    journal, position = path.read_bytes(), 0
    while position + _ENTRY.size <= len(journal):
        magic, kind, *sizes, inode, parent, offset, time_ns = _ENTRY.unpack_from(journal, position)
        assert magic == _MAGIC, f"{path} at {position}"
        start = position + _ENTRY.size
        position = start + sum(sizes)
        if position > len(journal):
            return  # the process was killed while it wrote this entry
        name = journal[start : start + sizes[0]].decode()
        start += sizes[0]
        target = journal[start : start + sizes[1]].decode()
        data = journal[start + sizes[1] : position]
        yield time_ns, chr(kind), inode, parent, offset, name, target, data


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    size = offset if data is None else offset + len(data)
    if len(content) < offset or data is None:
        del content[size:]
        content.extend(bytes(max(offset - len(content), 0)))
    if data is not None:
        content[offset:size] = data


def _sectors(offset: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    start, end = offset, offset + size_bytes
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield start, stop
        start = stop


def _enter(
    entries: dict[str, _Node],
    change: list[tuple[str, _Node | None]] | tuple[tuple[str, _Node | None], ...],
) -> None:
    for name, node in change:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _write(path: Path, directory: _Directory, chance: random.Random | None) -> None:
    path.mkdir(exist_ok=True)
    for name, node in directory.after_power_loss(chance).items():
        if isinstance(node, _File):
            (path / name).write_bytes(node.after_power_loss(chance))
        else:
            _write(path / name, node, chance)


def _differences(path: Path, directory: _Directory) -> Iterator[str]:
    for name, node in directory.now.items():
        child = path / name
        if not child.exists():
            yield f"{child} is not there"
        elif isinstance(node, _Directory):
            unknown = {found.name for found in child.iterdir()} - node.now.keys()
            yield from (f"{child / one} was not noted" for one in sorted(unknown))
            yield from _differences(child, node)
        else:
            content = bytearray(node.synced)
            for offset, data in node.unsynced:
                _apply(content, offset, data)
            if child.read_bytes() != bytes(content):
                yield f"{child} holds other bytes than were noted"

"""Directories of partitions that are no longer in use: deleted ones, and strays, which are kept for an operator.

    <topic>-<partition>/                                live
    <topic id, hex>-<partition>.<random>-delete/        deleted: a disk thread removes it later
    <topic id, hex>-<partition>.<random>-stray/         a stray; `stray.json` describes the log
    <topic>-<partition>/ with stray.json                a restored stray; the next checkpoint deletes the file

The new names do not contain the topic name: it may be as long as a file name may be, and a topic of that name may be
created again.

A removal is never urgent, so its errors do not take the data directory offline: a directory that cannot be renamed is
removed under its old name, and one that cannot be removed stays on the list of directories to remove. Only a disk error
of the rename is raised, because the live logs are on that disk, too.

A log is a stray if the metadata does not assign its partition to this broker and this process has seen no record that
removed it: the topic may have been deleted while the broker was down, or the broker may follow the wrong metadata. Only
an operator can tell these cases apart, so the log is kept (for `log.dir.stray.retention.ms`, if that is set). A stray
that is restored continues with the offsets in `stray.json`. If it was not synced before a power loss, any part of it
may be missing, so its recovery point does not count and the whole log is scanned. The broker's registration
reports a stray without `stray.json` as lost and, after a power loss, also a stray that was not synced.
"""

from __future__ import annotations

import contextlib
import errno
import json
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from odradek_broker.log.directory.partition_files import (
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    parse_directory_name,
    parse_uuid,
    read_metadata,
    uuid_text,
)
from odradek_broker.log.storage import ErrorClass, Storage, error_class, write_all
from odradek_protocol.identity import PartitionIndex, TopicId, TopicIdPartition

STRAY_FILE: Final = "stray.json"
UNKNOWN_MS: Final = -1
_NAME_KEPT_MAX: Final = 200  # a name from an earlier version is cut to this many characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A log that was put aside, with its offsets at that time. `since_ms` is wall-clock time; UNKNOWN_MS: unknown."""

    name: str
    topic: str = ""
    topic_id: str = ""
    partition: int = -1
    reason: str = "an earlier version put it aside"
    since_ms: int = UNKNOWN_MS
    size_bytes: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    recovery_point: int = 0
    log_end_offset: int = 0
    is_synced: bool = False

    @property
    def id(self) -> TopicIdPartition | None:
        """The partition of the log; None if it is unknown."""
        if not self.topic_id:
            return None
        return TopicIdPartition(TopicId(parse_uuid(self.topic_id)), PartitionIndex(self.partition))


def departed_name(partition: TopicIdPartition, suffix: str) -> str:
    """Return a new name for the directory of a partition that is no longer live; at most 62 characters."""
    return f"{partition.topic_id.hex()}-{partition.partition}.{secrets.token_hex(8)}{suffix}"


class Strays:
    """The stray logs of one data directory. The event loop calls all methods except `load` and `sync`."""

    __slots__ = ("_by_name", "_path", "_storage")

    def __init__(self, storage: Storage, path: Path) -> None:
        self._storage = storage
        self._path = path
        self._by_name: dict[str, Stray] = {}

    def __iter__(self) -> Iterator[Stray]:
        return iter(tuple(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def size_bytes(self) -> int:
        """The size of all strays, without indexes."""
        return sum(stray.size_bytes for stray in self)

    def find(self, partition: TopicIdPartition) -> Stray | None:
        """Return the stray with the highest log end offset among those of a partition; None if there is none."""
        strays = [stray for stray in self if stray.id == partition]
        return max(strays, key=lambda stray: stray.log_end_offset, default=None)

    def load(self) -> None:
        """Find the strays of earlier processes (blocks). Raises OSError."""
        self._by_name = {stray.name: stray for stray in read_strays(self._storage, self._path)}

    def put_aside(self, path: Path, stray: Stray) -> None:
        """Rename the directory of a log that is no longer used. The caller should `sync` the stray soon.

        Raises OSError if the disk fails. After any other error of the rename the stray keeps its live name.
        """
        with contextlib.suppress(OSError):  # a directory without stray.json is a stray, too
            write_stray_file(self._storage, path, stray)
        try:
            self._storage.rename(path, self._path / stray.name)
        except OSError as error:
            if error_class(error) is ErrorClass.DISK:
                raise
            stray = replace(stray, name=path.name)
        self._by_name[stray.name] = stray

    def make_way(self, path: Path) -> None:
        """Try again to rename a stray that still has the live name `path`, so that a log can be created at `path`.
        Raises OSError.
        """
        stray = self._by_name.get(path.name)
        if stray is not None and stray.id is not None:
            name = departed_name(stray.id, STRAY_SUFFIX)
            self._storage.rename(path, self._path / name)
            del self._by_name[path.name]
            self._by_name[name] = replace(stray, name=name)

    def sync(self, stray: Stray) -> None:
        """Make a stray durable and record that in its `stray.json` (blocks). Raises OSError."""
        path = self._path / stray.name
        try:
            for name in self._storage.names(path):
                file = self._storage.open(path / name)
                try:
                    file.sync()
                finally:
                    file.close()
            synced = replace(stray, is_synced=True)
            write_stray_file(self._storage, path, synced, sync=True)
            self._storage.sync_directory(path)
            self._storage.sync_directory(self._path)
        except FileNotFoundError:  # another thread removed or restored the stray during the sync
            return
        if stray.name in self._by_name:
            self._by_name[stray.name] = synced

    def bring_back(self, stray: Stray, live: Path) -> None:
        """Rename a stray to its live name. If this raises OSError, the log is still a stray, unless its directory no
        longer exists.
        """
        path = self._path / stray.name
        if path != live:
            try:
                self._storage.rename(path, live)
            except FileNotFoundError:
                self._by_name.pop(stray.name, None)
                raise
        self._by_name.pop(stray.name, None)

    def keep(self, stray: Stray, live: Path) -> None:
        """Keep a log as a stray under its live name, because it could not be opened after `bring_back`."""
        self._by_name[live.name] = replace(stray, name=live.name)

    def forget_removed(self) -> None:
        """Remove from this list the strays whose directories an operator has removed. Makes one system call for each
        stray.
        """
        for name in tuple(self._by_name):
            if not self._storage.exists(self._path / name):
                del self._by_name[name]

    def expired(self, *, now_ms: int, retention_ms: int) -> list[Stray]:
        """Return the strays that are at least `retention_ms` old; none if `retention_ms` is -1. A stray of unknown age
        never expires.
        """
        if retention_ms < 0:
            return []
        return [s for s in self if s.since_ms >= 0 and now_ms - s.since_ms >= retention_ms]

    def remove(self, stray: Stray) -> Path:
        """Mark a stray as deleted and return the path of the directory to remove. Raises OSError."""
        target = removed_stray(self._storage, self._path, stray)
        self._by_name.pop(stray.name, None)
        return target


def removed_stray(storage: Storage, path: Path, stray: Stray) -> Path:
    """Rename a stray as deleted, so that it is not restored, and return the new path. Raises OSError."""
    target = path / f"{stray.name[:_NAME_KEPT_MAX].removesuffix(STRAY_SUFFIX)}{DELETE_SUFFIX}"
    with contextlib.suppress(FileNotFoundError):
        storage.rename(path / stray.name, target)
    return target


def read_strays(storage: Storage, path: Path) -> Iterator[Stray]:
    """Yield the strays in a data directory, by name (blocks)."""
    for name in sorted(storage.names(path)):
        if name.endswith(STRAY_SUFFIX) and parse_directory_name(name) is None:
            stray = read_stray_file(storage, path / name) or Stray(
                name=name, topic_id=_topic_id(storage, path / name), partition=_partition(name)
            )
            yield replace(stray, name=name, size_bytes=_size_bytes(storage, path / name))


def read_stray_file(storage: Storage, path: Path) -> Stray | None:
    """Read `stray.json` in a directory; None if it is missing or torn."""
    try:
        return Stray(**json.loads(storage.read(path / STRAY_FILE)))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write_stray_file(storage: Storage, path: Path, stray: Stray, *, sync: bool = False) -> None:
    """Write `stray.json`, with a sync if `sync` is set. Raises OSError."""
    file = storage.open(path / STRAY_FILE, create=True)
    try:
        file.truncate(0)
        write_all(file, json.dumps(asdict(stray)).encode(), 0)
        if sync:
            file.sync()
    finally:
        file.close()


def _topic_id(storage: Storage, path: Path) -> str:
    try:
        return uuid_text(read_metadata(storage, path))
    except (FileNotFoundError, ValueError):
        return ""


def _partition(name: str) -> int:
    parsed = parse_directory_name(name.rpartition(".")[0])
    return parsed[1] if parsed is not None else -1


def _size_bytes(storage: Storage, path: Path) -> int:
    return sum(storage.size_bytes(path / n) for n in storage.names(path) if n.endswith(".log"))


class Departures:
    """Directories of deleted partitions, until they are removed. The event loop calls all methods except `remove`."""

    __slots__ = ("_path", "_storage", "_under_old_name", "_waiting")

    def __init__(self, storage: Storage, path: Path) -> None:
        self._storage = storage
        self._path = path
        self._waiting: list[Path] = []
        self._under_old_name: dict[Path, TopicIdPartition] = {}

    def delete(self, path: Path, partition: TopicIdPartition) -> None:
        """Rename a live directory as deleted and add it to the list. Raises OSError if the disk fails."""
        target = self._path / departed_name(partition, DELETE_SUFFIX)
        try:
            self._storage.rename(path, target)
        except FileNotFoundError:
            return
        except OSError as error:
            if error_class(error) is ErrorClass.DISK:
                raise
            self._under_old_name[path] = partition
            target = path
        self._waiting.append(target)

    def add(self, path: Path) -> None:
        """Add a directory that already has the name of a deleted directory."""
        self._waiting.append(path)

    def make_way(self, path: Path) -> None:
        """Ensure that no directory has this path, so that a log can be created at this path. Raises OSError."""
        if not self._storage.exists(path):
            self._under_old_name.pop(path, None)
            return
        partition = self._under_old_name.pop(path, None)
        if partition is not None:
            # If the path is not on the list, a disk thread is removing the directory at this moment.
            with contextlib.suppress(ValueError):
                self._waiting.remove(path)
                self.delete(path, partition)
        if self._storage.exists(path):
            if partition is not None:
                self._under_old_name[path] = partition
            raise FileExistsError(
                errno.EEXIST,
                "a directory of another topic has this name and cannot be renamed",
            )

    def take(self) -> list[Path]:
        """Return all directories on the list and clear the list. The caller runs `remove` of each on a disk thread."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def remove(self, path: Path) -> None:
        """Remove one directory (blocks, perhaps for long). If this raises OSError, the directory is on the
        list again.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                self._storage.remove_tree(path)
        except OSError:
            self._waiting.append(path)
            raise

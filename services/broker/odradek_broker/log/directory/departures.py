"""Directories of partitions that are no longer here: renamed at once, removed later, never in anybody's way.

    <topic>-<partition>                                 live
    <topic id, hex>-<partition>.<random>-delete         deleted: `remove` takes it away, in the pool

The name of a deleted directory has no topic in it: a topic may be as long as a file's name, and may be made again.
Removing is never urgent, so no error of it fails the data directory: a directory that cannot be renamed is
removed under its old name, and one that cannot be removed stays on the list. What only the disk can be blamed
for is raised by the rename, because the live logs lie on that disk too.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

from odradek_broker.log.directory.partition_files import DELETE_SUFFIX
from odradek_broker.log.directory.strays import departed_name
from odradek_broker.log.error_classes import ErrorClass, error_class
from odradek_broker.log.storage import Storage
from odradek_protocol.identity import TopicIdPartition


class Departures:
    """What of one data directory waits to be removed. Used on the loop, but for `remove`."""

    __slots__ = ("_path", "_storage", "_under_old_name", "_waiting")

    def __init__(self, storage: Storage, path: Path) -> None:
        self._storage = storage
        self._path = path
        self._waiting: list[Path] = []
        self._under_old_name: dict[Path, TopicIdPartition] = {}

    def delete(self, path: Path, partition: TopicIdPartition) -> None:
        """Rename a live directory away, to be removed. Raises OSError if the disk fails."""
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
        """A directory that another life deleted."""
        self._waiting.append(path)

    def make_way(self, path: Path) -> None:
        """See that no directory has this name, so that a live one may be made. Raises OSError."""
        if not self._storage.exists(path):
            self._under_old_name.pop(path, None)
            return
        partition = self._under_old_name.pop(path, None)
        if partition is not None:
            with contextlib.suppress(ValueError):  # it is being removed at this moment
                self._waiting.remove(path)
                self.delete(path, partition)
        if self._storage.exists(path):
            if partition is not None:
                self._under_old_name[path] = partition
            raise FileExistsError(errno.EEXIST, "a directory of another topic has the name")

    def take(self) -> list[Path]:
        """All that are to be removed: `remove` each of them, in the pool."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def remove(self, path: Path) -> None:
        """Remove one of `take` (waits; may take long). Raises OSError: it is on the list again."""
        try:
            with contextlib.suppress(FileNotFoundError):
                self._storage.remove_tree(path)
        except OSError:
            self._waiting.append(path)
            raise

"""Recovery of all logs of a data directory at start, a few at a time, in threads."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from odradek_broker.log.directory.checkpoints import OffsetCheckpoint
from odradek_broker.log.directory.opening import is_formatted
from odradek_broker.log.directory.partition_files import (
    DAMAGED,
    DELETE_SUFFIX,
    METADATA,
    STRAY_SUFFIX,
    parse_directory_name,
    read_metadata,
)
from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_broker.log.directory.strays import (
    STRAY_FILE,
    UNKNOWN_MS,
    Stray,
    Strays,
    read_stray_file,
)
from odradek_broker.log.recovery import LoadedLog, Recovery
from odradek_broker.log.storage import (
    DirectoryHealth,
    ErrorClass,
    Storage,
    StorageFailed,
    error_class,
)
from odradek_protocol.identity import Offset, TopicIdPartition, TopicName

# The number of characters of the old name that a new name keeps, because a file name has at most 255 bytes.
_NAME_KEPT_MAX: Final = 200


class FoundPartition(NamedTuple):
    """A partition's directory with its topic name and its id."""

    path: Path
    topic: TopicName
    id: TopicIdPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The result of loading all logs. `power_loss` are the partitions whose log, or stray log, lost or may have lost
    durable bytes. `stray` are the names of directories that were put aside because they contain no topic id.
    """

    partitions: int
    scanned_bytes: int
    cut_bytes: int
    power_loss: tuple[TopicIdPartition, ...]
    stray: tuple[str, ...]
    damage: tuple[str, ...] = ()
    """One sentence about each log that was damaged on the disk."""


@dataclass(slots=True, kw_only=True)
class DirectoryLoad:
    """Loads all logs of a directory once. Raises StorageFailed when the disk fails."""

    storage: Storage
    path: Path
    health: DirectoryHealth
    restart_class: RestartClass
    recovery_points: OffsetCheckpoint
    high_watermarks: OffsetCheckpoint
    log_starts: OffsetCheckpoint
    strays: Strays
    deleted: list[Path] = field(default_factory=list)
    damage_marks: list[Path] = field(default_factory=list)
    returned: list[Path] = field(default_factory=list)  # the stray.json of logs that were restored
    _stray: list[str] = field(default_factory=list)
    _done: int = 0

    def run(
        self,
        add: Callable[[FoundPartition, LoadedLog], None],
        *,
        on_progress: Callable[[int, int], None] | None,
        threads_max: int,
    ) -> LoadReport:
        """Recover every partition and pass the result to `add`, which is called from threads."""
        points = self.recovery_points.read()
        watermarks = self.high_watermarks.read()
        starts = self.log_starts.read()
        try:
            partitions = self._find()
            self.strays.load()
        except OSError as error:
            raise self.health.fail_to_read(f"listing {self.path}", error) from error
        self._require_distinct(partitions)
        trusted: dict[TopicIdPartition, Offset] = {}
        kept_watermarks: dict[TopicIdPartition, Offset] = {}
        kept_ends: dict[TopicIdPartition, Offset] = {}

        def recover(location: FoundPartition) -> Recovery:
            try:
                names = self.storage.names(location.path)
                if STRAY_FILE in names:
                    self._take_offsets_of_a_stray(location, points, watermarks, starts)
            except OSError as error:
                raise self.health.fail_to_read(f"opening {location.path}", error) from error
            mark = location.path / DAMAGED
            is_marked = DAMAGED in names
            recovery = Recovery(
                storage=self.storage,
                directory=location.path,
                names=names,
                recovery_point=None if is_marked else points.get(location.id),
                high_watermark=watermarks.get(location.id),
                log_start_offset=starts.get(location.id),
                is_clean=self.restart_class is RestartClass.CLEAN and not is_marked,
                is_power_loss=self.restart_class is RestartClass.POWER,
            )
            try:
                loaded = recovery.run()
            except OSError as error:
                raise self.health.fail_to_write(f"opening {location.path}", error) from error
            if is_marked:
                recovery.lost_bytes |= loaded.segments[-1].end_offset < points.get(location.id, 0)
                self._verified(mark, has_lost=recovery.lost_bytes)
            trusted[location.id] = loaded.recovery_point
            kept_watermarks[location.id] = loaded.high_watermark
            kept_ends[location.id] = Offset(loaded.segments[-1].end_offset)
            add(location, loaded)
            self._done += 1
            if on_progress is not None:
                on_progress(self._done, len(partitions))
            return recovery

        with ThreadPoolExecutor(threads_max, thread_name_prefix="log-recovery") as pool:
            recoveries = list(pool.map(recover, partitions))
        durable = {
            partition: max(points.get(partition, 0), watermarks.get(partition, 0))
            for partition in {*points, *watermarks}
        }
        existing = {location.id for location in partitions} | {stray.id for stray in self.strays}
        lost = [p for p, offset in durable.items() if offset > 0 and p not in existing]
        lost += [
            location.id for location, r in zip(partitions, recoveries, strict=True) if r.lost_bytes
        ]
        if lost:
            past_ends = {p: Offset(kept_ends.get(p, 0) + 1) for p in lost}
            remembered = kept_watermarks | {
                p: max(Offset(durable.get(p, 0)), past_ends[p]) for p in lost
            }
            self._forget_recovery_points(trusted, remembered)
        return LoadReport(
            partitions=len(partitions),
            scanned_bytes=sum(r.scanned_bytes for r in recoveries),
            cut_bytes=sum(r.cut_bytes for r in recoveries),
            power_loss=(*lost, *self._unsure_strays()),
            stray=tuple(self._stray),
            damage=tuple(text for r in recoveries for text in (*r.dropped, r.damage) if text),
        )

    def _require_distinct(self, partitions: list[FoundPartition]) -> None:
        """Raise StorageFailed if two directories are logs of the same partition: an operator has copied one, and the
        broker cannot know which of the two is outdated. The disk is not at fault, so `health` does not change.
        """
        paths: dict[TopicIdPartition, Path] = {}
        for location in partitions:
            other = paths.setdefault(location.id, location.path)
            if other is not location.path:
                raise StorageFailed(
                    f"{other.name} and {location.path.name} in {self.path} are logs of the same partition: move one of"
                    " them out of the data directory"
                )

    def _verified(self, mark: Path, *, has_lost: bool) -> None:
        """Remove the damage mark of a log that was scanned completely, and truncated if it was damaged.

        If bytes were lost, the mark stays until the controller knows of the loss: if the process is killed before that,
        the next start must find the loss again.
        """
        if has_lost:
            self.damage_marks.append(mark)
        else:
            with contextlib.suppress(OSError):
                self.storage.remove(mark)

    def _take_offsets_of_a_stray(
        self,
        location: FoundPartition,
        points: dict[TopicIdPartition, Offset],
        watermarks: dict[TopicIdPartition, Offset],
        starts: dict[TopicIdPartition, Offset],
    ) -> None:
        """Use the offsets in `stray.json` for a restored stray that no checkpoint contains.

        The last process may have died between the restore and the next checkpoint.
        """
        path = location.path / STRAY_FILE
        if location.id in points:
            self.storage.remove(path)
            return
        self.returned.append(path)
        stray = read_stray_file(self.storage, location.path)
        if stray is not None:
            is_whole = stray.is_synced or self.restart_class is not RestartClass.POWER
            points[location.id] = Offset(stray.recovery_point if is_whole else 0)
            watermarks[location.id] = Offset(stray.high_watermark)
            starts[location.id] = Offset(stray.log_start_offset)

    def _unsure_strays(self) -> list[TopicIdPartition]:
        """Return the partitions whose stray log may have lost bytes, so that this replica must not count as in sync."""
        is_power_loss = self.restart_class is RestartClass.POWER
        return [
            stray.id
            for stray in self.strays
            if stray.id is not None
            and not stray.is_synced
            and (is_power_loss or stray.since_ms == UNKNOWN_MS)
        ]

    def _find(self) -> list[FoundPartition]:
        partitions: list[FoundPartition] = []
        for name in sorted(self.storage.names(self.path)):
            path = self.path / name
            if name.endswith(DELETE_SUFFIX):
                self.deleted.append(path)
                continue
            parsed = parse_directory_name(name)
            if parsed is None or name.endswith(STRAY_SUFFIX):
                continue
            topic, index = parsed
            try:
                topic_id = read_metadata(self.storage, path)
            except NotADirectoryError:
                continue
            except (FileNotFoundError, ValueError):
                if is_formatted(self.storage, path):
                    continue  # the data directory of another broker
                # A directory without data is from a process that died while it created the partition. A directory with
                # data may belong to an operator: its name may only look like that of a partition.
                aside = self._rename(path, STRAY_SUFFIX if self._has_data(path) else DELETE_SUFFIX)
                if aside.name.endswith(DELETE_SUFFIX):
                    self.deleted.append(aside)
                else:
                    self._stray.append(aside.name)
                continue
            partitions.append(FoundPartition(path, topic, TopicIdPartition(topic_id, index)))
        return partitions

    def _has_data(self, path: Path) -> bool:
        names = [name for name in self.storage.names(path) if name != METADATA]
        return any(self.storage.size_bytes(path / name) for name in names)

    def _rename(self, path: Path, suffix: str) -> Path:
        """Rename a directory without a topic id. The new name begins with the old one.

        Raises OSError if the disk fails. After any other error the directory keeps its name.
        """
        aside = path.with_name(f"{path.name[:_NAME_KEPT_MAX]}.{secrets.token_hex(8)}{suffix}")
        try:
            self.storage.rename(path, aside)
        except OSError as error:
            if error_class(error) is ErrorClass.DISK:
                raise
            return path
        return aside

    def _forget_recovery_points(
        self,
        points: dict[TopicIdPartition, Offset],
        watermarks: dict[TopicIdPartition, Offset],
    ) -> None:
        """Write lower recovery points, because bytes below the old points were lost, and new appends will replace them.

        This happens before any append. The high watermark checkpoint gets an offset above the log end, so that after a
        crash before the registration, the next start finds the loss again.
        """
        try:
            self.high_watermarks.write(watermarks, self.high_watermarks.ticket())
            self.recovery_points.write(points, self.recovery_points.ticket())
        except OSError as error:
            operation = f"writing checkpoints of {self.path}"
            raise self.health.fail_to_write(operation, error) from error


class StrayReturn:
    """A job that recovers the log of a stray, as after a kill, or as after a power loss if the stray was not synced."""

    __slots__ = ("_storage", "damage", "error", "found", "loaded", "stray")

    def __init__(self, storage: Storage, found: FoundPartition, stray: Stray) -> None:
        self._storage = storage
        self.stray = stray
        self.found = found
        self.loaded: LoadedLog | None = None
        self.error: OSError | None = None
        self.damage = ""

    def run(self) -> None:
        """Run the job once (blocks, perhaps for long; on a disk thread). An error is stored in `error`;
        `LogDirectory.finish_return` raises it.
        """
        stray = self.stray
        recovery = Recovery(
            storage=self._storage,
            directory=self.found.path,
            recovery_point=Offset(stray.recovery_point if stray.is_synced else 0),
            high_watermark=Offset(stray.high_watermark),
            log_start_offset=Offset(stray.log_start_offset),
            is_clean=False,
            is_power_loss=not stray.is_synced,
        )
        try:
            self._storage.sync_directory(self.found.path.parent)  # makes the rename durable
            self.loaded = recovery.run()
        except OSError as error:
            self.error = error
        self.damage = recovery.damage

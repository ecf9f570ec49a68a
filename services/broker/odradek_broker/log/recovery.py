"""Recovery of a partition's directory at start, after any kind of stop.

    1  leftover files are deleted; a compaction that had finished its new segment is completed
    2  segments below the recovery point: their indexes are checked, and rebuilt if necessary
    3  segments past the recovery point: every batch is read and its CRC checked; the log ends before the
       first invalid or incomplete batch, or hole between two segments; everything after that is deleted
    4  epochs: up to the recovery point, from the checkpoint; past it, from the batch headers and from those entries of
       the checkpoint that agree with them (compaction may have removed the first batches of an epoch)
    5  producers: from the newest snapshot at or below the recovery point and the high watermark, and a replay of
       headers

Below the recovery point, only a few headers of each segment are read. If these headers are invalid or do not follow one
another, the recovery point is not trusted, and the log is scanned from its first segment. The restart class decides
what is trusted: after a clean stop the whole log counts as below the recovery point; after a power loss the index files
of the segment that was active are rebuilt.

A log that ends below its checkpointed high watermark or recovery point, or that the disk has damaged, has lost records
that were replicated or durable: then `lost_bytes` is set, and the broker reports the partition to the controller as
after a power loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from odradek_broker.leader_epochs import LeaderEpochs
from odradek_broker.log.directory.partition_files import (
    EPOCHS,
    LOG_START,
    encode_epochs,
    forget_log_start,
    read_epochs,
    read_log_start,
    read_newest_snapshot,
    snapshot_offsets,
    write_epochs,
)
from odradek_broker.log.producer_state import ProducerStates, replay
from odradek_broker.log.segments.batch_walk import Header, walk_headers, walk_verified
from odradek_broker.log.segments.indexes import AbortedTransaction, CorruptIndex
from odradek_broker.log.segments.segment import (
    INDEX_INTERVAL_BYTES,
    INDEX_SUFFIXES,
    Segment,
    Suffix,
    file_name,
)
from odradek_broker.log.segments.swap import complete_swaps
from odradek_broker.log.storage import ErrorClass, File, Storage, error_class
from odradek_protocol.identity import LeaderEpoch, Offset
from odradek_protocol.records.batch_header import HEADER_BYTES, LENGTH_PREFIX_BYTES
from odradek_protocol.records.errors import CorruptBatch


class LoadedLog(NamedTuple):
    """The result of a recovery, from which a `PartitionLog` is made."""

    segments: list[Segment]
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshot_offsets: list[Offset]
    log_start_offset: Offset
    high_watermark: Offset
    recovery_point: Offset
    recovery_position: int  # the position of the recovery point in the last segment


@dataclass(slots=True, kw_only=True)
class Recovery:
    """Recovers the log of one partition. Its input are the offsets from the checkpoint files; None if a file has no
    entry of the partition.
    """

    storage: Storage
    directory: Path
    names: list[str] | None = None
    """The names of the directory's files, if the caller has listed them already. At a start with thousands of logs,
    system calls take most of the time, so recovery opens no file that is not in this list.
    """
    recovery_point: Offset | None
    high_watermark: Offset | None
    log_start_offset: Offset | None
    is_clean: bool
    is_power_loss: bool
    scanned_bytes: int = 0
    cut_bytes: int = 0
    lost_bytes: bool = False
    damage: str = ""
    """A description of the damage, for operators; "" if there is none."""
    dropped: list[str] = field(default_factory=list)
    """One sentence about each damaged file that was deleted because the log does not need it."""
    _is_trusting: bool = True
    _segments: list[Segment] = field(default_factory=list)
    # For each leader epoch of the batches that were scanned: the epoch, its first offset and its end offset.
    _scanned: list[tuple[int, int, int]] = field(default_factory=list)
    _scan_start: int = 0
    _reindexed: list[Segment] = field(default_factory=list)

    def run(self) -> LoadedLog:
        """Recover the log (blocks, perhaps for seconds). Raises OSError when the disk fails."""
        try:
            return self._run()
        except CorruptBatch:
            for segment in self._segments:
                segment.close()
            self._is_trusting = False
            self._segments, self._scanned, self._reindexed = [], [], []
            self.scanned_bytes = self.cut_bytes = 0
            self.damage = ""
            return self._run()

    def _run(self) -> LoadedLog:
        listed, self.names = self.names, None  # a second run lists the files again
        if listed is None:
            listed = self.storage.names(self.directory)
        swaps = complete_swaps(self.storage, self.directory, listed)
        names = swaps.names
        for path in swaps.given_up:
            consequence = "the segments that it was compacted from are used instead"
            self.dropped.append(f"{path} is damaged and was removed; {consequence}")
        self._is_trusting &= not swaps.damaged
        bases = sorted(
            int(name.removesuffix(".log"))
            for name in names
            if name.endswith(Suffix.LOG.value) and name.removesuffix(".log").isdigit()
        )
        self._remove_litter(names, bases)
        self._open_segments(bases, frozenset(names))
        has_log_start = LOG_START in names
        start = self._log_start(has_file=has_log_start)
        active = self._segments[-1]
        end = Offset(active.end_offset)
        # Delete a stored log start above the log end. Otherwise the next start would hide records that are appended
        # below that log start until then.
        if has_log_start:
            forget_log_start(self.storage, self.directory, above=end)
        durable = max(self.high_watermark or 0, self.recovery_point or 0)
        self.lost_bytes = end < durable or bool(self.damage)
        epochs = read_epochs(self.storage, self.directory) if EPOCHS in names else None
        if epochs is not None:
            start = self._log_start_of_epochs(epochs, start, end)
        epochs = self._epochs(epochs, start, end)
        producers, snapshots = self._producers(names, end)
        for segment in self._segments[:-1]:
            self._write_indexes(segment)
            segment.close()
            segment.drop_indexes()
        trusted = end if self.is_clean else min(self.recovery_point or Offset(0), end)
        position = 0
        if active.size_bytes:
            position, _ = active.locate(active.file(), trusted, active.size_bytes)
        return LoadedLog(
            segments=self._segments,
            epochs=epochs,
            producers=producers,
            snapshot_offsets=snapshots,
            log_start_offset=start,
            high_watermark=max(start, min(self.high_watermark or Offset(0), end)),
            recovery_point=max(trusted, Offset(self._segments[0].base_offset)),
            recovery_position=position,
        )

    def _remove_litter(self, names: list[str], bases: list[int]) -> None:
        alive = {file_name(base, suffix) for base in bases for suffix in (*INDEX_SUFFIXES,)}
        indexes = tuple(suffix.value for suffix in INDEX_SUFFIXES)
        for name in names:
            is_stray_index = name.endswith(indexes) and name not in alive
            if is_stray_index or name.endswith((".deleted", ".cleaned", ".tmp")):
                self.storage.remove(self.directory / name)

    def _open_segments(self, bases: list[int], names: frozenset[str]) -> None:
        trusted = self._trusted_until()
        self._scan_start = trusted
        for number, base_offset in enumerate(bases):
            is_last = number == len(bases) - 1
            segment = Segment(self.storage, self.directory, base_offset)
            segment.found(names)
            size_bytes = self.storage.size_bytes(segment.path(Suffix.LOG))
            if self.is_power_loss and (is_last or bases[number + 1] >= trusted):
                # These index files were never synced, so they are rebuilt.
                for suffix in (Suffix.INDEX, Suffix.TIME_INDEX):
                    if file_name(base_offset, suffix) in names:
                        self.storage.remove(segment.path(suffix))
                self._reindexed.append(segment)
            self._segments.append(segment)
            is_whole = self._open_segment(segment, size_bytes, trusted, is_last=is_last)
            is_hole = not is_last and segment.end_offset != bases[number + 1]
            if is_hole and bases[number + 1] <= trusted:
                raise CorruptBatch(
                    f"a segment ends at offset {segment.end_offset}, but the next one begins at {bases[number + 1]}"
                )
            if is_whole and is_hole:
                self._note_damage(segment)
            if not is_whole or is_hole:
                self._remove_from(bases[number + 1 :])
                break
        if self.damage:
            self.damage += f"; {self.cut_bytes} bytes from there on are deleted"
        if not self._segments:
            segment = Segment(self.storage, self.directory, self.log_start_offset or 0)
            segment.create()
            self._segments.append(segment)
        for segment in self._segments[:-1]:
            segment.seal()

    def _trusted_until(self) -> int:
        if not self._is_trusting:
            return 0
        if self.is_clean:
            return (1 << 63) - 1
        return self.recovery_point if self.recovery_point is not None else 0

    def _open_segment(
        self, segment: Segment, size_bytes: int, trusted: int, *, is_last: bool
    ) -> bool:
        """Open one segment. Return False if the log must end in this segment, because its last bytes were no valid
        batch. These bytes are deleted.
        """
        whole_bytes = segment.complete(size_bytes)
        if whole_bytes < size_bytes and segment.end_offset < trusted:
            raise CorruptBatch(
                f"the segment {segment.base_offset} has no valid batch at byte {whole_bytes}"
            )
        if segment.end_offset > trusted or whole_bytes < size_bytes:
            self._scan(segment, size_bytes, max(trusted, segment.base_offset))
        if segment.size_bytes < size_bytes:
            self.cut_bytes += size_bytes - segment.size_bytes
            if not (is_last and self._is_torn(segment, size_bytes)):
                self._note_damage(segment)
            segment.file().truncate(segment.size_bytes)
            segment.file().sync()
            return False
        return True

    def _is_torn(self, segment: Segment, size_bytes: int) -> bool:
        """Return whether the bytes after the segment's last valid batch are one batch that was written only in part."""
        prefix = segment.file().pread(LENGTH_PREFIX_BYTES, segment.size_bytes)
        if len(prefix) < LENGTH_PREFIX_BYTES:
            return True
        batch_length = int.from_bytes(prefix[LENGTH_PREFIX_BYTES - 4 :], "big")
        return segment.size_bytes + LENGTH_PREFIX_BYTES + batch_length > size_bytes

    def _note_damage(self, segment: Segment) -> None:
        """Record that the disk has damaged the segment, unless a power loss explains the damage.

        A killed process leaves complete writes, and at most one incomplete write at the end. Anything else is damage by
        the disk. After a power loss any unsynced page may be missing, which the restart class reports already.
        """
        if not self.is_power_loss:
            path = segment.path(Suffix.LOG)
            self.damage = f"{path} is damaged at byte {segment.size_bytes}"

    def _scan(self, segment: Segment, size_bytes: int, trusted: int) -> None:
        """Read all batches from the offset `trusted` on. The segment ends before the first invalid batch."""
        file = segment.file()
        whole_bytes = segment.size_bytes
        position, header = segment.locate(file, trusted, whole_bytes)
        if header is not None and header.base_offset < trusted:
            raise CorruptBatch(f"the batch {header} reaches past the recovery point {trusted}")
        next_offset = header.base_offset if header is not None else segment.end_offset
        segment.settle(position, next_offset)
        for at, header in walk_verified(file, position, size_bytes):
            if not segment.may_follow(header):
                break
            assert at == segment.size_bytes, (at, segment.size_bytes)
            segment.note(header, INDEX_INTERVAL_BYTES)
            self._note_epoch(header)
            self.scanned_bytes += header.size_bytes

    def _note_epoch(self, header: Header) -> None:
        end_offset = header.last_offset + 1
        if not self._scanned or header.leader_epoch > self._scanned[-1][0]:
            self._scanned.append((header.leader_epoch, header.base_offset, end_offset))
        else:
            epoch, first_offset, _ = self._scanned[-1]
            self._scanned[-1] = epoch, first_offset, end_offset

    def _remove_from(self, bases: list[int]) -> None:
        for base_offset in reversed(bases):
            segment = Segment(self.storage, self.directory, base_offset)
            self.cut_bytes += self.storage.size_bytes(segment.path(Suffix.LOG))
            segment.remove_files()

    def _log_start(self, *, has_file: bool) -> Offset:
        first, end = self._segments[0].base_offset, self._segments[-1].end_offset
        written = read_log_start(self.storage, self.directory) if has_file else 0
        return Offset(min(max(first, self.log_start_offset or 0, written), end))

    def _log_start_of_epochs(self, epochs: LeaderEpochs, start: Offset, end: Offset) -> Offset:
        """Return the log start offset, corrected with the leader epoch checkpoint.

        The log start may have risen after the log start checkpoint and before the epoch checkpoint was written. The
        first epoch then begins above the first batch at or past `start`, perhaps at the log end. If no batch is before
        the first epoch, the epochs say nothing about the log start.
        """
        entries = epochs.entries()
        segment = next(s for s in reversed(self._segments) if s.base_offset <= start)
        first = None
        if segment.size_bytes:
            _, first = segment.locate(segment.file(), start, segment.size_bytes)
        if entries and first is not None and entries[0][1] > first.base_offset:
            return max(start, min(entries[0][1], end))
        return start

    def _write_indexes(self, segment: Segment) -> None:
        """Write a segment's indexes to their files. If the disk is full, the indexes stay in memory until a
        later full sync.
        """
        try:
            segment.write_indexes(sync=False)
        except OSError as error:
            if error_class(error) is ErrorClass.DISK:
                raise

    def _epochs(self, epochs: LeaderEpochs | None, start: Offset, end: Offset) -> LeaderEpochs:
        if epochs is None or (not epochs.entries() and end > self._segments[0].base_offset):
            epochs = LeaderEpochs(self._epochs_from_headers())
        else:
            written = epochs.entries()
            scan_start = min(Offset(self._scan_start), end) if self._scanned else end
            epochs.truncate_from_end(scan_start)
            kept = [
                entry for entry in written if scan_start <= entry[1] and self._is_confirmed(entry)
            ]
            scanned = [(epoch, first_offset) for epoch, first_offset, _ in self._scanned]
            for epoch, first_offset in sorted(kept + scanned):
                if epoch > epochs.latest:
                    epochs.enter(LeaderEpoch(epoch), Offset(first_offset))
            if any(first_offset > end for _, first_offset in written):
                self._forget_epochs(epochs)
        epochs.truncate_from_start(start)
        return epochs

    def _forget_epochs(self, epochs: LeaderEpochs) -> None:
        """Write the leader epoch checkpoint, because an interrupted truncation has left entries above the log end.
        Batches that are appended there must not confirm these entries at a later start.
        """
        try:
            write_epochs(self.storage, self.directory, encode_epochs(epochs))
        except OSError as error:  # if the disk is full, a later full sync writes the checkpoint
            if error_class(error) is ErrorClass.DISK:
                raise

    def _is_confirmed(self, entry: tuple[int, int]) -> bool:
        """Return whether an entry of the leader epoch checkpoint agrees with the batches that were scanned.

        Compaction may have removed the first batches of an epoch, or all of them. Only the checkpoint has the offset at
        which the epoch began: a follower whose log differs from there on must truncate its log to this offset.
        """
        epoch, start_offset = entry
        later = [first for scanned, first, _ in self._scanned if scanned >= epoch]
        earlier = [end for scanned, _, end in self._scanned if scanned < epoch]
        return bool(later) and start_offset <= later[0] and all(e <= start_offset for e in earlier)

    def _epochs_from_headers(self) -> list[tuple[int, int]]:
        """Return all epochs without reading every header: because epochs rise, a binary search finds where
        they change.
        """
        epochs: list[tuple[int, int]] = []
        for segment in self._segments:
            if not segment.size_bytes:
                continue
            file = segment.file()
            positions = [0, *segment.offsets().positions()]
            heads: dict[int, Header | None] = {}
            self._halve(file, segment.size_bytes, positions, 0, len(positions), heads, epochs)
        return epochs

    def _halve(
        self,
        file: File,
        size_bytes: int,
        positions: list[int],
        low: int,
        high: int,
        heads: dict[int, Header | None],
        epochs: list[tuple[int, int]],
    ) -> None:
        """Append to `epochs` the epochs that begin between the index entries `low` and `high`.

        `heads` caches the header at each index entry.
        """

        def head(number: int) -> Header | None:
            if number not in heads:
                at = positions[number] if number < len(positions) else size_bytes
                walk = walk_headers(file, at, size_bytes, window_bytes=HEADER_BYTES)
                heads[number] = next((header for _, header in walk), None)
            return heads[number]

        first, after = head(low), head(high)
        if first is None:
            return
        if not epochs or first.leader_epoch > epochs[-1][0]:
            epochs.append((first.leader_epoch, first.base_offset))
        if after is not None and after.leader_epoch == first.leader_epoch:
            return
        if high - low == 1:
            end = positions[high] if high < len(positions) else size_bytes
            for _, header in walk_headers(file, positions[low], end):
                if header.leader_epoch > epochs[-1][0]:
                    epochs.append((header.leader_epoch, header.base_offset))
            return
        middle = (low + high) // 2
        self._halve(file, size_bytes, positions, low, middle, heads, epochs)
        self._halve(file, size_bytes, positions, middle, high, heads, epochs)

    def _producers(self, names: list[str], end: Offset) -> tuple[ProducerStates, list[Offset]]:
        trusted = min(Offset(self._scan_start), end)
        offsets = snapshot_offsets(names)
        # A snapshot above the trusted offset may contain batches that were lost.
        for offset in [o for o in offsets if o > trusted]:
            self.storage.remove(self.directory / file_name(offset, Suffix.SNAPSHOT))
        kept = [o for o in offsets if o <= trusted]
        # A snapshot above the high watermark is not used, because it does not say which transaction markers are not
        # replicated yet.
        bound = trusted if self.high_watermark is None else min(trusted, self.high_watermark)
        snapshot = read_newest_snapshot(self.storage, self.directory, kept, offset_max=bound)
        start, states = Offset(self._segments[0].base_offset), ProducerStates()
        if snapshot is not None:
            start, states = snapshot
        for segment in self._segments:
            is_doubtful = segment in self._reindexed and segment.has_markers
            self._check_transaction_index(segment, kept, trusted, is_doubtful=is_doubtful)

        def note_aborted(segment: Segment, transaction: AbortedTransaction) -> None:
            if transaction.last_offset >= trusted:
                segment.note_aborted(transaction)

        replay(self.storage, self._segments, states, from_offset=start, on_aborted=note_aborted)
        return states, kept

    def _check_transaction_index(
        self, segment: Segment, snapshots: list[Offset], trusted: Offset, *, is_doubtful: bool
    ) -> None:
        """Remove the entries at or past `trusted` from a segment's transaction index. Rebuild the index first if it is
        damaged or `is_doubtful`: the power was lost while the segment was active.

        The rebuild takes the newest producer snapshot at or below the segment's base offset, and replays the batches
        after it.
        """
        try:
            if is_doubtful:
                raise CorruptIndex("the index may be incomplete, because the power was lost")
            aborted = segment.aborted()
        except CorruptIndex:
            aborted = []
            start, states = Offset(self._segments[0].base_offset), ProducerStates()
            base_offset = Offset(segment.base_offset)
            snapshot = read_newest_snapshot(
                self.storage, self.directory, snapshots, offset_max=base_offset
            )
            if snapshot is not None:
                start, states = snapshot
            until = self._segments[: self._segments.index(segment) + 1]
            replay(
                self.storage,
                until,
                states,
                from_offset=start,
                on_aborted=lambda at, entry: aborted.append(entry) if at is segment else None,
            )
        else:
            if not aborted or aborted[-1].last_offset < trusted:
                segment.trust_aborted()
                return
        segment.replace_aborted([entry for entry in aborted if entry.last_offset < trusted])

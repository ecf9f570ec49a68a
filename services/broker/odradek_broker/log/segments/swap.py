"""The crash-safe replacement of segments by the compacted segment that was made from them.

    1  <base>.log.cleaned and its indexes are written and synced     after a crash: deleted at start
    2  renamed to <base>.log.swap, indexes first, directory synced   after a crash: step 3 is done at start
    3  the old segments are renamed to .deleted, the new one from .swap to its final name

Exactly one segment replaces each run of old segments, and the new segment has the last batch of the run (without
records, if necessary). So at start, the old segments are those with a base offset in the range of the new segment. The
first old segment and the new one have the same base name. Step 3 removes the final names of all old segments, each
`.log` first, and only then gives the new files their final names, `.index` first and `.log` last. Therefore, while
`.index.swap` exists, all files with a final name are old ones; afterwards those with the base name are new ones. (Each
compacted segment has an `.index` file, but few have a `.txnindex`.)

Step 3 is not synced. After a power loss a file system keeps a prefix of a directory's changes, in order (Kafka relies
on that order for the same renames). The start then completes step 3, because the result of step 2 is durable. So
nothing is lost, and the old segments do not return, because they are renamed before the new segment gets its final
name.

Retention may delete old segments between the steps 2 and 3. If the process then dies, the start deletes the new segment
if the segment that followed the run is gone, too: the new segment would leave a hole before the rest of the log. If the
disk has cut the new segment of the first run exactly between two batches, after step 3 began, the start cannot tell it
from such an expired one.

A truncation of the log first undoes step 2, and no compacted segment is installed during or after it.

If the disk damaged the new segment after step 2, the new segment is discarded if the first old segment still exists,
because then all old segments exist. Otherwise the undamaged part of the new segment is used, and recovery checks it
like any other segment.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from odradek_broker.log.segments.batch_walk import walk_verified
from odradek_broker.log.segments.segment import INDEX_SUFFIXES, Suffix, file_name
from odradek_broker.log.storage import Storage


class CompletedSwaps(NamedTuple):
    """The result of `complete_swaps`. `names` are the directory's files afterwards. `given_up` are damaged new segments
    that were discarded. `damaged` are damaged new segments that had to be used, because the old segments no longer
    existed.
    """

    names: list[str]
    given_up: list[Path]
    damaged: list[Path]


def complete_swaps(storage: Storage, directory: Path, names: list[str]) -> CompletedSwaps:
    """Complete step 3 for each segment whose step 2 was completed, and undo each incomplete step 2.

    `names` are those of all files in the directory.
    """
    if not any(name.endswith(Suffix.SWAP.value) for name in names):
        return CompletedSwaps(names, [], [])
    ending = Suffix.LOG.value + Suffix.SWAP.value
    swaps = sorted(int(name.removesuffix(ending)) for name in names if name.endswith(ending))
    plain = (name.removesuffix(Suffix.LOG.value) for name in names if _is_log(name))
    bases = sorted(int(stem) for stem in plain if stem.isdigit())
    given_up: list[Path] = []
    damaged: list[Path] = []
    for base_offset in swaps:
        log_name = file_name(base_offset, Suffix.LOG)
        swap = directory / (log_name + Suffix.SWAP.value)
        is_begun = not storage.exists(directory / log_name)
        end_offset = _end_offset(storage, swap, base_offset)
        if end_offset is not None and _is_expired(bases, end_offset):
            storage.remove(swap)
            continue
        if end_offset is None or file_name(end_offset, Suffix.LOG) not in names:
            if not is_begun:
                storage.remove(swap)
                given_up.append(swap)
                continue
            # Which other segments the damaged one has replaced is unknown.
            end_offset = base_offset + 1
            damaged.append(directory / log_name)
        has_old_names = not is_begun or _has_old_names(storage, directory, base_offset)
        first = base_offset if has_old_names else base_offset + 1
        for name in sorted(storage.names(directory), key=lambda name: (not _is_log(name), name)):
            stem, dot, _ = name.partition(".")
            is_plain = name.count(".") == 1 and not name.endswith(Suffix.SNAPSHOT.value)
            if dot and is_plain and stem.isdigit() and first <= int(stem) < end_offset:
                storage.remove(directory / name)
        for suffix in (*INDEX_SUFFIXES, Suffix.LOG):
            source = directory / (file_name(base_offset, suffix) + Suffix.SWAP.value)
            if storage.exists(source):
                storage.rename(source, directory / file_name(base_offset, suffix))
    for name in storage.names(directory):
        if name.endswith(Suffix.SWAP.value):  # indexes without a `.log` file: step 2 was incomplete
            storage.remove(directory / name)
    if swaps:
        storage.sync_directory(directory)
    return CompletedSwaps(storage.names(directory), given_up, damaged)


def undo_swaps(storage: Storage, directory: Path) -> None:
    """Delete compacted segments whose step 3 has not begun, because the log is being truncated. The caller must sync
    the directory.
    """
    names = [n for n in storage.names(directory) if n.endswith(Suffix.SWAP.value)]
    for name in sorted(names, key=lambda name: Suffix.LOG.value not in name):
        storage.remove(directory / name)


def _is_expired(bases: list[int], end_offset: int) -> bool:
    """Return whether retention has deleted the old segments, and the one at `end_offset`, before step 3. `bases` are
    the base offsets of all segments, in order.
    """
    return bool(bases) and bases[0] > end_offset


def _has_old_names(storage: Storage, directory: Path, base_offset: int) -> bool:
    """Return whether files with the final names of a new segment are those of an old one."""
    index = file_name(base_offset, Suffix.INDEX)
    return storage.exists(directory / (index + Suffix.SWAP.value))


def _is_log(name: str) -> bool:
    return name.endswith(Suffix.LOG.value)


def _end_offset(storage: Storage, path: Path, base_offset: int) -> int | None:
    """Return the end offset of a compacted segment's file; None if the file is empty or has an invalid batch."""
    file = storage.open(path)
    try:
        end_offset, end = base_offset, 0
        for position, header in walk_verified(file, 0, file.size_bytes()):
            if header.base_offset < end_offset:  # no CRC covers the base offset
                return None
            end_offset, end = header.last_offset + 1, position + header.size_bytes
        return end_offset if 0 < end == file.size_bytes() else None
    finally:
        file.close()

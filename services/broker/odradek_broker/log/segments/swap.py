"""Putting a compacted segment in the place of those it was made of, so that a crash is harmless.

    1  <base>.log.cleaned and its indexes are written and synced     crash: they are removed
    2  renamed to <base>.log.swap, indexes first, directory synced   crash: step 3 is done at start
    3  the old segments are renamed to .deleted, the new one loses its mark

Only one segment replaces each run of old ones, and it keeps their last batch (emptied, if it must
be), so at start the old segments are those with a base offset in its range. The first of them has the
new one's name: an index of that name is the old one's while there is a log of it, which step 3 renames
and this removes after its indexes, and else the new one's, which lost its mark before its log.

Step 3 is synced by nobody. When the power goes, a file system keeps the first of a directory's changes,
in their order (Kafka counts on that between these renames, too): step 3 is then done at start from
where it was left, since what step 2 made is on the disk. So nothing is lost; and the old segments do not
come back, as their names are gone before the new one has its own.

A cut of the log undoes step 2 before all else, and nothing is made ready during one or after it.

A segment that the disk damaged after step 2 is given up while the first of the old ones is there, as all
of them are then; later it takes its place as far as it is whole, and recovery judges it as any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from odradek_broker.log.segments.batch_walk import walk_verified
from odradek_broker.log.segments.segment import INDEX_SUFFIXES, Suffix, file_name
from odradek_broker.log.storage import Storage


class CompletedSwaps(NamedTuple):
    """What `complete_swaps` left: the names that are there then, the files of new segments that were
    given up as the disk had damaged them, and those that had to take their place all the same."""

    names: list[str]
    given_up: list[Path]
    damaged: list[Path]


def complete_swaps(storage: Storage, directory: Path) -> CompletedSwaps:
    """Finish step 3 where step 2 was done, undo the rest."""
    names = storage.names(directory)
    ending = Suffix.LOG.value + Suffix.SWAP.value
    swaps = sorted(int(name.removesuffix(ending)) for name in names if name.endswith(ending))
    given_up: list[Path] = []
    damaged: list[Path] = []
    for base_offset in swaps:
        log_name = file_name(base_offset, Suffix.LOG)
        swap = directory / (log_name + Suffix.SWAP.value)
        is_begun = not storage.exists(directory / log_name)
        end_offset = _end_offset(storage, swap, base_offset)
        if end_offset is None or file_name(end_offset, Suffix.LOG) not in names:
            if not is_begun:
                storage.remove(swap)
                given_up.append(swap)
                continue
            end_offset = base_offset  # nobody knows what it replaced
            damaged.append(directory / log_name)
        first = base_offset + 1 if is_begun else base_offset
        for name in sorted(storage.names(directory), key=_is_log):
            stem, dot, _ = name.partition(".")
            is_plain = name.count(".") == 1 and not name.endswith(Suffix.SNAPSHOT.value)
            if dot and is_plain and stem.isdigit() and first <= int(stem) < end_offset:
                storage.remove(directory / name)
        for suffix in (*INDEX_SUFFIXES, Suffix.LOG):
            source = directory / (file_name(base_offset, suffix) + Suffix.SWAP.value)
            if storage.exists(source):
                storage.rename(source, directory / file_name(base_offset, suffix))
    for name in storage.names(directory):
        if name.endswith(Suffix.SWAP.value):  # indexes without their log: step 2 was not done
            storage.remove(directory / name)
    if swaps:
        storage.sync_directory(directory)
    return CompletedSwaps(storage.names(directory), given_up, damaged)


def undo_swaps(storage: Storage, directory: Path) -> None:
    """Give up what step 2 made ready: the log that it was made of is cut, so that it is not part of it.
    The directory is to be synced."""
    names = [n for n in storage.names(directory) if n.endswith(Suffix.SWAP.value)]
    for name in sorted(names, key=lambda name: Suffix.LOG.value not in name):
        storage.remove(directory / name)


def _is_log(name: str) -> bool:
    return name.endswith(Suffix.LOG.value)


def _end_offset(storage: Storage, path: Path, base_offset: int) -> int | None:
    """The end offset of a segment's file; None if its batches are not right up to the file's end."""
    file = storage.open(path)
    try:
        end_offset, end = base_offset, 0
        for position, header in walk_verified(file, 0, file.size_bytes()):
            if header.base_offset < end_offset:  # no CRC covers it
                return None
            end_offset, end = header.last_offset + 1, position + header.size_bytes
        return end_offset if end == file.size_bytes() else None
    finally:
        file.close()

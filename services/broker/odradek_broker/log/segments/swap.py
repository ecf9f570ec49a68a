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
"""

from __future__ import annotations

from pathlib import Path

from odradek_broker.log.segments.batch_walk import walk_headers
from odradek_broker.log.segments.segment import INDEX_SUFFIXES, Suffix, file_name
from odradek_broker.log.storage import Storage


def complete_swaps(storage: Storage, directory: Path) -> list[str]:
    """Finish step 3 where step 2 was done, undo the rest; returns the names that are there then."""
    names = storage.names(directory)
    ending = Suffix.LOG.value + Suffix.SWAP.value
    swaps = sorted(int(name.removesuffix(ending)) for name in names if name.endswith(ending))
    for base_offset in swaps:
        log_name = file_name(base_offset, Suffix.LOG)
        end_offset = _end_offset(storage, directory / (log_name + Suffix.SWAP.value))
        first = base_offset if storage.exists(directory / log_name) else base_offset + 1
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
    return storage.names(directory)


def undo_swaps(storage: Storage, directory: Path) -> None:
    """Give up what step 2 made ready: the log that it was made of is cut, so that it is not part of it.
    The directory is to be synced."""
    names = [n for n in storage.names(directory) if n.endswith(Suffix.SWAP.value)]
    for name in sorted(names, key=lambda name: Suffix.LOG.value not in name):
        storage.remove(directory / name)


def _is_log(name: str) -> bool:
    return name.endswith(Suffix.LOG.value)


def _end_offset(storage: Storage, path: Path) -> int:
    file = storage.open(path)
    try:
        end_offset = 0
        for _, header in walk_headers(file, 0, file.size_bytes()):
            end_offset = header.last_offset + 1
        return end_offset
    finally:
        file.close()

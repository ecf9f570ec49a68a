"""The file with the voter's term and vote. It has two slots with the same record, each on a page of its own.

A voter that lost its vote could vote twice in a term, and the term could have two leaders. So the vote is not stored in
the log, whose tail may be truncated after a crash. A save writes and syncs one slot and then the other, before any
message that depends on the vote is sent:

- A crash can damage only the slot that is being written. The other slot has the previous or the new record.
- A record that another voter knows about is in both slots, so the damage of one slot loses nothing. If each save wrote
  only one slot, such damage could not be distinguished from a torn write, and the voter would continue with the
  previous record.
- A crash cannot damage both slots, so the voter does not start if both are unreadable.

When the file is opened, the newest record is written to both slots again and synced. An earlier process may have been
killed before its sync, or its sync may have failed, so that the record is only in the page cache.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from odradek_metadata_quorum.errors import CorruptStorage, newer_format
from odradek_metadata_quorum.storage.disk import Disk

VOTE_FILE_NAME: Final = "vote"
# Each slot has a page of its own, so a torn write of one slot cannot damage the other slot.
_SLOT_BYTES: Final = 4096
_RECORD: Final = struct.Struct("<4sIQQq")  # magic, crc of the rest, sequence, term, vote
_REST: Final = struct.Struct("<QQq")
_MAGIC: Final = b"ODVT"  # the magic of format 1; a later format ends its magic with its number
_NO_VOTE: Final = -1


class VoteFile:
    """The durable term and vote. The constructor and `save` wait for the disk."""

    def __init__(self, disk: Disk) -> None:
        """Open an existing file. Raises `CorruptStorage`, and `StorageMismatch` for a file of a later format."""
        self._file = disk.open(VOTE_FILE_NAME)
        slots = [slot for number in (0, 1) if (slot := self._load(number)) is not None]
        if not slots:
            raise CorruptStorage(
                f"{VOTE_FILE_NAME}: both copies of the record are damaged, so this voter may have lost a vote"
            )
        self._sequence, self.term, self.vote = max(slots, key=lambda slot: slot[0])
        self._make_durable()

    @staticmethod
    def create(disk: Disk) -> None:
        """Create the file with term 0 and no vote. It is durable when `sync_directory` has returned."""
        file = disk.open(VOTE_FILE_NAME, create=True)
        file.write(_encode(0, 0, None).ljust(2 * _SLOT_BYTES, b"\0"), 0)
        file.sync()
        file.close()

    def save(self, term: int, vote: int | None) -> None:
        """Write term and vote, and wait until they are durable. The term must not fall, and the vote must not change
        within a term.
        """
        assert term >= self.term, (term, self.term)
        assert term > self.term or self.vote in (None, vote), (term, self.vote, vote)
        sequence = self._sequence + 1
        self._write(sequence, term, vote)
        self._sequence, self.term, self.vote = sequence, term, vote

    def _make_durable(self) -> None:
        """Write and sync once more the record that was read, because it may be only in the page cache."""
        self._write(self._sequence, self.term, self.vote)

    def _write(self, sequence: int, term: int, vote: int | None) -> None:
        record = _encode(sequence, term, vote)
        # Programs of the first release read a record only from slot `sequence % 2`, so this slot is written first.
        for number in (sequence % 2, (sequence + 1) % 2):
            self._file.write(record, number * _SLOT_BYTES)
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _load(self, number: int) -> tuple[int, int, int | None] | None:
        data = self._file.read(_RECORD.size, number * _SLOT_BYTES)
        if len(data) < _RECORD.size:
            return None
        magic, crc, sequence, term, vote = _RECORD.unpack(data)
        # The magic of a later format is ODV2, ODV3, ...
        if magic[:3] == _MAGIC[:3] and magic[3:].isdigit():
            raise newer_format(VOTE_FILE_NAME, int(magic[3:]), 1)
        if magic != _MAGIC or crc != zlib.crc32(data[8:]):
            return None
        return sequence, term, None if vote == _NO_VOTE else vote


def _encode(sequence: int, term: int, vote: int | None) -> bytes:
    rest = _REST.pack(sequence, term, _NO_VOTE if vote is None else vote)
    return struct.pack("<4sI", _MAGIC, zlib.crc32(rest)) + rest

"""Files of a later format, or of the first one, are not treated as damage, and none of them is
removed.
"""

from __future__ import annotations

import struct
import zlib

import pytest

from odradek_metadata_quorum.errors import CorruptStorage, StorageMismatch
from odradek_metadata_quorum.storage.data_directory import StorageIdentity, format_disk
from odradek_metadata_quorum.storage.disk import read_file
from odradek_metadata_quorum.storage.log_frame import (
    SEGMENT_HEADER,
    SegmentHeader,
    encode_frame,
    encode_record,
    segment_name,
)
from odradek_metadata_quorum.storage.log_recovery import LAST_SEGMENT_NAME
from odradek_metadata_quorum.storage.snapshot_store import SnapshotStore
from odradek_metadata_quorum.storage.vote_file import VOTE_FILE_NAME, VoteFile
from tests.sim.quorum.simulated_disk import SimulatedDisk
from tests.unit.quorum import test_vote_file
from tests.unit.quorum.lone_voter import LoneVoter
from tests.unit.quorum.test_write_ahead_log import append, new_disk, open_log, segments

NEWER = "a newer program wrote it. Start this controller with that program"


def overwrite(disk: SimulatedDisk, name: str, position: int, data: bytes) -> None:
    file = disk.open(name)
    file.write(data, position)
    file.sync()


def several_segments() -> SimulatedDisk:
    disk = new_disk()
    log = open_log(disk, segment_bytes_max=300)
    for _ in range(12):
        append(log)
    assert len(segments(disk)) > 2
    return disk


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    return {name: read_file(disk, name) for name in disk.names()}


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("frame_magic", [b"ODFR", b"ODF2"])
def test_a_segment_of_a_later_format_is_refused_as_that_and_stays(
    number: int, frame_magic: bytes
) -> None:
    disk = several_segments()
    name = segments(disk)[number]
    later = struct.pack("<4sI", b"ODSG", 2) + read_file(disk, name)[8:]
    overwrite(disk, name, 0, later.replace(b"ODFR", frame_magic))
    before = contents(disk)
    with pytest.raises(StorageMismatch, match=NEWER):
        open_log(disk)
    assert contents(disk) == before


def test_a_whole_record_of_an_unknown_kind_was_written_by_a_newer_program() -> None:
    disk = new_disk()
    log = open_log(disk)
    append(log)
    name = segments(disk)[0]
    position = disk.size_of(name) - SEGMENT_HEADER.size
    overwrite(
        disk, name, disk.size_of(name), encode_frame(position, position, encode_record(9, 3, 1))
    )
    with pytest.raises(StorageMismatch, match=NEWER):
        open_log(disk)


def test_an_entry_of_an_unknown_kind_ends_the_process_and_is_not_passed_over() -> None:
    """A later program may replicate more than records and no-ops; a voter that skips an entry
    diverges from the others.
    """
    voter = LoneVoter()
    voter.append(2, 1, (1, 0), [1, 1], commit=3)
    voter.settle()
    voter.receive(
        2,
        "append_entries",
        term=1,
        commit_index=4,
        prevLogIdx=3,
        prevLogTerm=1,
        entries=[(b"\2voters", 4, 1)],
    )
    voter.world.run(0.5)
    assert voter.node.dead is not None
    assert "newer program" in voter.node.dead
    assert voter.node.raft.applied == 3


def test_a_vote_of_a_later_format_is_refused_as_that() -> None:
    disk = test_vote_file.new_disk()
    VoteFile(disk).save(3, 1)
    for slot in (0, 4096):
        overwrite(disk, VOTE_FILE_NAME, slot, b"ODV2" + bytes(60))
    with pytest.raises(StorageMismatch, match=NEWER):
        VoteFile(disk)


def test_a_snapshot_of_a_later_format_is_refused_as_that_and_older_ones_stay() -> None:
    disk = new_disk()
    SnapshotStore(disk).write(40, 2, b"state" * 100)
    current = SnapshotStore(disk).current
    assert current is not None
    disk.open("snapshot-00000000000000000030-00000000000000000001", create=True)
    overwrite(disk, current.name, 4, struct.pack("<I", 2))
    before = contents(disk)
    with pytest.raises(StorageMismatch, match=NEWER):
        SnapshotStore(disk)
    assert contents(disk) == before


def test_a_missing_last_segment_is_noticed() -> None:
    disk = several_segments()
    last = segments(disk)[-1]
    disk.remove(last)
    with pytest.raises(CorruptStorage, match=f"{last}: the log's last segment is missing"):
        open_log(disk)


def test_a_last_segment_that_was_durable_is_not_removed_as_half_started() -> None:
    """All of the segment is damaged, so that no frame in it passes its CRC."""
    disk = several_segments()
    last = segments(disk)[-1]
    disk.corrupt(last, 0, disk.size_of(last))
    with pytest.raises(CorruptStorage, match="header is damaged"):
        open_log(disk)
    assert last in disk.names()


def test_a_torn_note_of_the_last_segment_says_nothing_and_is_written_again() -> None:
    disk = several_segments()
    disk.corrupt(LAST_SEGMENT_NAME, 12)
    log = open_log(disk)
    disk.remove(segments(disk)[-1])
    with pytest.raises(CorruptStorage, match="last segment is missing"):
        open_log(disk)
    assert log.last_index == 13


def test_a_directory_of_the_first_release_opens_and_gets_a_note() -> None:
    """The first release wrote these bytes: two segments, and no file that names the last one."""
    disk = new_disk()
    first = encode_record(1, 2, 1, b"\0a") + encode_record(1, 3, 1, b"\0b")
    frame = encode_frame(0, 0, first)
    overwrite(disk, segment_name(0), SEGMENT_HEADER.size, frame)
    header = SegmentHeader(len(frame), 3, 1)
    second = encode_frame(len(frame), len(frame), encode_record(1, 4, 2, b"\0c"))
    disk.open(segment_name(len(frame)), create=True)
    overwrite(disk, segment_name(len(frame)), 0, header.encode() + second)
    assert LAST_SEGMENT_NAME not in disk.names()
    log = open_log(disk)
    assert [entry[1:] for entry in log.entries] == [(1, 0), (2, 1), (3, 1), (4, 2)]
    assert LAST_SEGMENT_NAME in disk.names()
    assert zlib.crc32(read_file(disk, segment_name(0))) == zlib.crc32(
        SegmentHeader(0, 1, 0).encode() + frame
    )


def test_a_log_whose_identity_is_gone_is_not_removed_by_a_format() -> None:
    disk = new_disk()
    VoteFile.create(disk)
    log = open_log(disk)
    append(log)
    disk.remove(LAST_SEGMENT_NAME)
    before = contents(disk)
    wanted = StorageIdentity(cluster_id="c", node_id=1, voters=(1,), joined=False)
    with pytest.raises(StorageMismatch, match=r"restore identity\.json"):
        format_disk(disk, wanted, "the directory")
    assert contents(disk) == before


def test_no_error_advises_to_empty_a_directory() -> None:
    disk = several_segments()
    disk.corrupt(segments(disk)[0], 60)
    with pytest.raises(CorruptStorage, match="Keep this directory") as caught:
        open_log(disk)
    assert "mpty" not in str(caught.value)

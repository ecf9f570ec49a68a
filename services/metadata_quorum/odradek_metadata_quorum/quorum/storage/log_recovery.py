"""Reading the log's segments back after a stop of any kind: replay, torn tail, or refusal."""

from __future__ import annotations

from dataclasses import dataclass

from odradek_metadata_quorum.quorum.errors import CorruptStorage, is_newer, newer_format
from odradek_metadata_quorum.quorum.storage.disk import Disk, read_file
from odradek_metadata_quorum.quorum.storage.last_segment import read_last_segment
from odradek_metadata_quorum.quorum.storage.log_frame import (
    ENTRY,
    RESET,
    SEGMENT_HEADER,
    SEGMENT_VERSION,
    TRUNCATE,
    SegmentHeader,
    base_position_of,
    decode_frame,
    decode_records,
    is_segment,
    later_frames,
    segment_name,
    segment_version,
)

Entry = tuple[bytes, int, int]  # (command, index, term): the shape that the engine wants


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The log as its files tell it: `entries[0]` is the boundary.

    `last_write_offset` is where the last write began, in the last segment: a frame, or a header and the
    first frame behind it.
    """

    entries: list[Entry]
    segments: list[SegmentHeader]
    end_position: int
    last_write_offset: int


def recover_log(disk: Disk) -> RecoveredLog:
    """Replay every segment; cut a torn tail. Raises `CorruptStorage`, `StorageMismatch`.

    What is read may be in the page cache only: an earlier life may have been killed before its sync.
    """
    segments = _read_segments(disk)
    entries: list[Entry] = [(b"", segments[0][0].previous_index, segments[0][0].previous_term)]
    last_write_offset = 0
    position = segments[0][0].base_position
    for number, (header, data) in enumerate(segments):
        if header.base_position != position:
            raise CorruptStorage(
                f"{segment_name(header.base_position)}: the segment before it ends at {position}"
            )
        view = memoryview(data)
        offset = SEGMENT_HEADER.size
        last_write_offset = 0
        while offset < len(data):
            frame = decode_frame(view, offset, position)
            if frame is None:
                break
            for record in decode_records(frame.body):
                _replay(entries, record)
            position += frame.end - offset
            last_write_offset = offset if offset > SEGMENT_HEADER.size else 0
            offset = frame.end
        if offset < len(data):
            _refuse_damage(segments[number:], offset, position)
            _cut(disk, segment_name(header.base_position), offset)
    return RecoveredLog(entries, [header for header, _ in segments], position, last_write_offset)


def _read_segments(disk: Disk) -> list[tuple[SegmentHeader, bytes]]:
    noted_position = read_last_segment(disk)
    names = [name for name in disk.names() if is_segment(name)]
    segments: list[tuple[SegmentHeader, bytes]] = []
    for name in names:
        data = read_file(disk, name)
        version = segment_version(data)
        if version is not None and is_newer(version, SEGMENT_VERSION):
            raise newer_format(name, version, SEGMENT_VERSION)
        header = SegmentHeader.decode(data)
        if header is not None and segment_name(header.base_position) == name:
            segments.append((header, data))
        elif (
            name == names[-1]
            and segments
            and base_position_of(name) > noted_position
            and not _holds_frames(name, data)
        ):
            disk.remove(name)  # the crash came while it was being started
            disk.sync_directory()
        else:
            raise CorruptStorage(f"{name}: the header is damaged, and no crash explains it")
    if not segments:
        raise CorruptStorage("the log has no segment although the directory is formatted")
    if segments[-1][0].base_position < noted_position:
        raise CorruptStorage(f"{segment_name(noted_position)}: the log's last segment is missing")
    return segments


def _holds_frames(name: str, data: bytes) -> bool:
    """Whether anything was ever written whole: the header is part of a segment's first write."""
    return next(later_frames(data, 0, base_position_of(name)), None) is not None


def _refuse_damage(segments: list[tuple[SegmentHeader, bytes]], offset: int, position: int) -> None:
    """A torn tail is what nothing durable follows; anything else is damage."""
    name = segment_name(segments[0][0].base_position)
    if (
        len(segments) > 1
    ):  # a segment is synced to its end before the next one is started, see there
        raise CorruptStorage(
            f"{name}: damaged at byte {offset}, but the log goes on in another segment"
        )
    for frame in later_frames(segments[0][1], offset + 1, segments[0][0].base_position):
        if frame.synced_upto > position:
            raise CorruptStorage(
                f"{name}: damaged at byte {offset}, but what follows it was durable"
            )


def _cut(disk: Disk, name: str, size: int) -> None:
    file = disk.open(name)
    file.truncate(size)
    file.sync()
    file.close()


def _replay(entries: list[Entry], record: tuple[int, int, int, bytes]) -> None:
    kind, index, term, payload = record
    if kind == ENTRY:
        if index != entries[-1][1] + 1:
            raise CorruptStorage(f"the log jumps from entry {entries[-1][1]} to {index}")
        entries.append((payload, index, term))
    elif kind == TRUNCATE:
        keep = index - entries[0][1]
        if keep > 0:
            del entries[keep:]
        else:  # below what this segment knows: the entry before the cut is all that is left
            entries[:] = [(b"", index - 1, term)]
    elif kind == RESET:
        entries[:] = [(b"", index, term)]
    else:
        raise newer_format("the log, in a record that is whole,", kind, RESET)

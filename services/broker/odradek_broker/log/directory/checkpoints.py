"""Small text files that remember an offset of each partition, in Kafka's format.

    recovery-point-offset-checkpoint    below it everything is durable and indexed: never scanned
    replication-offset-checkpoint       high watermark
    log-start-offset-checkpoint         log start offset, where it is not the first segment's base

    0                                   version
    <count>
    <topic id> <partition> <offset>     a line each

Where Kafka writes the topic's name stands its id, so that a topic created again under an old name
never meets its namesake's offsets. Files are replaced whole, fsynced, by a timer off the loop.
"""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Final

from odradek_broker.log.storage import Storage, replace_file
from odradek_protocol.identity import Offset, PartitionIndex, TopicId, TopicIdPartition

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED: Final = "cleaner-offset-checkpoint"

_VERSION: Final = "0"


def uuid_text(value: bytes) -> str:
    """16 bytes as Kafka writes them: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    """The reverse; ValueError for anything else."""
    value = base64.urlsafe_b64decode(text + "==")
    if len(value) != 16:
        raise ValueError(f"{text!r} is no UUID in base64")
    return value


def encode_offsets(offsets: dict[TopicIdPartition, Offset]) -> bytes:
    lines = [_VERSION, str(len(offsets))]
    lines += [f"{uuid_text(p.topic_id)} {p.partition} {o}" for p, o in offsets.items()]
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(text: bytes) -> dict[TopicIdPartition, Offset]:
    """Read a checkpoint; ValueError if it is torn, empty or not one."""
    lines = text.decode("ascii").split("\n")
    if len(lines) < 3 or lines[0] != _VERSION or lines[-1] != "":
        raise ValueError("no offset checkpoint of version 0")
    if int(lines[1]) != len(lines) - 3:
        raise ValueError(f"{len(lines) - 3} entries where {lines[1]} were counted")
    offsets: dict[TopicIdPartition, Offset] = {}
    for line in lines[2:-1]:
        topic_id, partition, offset = line.split(" ")
        if int(offset) < 0:
            raise ValueError(f"offset {offset} is negative")
        key = TopicIdPartition(TopicId(parse_uuid(topic_id)), PartitionIndex(int(partition)))
        offsets[key] = Offset(int(offset))
    return offsets


class OffsetCheckpoint:
    """One such file. Written by pool threads, one at a time.

    `lower` may not be undone by a periodic `write` of offsets that were gathered before it: such a
    write, recognized by its ticket, is left out; the next period brings fresh ones.
    """

    __slots__ = ("_lock", "_offsets", "_path", "_storage", "_ticket", "was_lost")

    def __init__(self, storage: Storage, path: Path) -> None:
        self._storage = storage
        self._path = path
        self._lock = threading.Lock()
        self._offsets: dict[TopicIdPartition, Offset] = {}
        self._ticket = 0
        self.was_lost = False

    def read(self) -> dict[TopicIdPartition, Offset]:
        """What the last life wrote; empty, and `was_lost`, if that is gone or torn."""
        try:
            self._offsets = decode_offsets(self._storage.read(self._path))
        except (FileNotFoundError, ValueError):
            self._offsets = {}
            self.was_lost = True
        return dict(self._offsets)

    def get(self, partition: TopicIdPartition) -> Offset | None:
        """What the file says of one partition."""
        with self._lock:
            return self._offsets.get(partition)

    def ticket(self) -> int:
        """To be taken before the offsets are gathered."""
        return self._ticket

    def write(self, offsets: dict[TopicIdPartition, Offset], ticket: int) -> bool:
        """Replace the file (waits); false if a `lower` came between. Raises OSError."""
        with self._lock:
            if ticket != self._ticket:
                return False
            if offsets != self._offsets or self.was_lost:
                replace_file(self._storage, self._path, encode_offsets(offsets))
                self._offsets = dict(offsets)
                self.was_lost = False
            return True

    def lower(self, partition: TopicIdPartition, offset: Offset | None) -> None:
        """Make sure that the file says at most `offset`, or nothing at all (waits)."""
        with self._lock:
            self._ticket += 1
            before = self._offsets.get(partition)
            if before is None or (offset is not None and before <= offset):
                return
            offsets = dict(self._offsets)
            if offset is None:
                del offsets[partition]
            else:
                offsets[partition] = offset
            replace_file(self._storage, self._path, encode_offsets(offsets))
            self._offsets = offsets

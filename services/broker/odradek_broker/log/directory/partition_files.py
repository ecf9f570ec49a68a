"""The small files of one partition's directory: its topic id, leader epochs, producers and marks.

<topic>-<partition>/partition.metadata          "version: 0" and "topic_id: <id>"
                    leader-epoch-checkpoint     Kafka's text of the log's LeaderEpochs
                    <offset>.snapshot           the producers (producer_state.py)
                    damaged                     a read found a wrong CRC: the next start verifies the whole log
                    log-start-offset            "<offset> <CRC32C of its digits>": preserves the log start if the
                                                process is killed before the next checkpoint of all log starts
<topic>-<partition>.<random>-delete/            deleted; the files are removed later
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

from odradek_broker.leader_epochs import LeaderEpochs
from odradek_broker.log.producer_state import (
    CorruptSnapshot,
    ProducerEntry,
    ProducerStates,
    decode_snapshot,
    encode_snapshot,
)
from odradek_broker.log.segments.segment import Suffix, file_name
from odradek_broker.log.storage import Storage, replace_file, write_all
from odradek_protocol.identity import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicName,
)
from odradek_protocol.records.hashes import crc32c

METADATA: Final = "partition.metadata"
DAMAGED: Final = "damaged"
EPOCHS: Final = "leader-epoch-checkpoint"
LOG_START: Final = "log-start-offset"
DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"


def uuid_text(value: bytes) -> str:
    """Encode 16 bytes like Kafka's Uuid: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    """Decode a text that `uuid_text` has encoded. Raises ValueError for any other text."""
    value = base64.urlsafe_b64decode(text + "==")
    if len(value) != 16:
        raise ValueError(f"{text!r} is not a UUID in URL-safe base64")
    return value


def parse_directory_name(name: str) -> tuple[TopicName, PartitionIndex] | None:
    """Return (topic, partition) for the name of a partition's directory; None for any other name."""
    topic, dash, index = name.rpartition("-")
    if not dash or not topic or not (index.isascii() and index.isdigit()):
        return None
    return TopicName(topic), PartitionIndex(int(index))


def write_damage_mark(storage: Storage, directory: Path, text: str) -> None:
    """Write the mark that makes the next start verify every batch of this log. It is durable on return.
    Raises OSError.
    """
    replace_file(storage, directory / DAMAGED, text.encode())


def create_metadata(storage: Storage, directory: Path, topic_id: TopicId) -> None:
    """Write `partition.metadata` without a sync: the log's first sync includes it."""
    text = f"version: 0\ntopic_id: {uuid_text(topic_id)}\n"
    file = storage.open(directory / METADATA, create=True)
    try:
        write_all(file, text.encode(), 0)
    finally:
        file.close()


def sync_new_partition(storage: Storage, directory: Path) -> None:
    """Make the directory and the topic id of a new partition durable."""
    file = storage.open(directory / METADATA)
    try:
        file.sync()
    finally:
        file.close()
    storage.sync_directory(directory)
    storage.sync_directory(directory.parent)


def read_metadata(storage: Storage, directory: Path) -> TopicId:
    """Return the topic id. Raises FileNotFoundError, or ValueError for a file without a topic id."""
    lines = storage.read(directory / METADATA).decode().splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError(f"{directory / METADATA} contains no topic id")
    return TopicId(parse_uuid(fields["topic_id"]))


def encode_epochs(epochs: LeaderEpochs) -> bytes:
    """Encode the leader epochs as Kafka does: version 0, the number of entries, and a line `<epoch> <start offset>` for
    each entry.
    """
    lines = ["0", str(len(epochs.entries()))]
    lines += [f"{epoch} {start}" for epoch, start in epochs.entries()]
    return ("\n".join(lines) + "\n").encode()


def decode_epochs(text: bytes) -> LeaderEpochs:
    """Decode a text that `encode_epochs` has encoded. Raises ValueError if the text is torn, empty or of another
    format.
    """
    lines = text.decode("ascii").split("\n")
    if len(lines) < 2 or lines[0] != "0" or lines[-1] != "":
        raise ValueError("the file is not a complete leader epoch checkpoint of version 0")
    if int(lines[1]) != len(lines) - 3:
        raise ValueError(f"the file has {len(lines) - 3} entries, but its count is {lines[1]}")
    epochs, start_before = LeaderEpochs(), 0
    for line in lines[2:-1]:
        epoch, start = (int(part) for part in line.split(" "))
        if epoch <= epochs.latest or start < start_before:
            raise ValueError(
                f"the entry {line!r} has a lower epoch or offset than the one before it"
            )
        epochs.enter(LeaderEpoch(epoch), Offset(start))
        start_before = start
    epochs.changes = 0
    return epochs


def read_epochs(storage: Storage, directory: Path) -> LeaderEpochs | None:
    """Read the leader epochs. None if the file is missing or torn; recovery then reads the epochs from
    batch headers.
    """
    try:
        return decode_epochs(storage.read(directory / EPOCHS))
    except (FileNotFoundError, ValueError):
        return None


def write_epochs(storage: Storage, directory: Path, text: bytes) -> None:
    replace_file(storage, directory / EPOCHS, text)


def write_log_start(storage: Storage, directory: Path, offset: Offset) -> None:
    """Write the log start offset without a sync. It is then in the page cache, which survives a kill of the process."""
    digits = b"%020d" % offset
    file = storage.open(directory / LOG_START, create=True)
    try:
        write_all(file, b"%b %08x\n" % (digits, crc32c(digits)), 0)
    finally:
        file.close()


def read_log_start(storage: Storage, directory: Path) -> Offset:
    """Return the log start offset; 0 if the file is missing or torn."""
    try:
        digits, crc = storage.read(directory / LOG_START).split()
        return Offset(int(digits)) if int(crc, 16) == crc32c(digits) else Offset(0)
    except (FileNotFoundError, ValueError):
        return Offset(0)


def forget_log_start(storage: Storage, directory: Path, *, above: Offset) -> None:
    """Delete the log start file if its offset is greater than `above`, because the log was truncated or reset."""
    if read_log_start(storage, directory) > above:
        storage.remove(directory / LOG_START)


def snapshot_offsets(names: list[str]) -> list[Offset]:
    """Return the offsets of the snapshots among `names`, in rising order."""
    suffix = Suffix.SNAPSHOT.value
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(Offset(int(stem)) for stem in stems if stem.isdigit())


def write_snapshot(
    storage: Storage, directory: Path, offset: Offset, entries: dict[ProducerId, ProducerEntry]
) -> None:
    """Write a snapshot without a sync. If a power loss tears the file, its CRC does not match, and an older snapshot is
    used.
    """
    file = storage.open(directory / file_name(offset, Suffix.SNAPSHOT), create=True)
    try:
        data = encode_snapshot(entries)
        file.truncate(0)
        write_all(file, data, 0)
    finally:
        file.close()


def read_newest_snapshot(
    storage: Storage, directory: Path, offsets: list[Offset], *, offset_max: Offset
) -> tuple[Offset, ProducerStates] | None:
    """Return the newest valid snapshot at or below `offset_max`, with its offset; None if there is none. Torn snapshots
    are deleted.
    """
    for offset in sorted((o for o in offsets if o <= offset_max), reverse=True):
        path = directory / file_name(offset, Suffix.SNAPSHOT)
        try:
            return offset, ProducerStates.from_entries(decode_snapshot(storage.read(path)))
        except FileNotFoundError:
            continue
        except CorruptSnapshot:
            storage.remove(path)
    return None

"""The small files of one partition's directory: whose it is, its epochs, its producers.

<topic>-<partition>/partition.metadata          "version: 0" and "topic_id: <id>"
                    leader-epoch-checkpoint     (leader_epochs.py)
                    <offset>.snapshot           (producers/producer_snapshot.py)
<topic>-<partition>.<random>-delete/            deleted, waiting to be removed
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from odradek_broker.log.directory.checkpoints import parse_uuid, uuid_text
from odradek_broker.log.leader_epochs import LeaderEpochs
from odradek_broker.log.producers.producer_snapshot import (
    CorruptSnapshot,
    decode_snapshot,
    encode_snapshot,
)
from odradek_broker.log.producers.producer_state import ProducerEntry, ProducerStates
from odradek_broker.log.segments.segment import Suffix, file_name
from odradek_broker.log.storage import Storage, replace_file, write_all
from odradek_protocol.identity import Offset, PartitionIndex, ProducerId, TopicId, TopicName

METADATA: Final = "partition.metadata"
EPOCHS: Final = "leader-epoch-checkpoint"
DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"


def parse_directory_name(name: str) -> tuple[TopicName, PartitionIndex] | None:
    """(topic, partition) of a partition's directory; None for any other name."""
    topic, dash, index = name.rpartition("-")
    if not dash or not topic or not index.isdigit():
        return None
    return TopicName(topic), PartitionIndex(int(index))


def create_metadata(storage: Storage, directory: Path, topic_id: TopicId) -> None:
    """Not synced: the log's first sync does it, before anything there counts as durable."""
    text = f"version: 0\ntopic_id: {uuid_text(topic_id)}\n"
    file = storage.open(directory / METADATA, create=True)
    try:
        write_all(file, text.encode(), 0)
    finally:
        file.close()


def sync_new_partition(storage: Storage, directory: Path) -> None:
    """Make the existence of a new partition durable."""
    file = storage.open(directory / METADATA)
    try:
        file.sync()
    finally:
        file.close()
    storage.sync_directory(directory)
    storage.sync_directory(directory.parent)


def read_metadata(storage: Storage, directory: Path) -> TopicId:
    """Raises FileNotFoundError, or ValueError for a file that says no topic id."""
    lines = storage.read(directory / METADATA).decode().splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError(f"{directory / METADATA} says no topic id")
    return TopicId(parse_uuid(fields["topic_id"]))


def read_epochs(storage: Storage, directory: Path) -> LeaderEpochs | None:
    """None if the file is lost or torn: make it again from the batch headers."""
    try:
        return LeaderEpochs.from_text(storage.read(directory / EPOCHS))
    except (FileNotFoundError, ValueError):
        return None


def write_epochs(storage: Storage, directory: Path, text: bytes) -> None:
    replace_file(storage, directory / EPOCHS, text)


def snapshot_offsets(names: list[str]) -> list[Offset]:
    """The offsets of the snapshots among `names`, rising."""
    suffix = Suffix.SNAPSHOT.value
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(Offset(int(stem)) for stem in stems if stem.isdigit())


def write_snapshot(
    storage: Storage, directory: Path, offset: Offset, entries: dict[ProducerId, ProducerEntry]
) -> None:
    """Not synced: a torn one is recognized by its CRC, and an older one is used."""
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
    """The newest whole snapshot at or below `offset_max`; torn ones are removed on the way."""
    for offset in sorted((o for o in offsets if o <= offset_max), reverse=True):
        path = directory / file_name(offset, Suffix.SNAPSHOT)
        try:
            return offset, ProducerStates.from_entries(decode_snapshot(storage.read(path)))
        except FileNotFoundError:
            continue
        except CorruptSnapshot:
            storage.remove(path)
    return None

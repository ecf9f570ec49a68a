"""Whose directory this is: `meta.properties`, as Kafka writes it in KRaft mode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odradek_broker.log.directory.checkpoints import parse_uuid, uuid_text
from odradek_broker.log.storage import Storage, replace_file
from odradek_protocol.identity import BrokerId, ClusterId, DirectoryId, MetadataIncarnationId

META_PROPERTIES: Final = "meta.properties"
_INCARNATION: Final = "metadata.incarnation"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """Written by formatting; a directory never changes hands.

    `metadata_incarnation_id` is added when the broker has followed a metadata log that has one. Older
    programs ignore its line.
    """

    cluster_id: ClusterId
    node_id: BrokerId
    directory_id: DirectoryId
    metadata_incarnation_id: MetadataIncarnationId | None = None

    def to_text(self) -> bytes:
        incarnation_id = self.metadata_incarnation_id
        return (
            "#\n"
            f"cluster.id={self.cluster_id}\n"
            f"directory.id={uuid_text(self.directory_id)}\n"
            + (f"{_INCARNATION}={incarnation_id.hex()}\n" if incarnation_id is not None else "")
            + f"node.id={self.node_id}\n"
            "version=1\n"
        ).encode()

    @classmethod
    def from_text(cls, text: bytes) -> MetaProperties:
        """Raises ValueError, naming what is missing or wrong."""
        lines = [line for line in text.decode().splitlines() if "=" in line and line[0] != "#"]
        fields = dict(line.split("=", 1) for line in lines)
        if fields.get("version") != "1":
            raise ValueError(f"version {fields.get('version')!r} is not 1")
        for name in ("cluster.id", "node.id", "directory.id"):
            if not fields.get(name):
                raise ValueError(f"{name} is missing")
        incarnation = fields.get(_INCARNATION)
        return cls(
            cluster_id=ClusterId(fields["cluster.id"]),
            node_id=BrokerId(int(fields["node.id"])),
            directory_id=DirectoryId(parse_uuid(fields["directory.id"])),
            metadata_incarnation_id=None if incarnation is None else parse_incarnation(incarnation),
        )


def parse_incarnation(text: str) -> MetadataIncarnationId:
    """The reverse of `.hex()`; ValueError for anything but 16 bytes."""
    value = bytes.fromhex(text)
    if len(value) != 16:
        raise ValueError(f"{text!r} is no incarnation of 32 hexadecimal digits")
    return MetadataIncarnationId(value)


def read_meta_properties(storage: Storage, directory: Path) -> MetaProperties | None:
    """None if the directory was never formatted; ValueError for a damaged file."""
    try:
        text = storage.read(directory / META_PROPERTIES)
    except FileNotFoundError:
        return None
    return MetaProperties.from_text(text)


def write_meta_properties(storage: Storage, directory: Path, meta: MetaProperties) -> None:
    replace_file(storage, directory / META_PROPERTIES, meta.to_text())

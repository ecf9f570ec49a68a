"""Checks before a process uses a data directory: its lock, and its identity in `meta.properties`.

`meta.properties` has the format of Kafka in KRaft mode.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from odradek_broker.log.directory.partition_files import parse_uuid, uuid_text
from odradek_broker.log.storage import File, Storage, replace_file, write_all
from odradek_protocol.identity import BrokerId, ClusterId, DirectoryId, MetadataIncarnationId

META_PROPERTIES: Final = "meta.properties"
_INCARNATION: Final = "metadata.incarnation"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The content of `meta.properties`, which `odradek storage format` writes. Cluster and node of a directory never
    change.

    `metadata_incarnation_id` is added when the broker has followed a metadata log that has an incarnation id. Older
    versions ignore its line.
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
        """Decode the file. A ValueError names the missing or wrong line."""
        lines = [line for line in text.decode().splitlines() if "=" in line and line[0] != "#"]
        fields = dict(line.split("=", 1) for line in lines)
        if fields.get("version") != "1":
            raise ValueError(f"the version is {fields.get('version')!r}, not 1")
        for name in ("cluster.id", "node.id", "directory.id"):
            if not fields.get(name):
                raise ValueError(f"the line {name} is missing")
        incarnation = fields.get(_INCARNATION)
        return cls(
            cluster_id=ClusterId(fields["cluster.id"]),
            node_id=BrokerId(int(fields["node.id"])),
            directory_id=DirectoryId(parse_uuid(fields["directory.id"])),
            metadata_incarnation_id=None if incarnation is None else parse_incarnation(incarnation),
        )


def parse_incarnation(text: str) -> MetadataIncarnationId:
    """Decode 32 hexadecimal digits. Raises ValueError for any other text."""
    value = bytes.fromhex(text)
    if len(value) != 16:
        raise ValueError(f"{text!r} is not an incarnation id, which has 32 hexadecimal digits")
    return MetadataIncarnationId(value)


def read_meta_properties(storage: Storage, directory: Path) -> MetaProperties | None:
    """Read `meta.properties`; None if the directory was never formatted. Raises ValueError if the file is damaged."""
    try:
        text = storage.read(directory / META_PROPERTIES)
    except FileNotFoundError:
        return None
    return MetaProperties.from_text(text)


def write_meta_properties(storage: Storage, directory: Path, meta: MetaProperties) -> None:
    replace_file(storage, directory / META_PROPERTIES, meta.to_text())


LOCK_NAME: Final = ".lock"


class DirectoryRefused(Exception):
    """The directory cannot be used. The message has the reason and the remedy."""


def format_directory(
    storage: Storage, path: Path, *, cluster_id: ClusterId, node_id: BrokerId
) -> DirectoryId:
    """Write meta.properties. It is no error if the file exists for the same cluster and node.

    A directory that contains data directories is refused: the data directory of this broker is probably among them, and
    the broker would begin again without its records.
    """
    storage.make_directory(path)
    meta = _read_meta(storage, path)
    if meta is None:
        if names := [
            name for name in sorted(storage.names(path)) if is_formatted(storage, path / name)
        ]:
            own = name if (name := f"broker-{node_id}") in names else names[0]
            raise DirectoryRefused(
                f"{path} is not the data directory of a broker, but contains such directories ({', '.join(names[:5])}):"
                f" start `odradek broker` with --processes as before, or set log.dirs={path / own} to use one of them"
            )
        directory_id = DirectoryId(secrets.token_bytes(16))
        meta = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
        write_meta_properties(storage, path, meta)
        # Without this sync, a power loss could remove the directory with all synced files in it.
        storage.sync_directory(path.parent)
    _require_identity(meta, path, cluster_id, node_id)
    return meta.directory_id


def is_formatted(storage: Storage, path: Path) -> bool:
    """Return whether `path` is the data directory of a broker. False if this process may not read it."""
    try:
        return storage.exists(path / META_PROPERTIES)
    except PermissionError:  # such as lost+found
        return False


def sync_name(storage: Storage, path: Path) -> None:
    """Make the directory entry of `path` durable, because the process that formatted the directory may have been killed
    before it synced the entry.

    Nothing is synced if this process may not read the parent directory, because then another program created `path`,
    for example as the mount point of a volume.
    """
    with contextlib.suppress(PermissionError):
        storage.sync_directory(path.parent)


def checked_meta(
    storage: Storage, path: Path, *, cluster_id: ClusterId, node_id: BrokerId
) -> MetaProperties:
    """Return the directory's identity. Raises DirectoryRefused unless it belongs to this node and cluster."""
    meta = _read_meta(storage, path)
    if meta is None:
        raise DirectoryRefused(
            f"{path} has no {META_PROPERTIES}: run `odradek storage format` first"
        )
    _require_identity(meta, path, cluster_id, node_id)
    return meta


def adopt_metadata(
    storage: Storage, path: Path, incarnation_id: MetadataIncarnationId | None
) -> MetaProperties:
    """Store the id of the metadata log to which the directory's logs belong. With None, the broker may follow any
    metadata log.

    The change is durable on return. The caller must have locked the directory.
    """
    meta = _read_meta(storage, path)
    if meta is None:
        raise DirectoryRefused(
            f"{path} has no {META_PROPERTIES}: it is not the data directory of a broker"
        )
    adopted = replace(meta, metadata_incarnation_id=incarnation_id)
    if adopted != meta:
        write_meta_properties(storage, path, adopted)
    return adopted


def take_lock(storage: Storage, path: Path) -> File:
    """Lock the directory, and write the id of this process into the lock file. A DirectoryRefused names the process
    that has locked the directory.
    """
    try:
        lock = storage.lock(path / LOCK_NAME)
    except BlockingIOError:
        try:
            holder = storage.read(path / LOCK_NAME).decode().strip() or "unknown"
        except OSError:
            holder = "unknown"
        raise DirectoryRefused(
            f"{path} is in use by the process {holder}: stop it, or use another data directory"
        ) from None
    pid = f"{storage.process_id()}\n".encode()
    lock.truncate(0)
    write_all(lock, pid, 0)
    return lock


def _read_meta(storage: Storage, path: Path) -> MetaProperties | None:
    try:
        return read_meta_properties(storage, path)
    except ValueError as error:
        raise DirectoryRefused(f"{path}/{META_PROPERTIES} is damaged: {error}") from None


def _require_identity(
    meta: MetaProperties, path: Path, cluster_id: ClusterId, node_id: BrokerId
) -> None:
    if meta.cluster_id != cluster_id:
        raise DirectoryRefused(
            f"{path} belongs to the cluster {meta.cluster_id}, not to {cluster_id}:"
            " use the right data directory, or format a new one"
        )
    if meta.node_id != node_id:
        raise DirectoryRefused(
            f"{path} belongs to node {meta.node_id}, not to node {node_id}:"
            " use the right data directory, or format a new one"
        )

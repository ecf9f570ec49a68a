"""The data directory of a voter: how it is formatted, and how its identity is checked at a start.

A directory is formatted once, before the first start of the voter. A voter does not start with an empty directory that
is not formatted. Such a voter may have lost its votes and entries, and two such voters of three could elect a leader
that lacks committed entries. `odradek storage format` runs this module as a process with the arguments
`DIR CLUSTER_ID NODE_ID VOTER,...`.

For the same reason a formatted directory begins with `joined: false`. Such a voter stores entries, but does not vote
and does not start elections until one of two facts is certain (`raft/joining.py`). Either the cluster is new, because
all voters are empty. Or the voter has caught up with a leader, and knows the highest term in which it may have voted.
So it is always safe to format the directory of a wiped voter again, and no option is needed that an operator could set
wrong.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from odradek_metadata_quorum.errors import (
    CorruptStorage,
    QuorumError,
    StorageMismatch,
    newer_format,
)
from odradek_metadata_quorum.storage.disk import DirectoryDisk, Disk, read_file, write_file
from odradek_metadata_quorum.storage.log_frame import SEGMENT_HEADER, is_segment
from odradek_metadata_quorum.storage.log_recovery import LAST_SEGMENT_NAME
from odradek_metadata_quorum.storage.vote_file import VoteFile
from odradek_metadata_quorum.storage.write_ahead_log import WriteAheadLog

IDENTITY_NAME: Final = "identity.json"
_OF_THE_FILE_SYSTEM: Final = "lost+found"
_VERSION: Final = 1
_ID_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageIdentity:
    """The contents of the identity file: the voter to which a data directory belongs. `joined` is False until the voter
    may vote.
    """

    cluster_id: str
    node_id: int
    voters: tuple[int, ...]
    joined: bool


def format_storage(
    data_dir: Path, *, cluster_id: str, node_id: int, voters: Iterable[int]
) -> StorageIdentity:
    """Create the directory if necessary, and create an identity file, an empty log, and a vote file without a vote.

    If the directory is already formatted with the same identity, nothing changes. Raises `StorageMismatch` if the
    directory has another identity or files of other programs.
    """
    expected = StorageIdentity(
        cluster_id=cluster_id, node_id=node_id, voters=_checked(node_id, voters), joined=False
    )
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    disk = DirectoryDisk(data_dir)
    try:
        identity = format_disk(disk, expected, str(data_dir))
    finally:
        disk.close()
    for parent in data_dir.resolve().parents:
        _sync_directory(parent)
    return identity


def _sync_directory(path: Path) -> None:
    """Make the file names in a directory durable. A directory that cannot be read is skipped: this process did not
    create it.
    """
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def check_storage(
    data_dir: Path, *, cluster_id: str, node_id: int, voters: Iterable[int]
) -> StorageIdentity:
    """Read the identity of a directory. Raises `StorageMismatch`, whose message names the remedy, if it is not the
    expected one, and `CorruptStorage` if the identity file is damaged.
    """
    expected = StorageIdentity(
        cluster_id=cluster_id, node_id=node_id, voters=_checked(node_id, voters), joined=False
    )
    disk = DirectoryDisk(data_dir)
    try:
        return check_disk(disk, expected, str(data_dir))
    finally:
        disk.close()


def format_disk(disk: Disk, expected: StorageIdentity, place: str) -> StorageIdentity:
    """Do the work of `format_storage` for an open directory. `place` is its path for error texts.

    The identity file is written last, so that it does not exist if the process crashes before the end.
    """
    names = [name for name in disk.names() if name != _OF_THE_FILE_SYSTEM]
    if IDENTITY_NAME in names:
        identity = check_disk(disk, expected, place)
        # A process of an earlier release that formatted the directory may have been killed before this sync.
        disk.sync_directory()
        return identity
    foreign = [name for name in names if not name.startswith(("log-", "vote", IDENTITY_NAME))]
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise StorageMismatch(
            f"{place} is not empty ({foreign[0]}{more}): format an empty directory"
        )
    _remove_unfinished_format(disk, names, place)
    VoteFile.create(disk)
    WriteAheadLog.create(disk)
    disk.sync_directory()
    save_identity(disk, expected)
    return expected


def _remove_unfinished_format(disk: Disk, names: list[str], place: str) -> None:
    """Remove the files of an interrupted format: an empty log and a vote file. Raises `StorageMismatch` if the log has
    entries.
    """
    for name in names:
        used = is_segment(name) and len(read_file(disk, name)) > SEGMENT_HEADER.size
        if used or name.startswith(LAST_SEGMENT_NAME):
            raise StorageMismatch(
                f"{place} has the log of a controller ({name}), but no {IDENTITY_NAME}: restore {IDENTITY_NAME},"
                " or move the directory aside; formatting would remove the log"
            )
    for name in names:
        disk.remove(name)


def check_disk(disk: Disk, expected: StorageIdentity, place: str) -> StorageIdentity:
    """Do the work of `check_storage` for an open directory. `place` is its path for error texts."""
    if IDENTITY_NAME not in disk.names():
        raise StorageMismatch(
            f"{place} is not formatted: run `odradek storage format` for it before the first start"
        )
    identity = _decode(read_file(disk, IDENTITY_NAME), place)
    if identity.cluster_id != expected.cluster_id:
        raise StorageMismatch(
            f"{place} belongs to cluster {identity.cluster_id}, not {expected.cluster_id}: correct"
            " cluster.id or the path of the data directory"
        )
    if identity.node_id != expected.node_id:
        raise StorageMismatch(
            f"{place} belongs to controller {identity.node_id}, not {expected.node_id}: correct"
            " node.id, or use another directory for this controller"
        )
    if identity.voters != expected.voters:
        raise StorageMismatch(
            f"{place} was formatted for the voters {list(identity.voters)}, but the voters given now are"
            f" {list(expected.voters)}: voters cannot be changed, so restore the old list"
        )
    return identity


def save_identity(disk: Disk, identity: StorageIdentity) -> None:
    """Replace the identity file durably. After a crash the old or the new file exists. The call waits for the disk."""
    document = {"version": _VERSION, **asdict(identity), "voters": list(identity.voters)}
    write_file(disk, IDENTITY_NAME, json.dumps(document, indent=2).encode() + b"\n")


def _checked(node_id: int, voters: Iterable[int]) -> tuple[int, ...]:
    named = sorted(voters)
    ordered = tuple(sorted(set(named)))
    if len(ordered) != len(named):
        raise StorageMismatch(
            f"the voters {named} name a controller twice: name each controller once"
        )
    if node_id not in ordered:
        raise StorageMismatch(f"controller {node_id} is not among the voters {list(ordered)}")
    for voter in ordered:
        if not 0 <= voter <= _ID_MAX:
            raise StorageMismatch(f"controller id {voter} is not from 0 to {_ID_MAX}")
    return ordered


def _decode(data: bytes, place: str) -> StorageIdentity:
    try:
        document = json.loads(data)
        if document["version"] > _VERSION:
            raise newer_format(place, document["version"], _VERSION)
        identity = StorageIdentity(
            cluster_id=document["cluster_id"],
            node_id=document["node_id"],
            voters=tuple(document["voters"]),
            joined=document["joined"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptStorage(f"{place}/{IDENTITY_NAME} is damaged: {error!r}") from None
    if not (
        isinstance(identity.cluster_id, str)
        and isinstance(identity.node_id, int)
        and isinstance(identity.joined, bool)
    ):
        raise CorruptStorage(f"{place}/{IDENTITY_NAME} is damaged: a value has the wrong type")
    return identity


def main() -> int:
    """Format the data directory that the command line names. On an error, print a line to stderr and return 1."""
    data_dir, cluster_id, node_id, voters = sys.argv[1:5]
    try:
        format_storage(
            Path(data_dir),
            cluster_id=cluster_id,
            node_id=int(node_id),
            voters=[int(voter) for voter in voters.split(",")],
        )
    except OSError as error:
        print(f"odradek: {data_dir}: {error.strerror or error}", file=sys.stderr)
        return 1
    except (QuorumError, ValueError) as error:
        print(f"odradek: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

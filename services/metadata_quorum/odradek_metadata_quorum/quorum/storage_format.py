"""stub"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageIdentity:
    """Whose data directory this is. `joined` is False until the node may vote."""

    cluster_id: str
    node_id: int
    voters: tuple[int, ...]
    joined: bool


def format_storage(
    data_dir: Path, *, cluster_id: str, node_id: int, voters: Iterable[int]
) -> StorageIdentity:
    """Give an empty data directory its identity. Raises `StorageMismatch` when it has another."""
    raise NotImplementedError


def check_storage(
    data_dir: Path, *, cluster_id: str, node_id: int, voters: Iterable[int]
) -> StorageIdentity:
    """Read the identity; raises `StorageMismatch`, naming the way out, when it is not this one."""
    raise NotImplementedError

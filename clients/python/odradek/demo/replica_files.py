"""Are the files of all replicas the same, byte for byte, up to the high watermark?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from odradek_protocol.records.batch_header import read_header

_PREFIX_BYTES = 12  # base offset and batch length
_HEADER_BYTES = 61


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """One partition's replicas."""

    partition: int
    high_watermark: int
    bytes_compared: int  # of one replica
    replicas: int
    is_identical: bool
    segments: int  # of the first replica


def compare_replicas(
    directories: Sequence[Path], topic: str, partition: int, high_watermark: int
) -> ReplicaComparison:
    """Read every replica's segments up to the watermark; `directories` are the brokers' data directories."""
    digests: set[str] = set()
    sizes: set[int] = set()
    for directory in directories:
        digest, size = hashlib.sha256(), 0
        for batch in batches_until(directory / f"{topic}-{partition}", high_watermark):
            digest.update(batch)
            size += len(batch)
        digests.add(digest.hexdigest())
        sizes.add(size)
    first = directories[0] / f"{topic}-{partition}"
    return ReplicaComparison(
        partition=partition,
        high_watermark=high_watermark,
        bytes_compared=min(sizes),
        replicas=len(directories),
        is_identical=len(digests) == 1,
        segments=len(list(first.glob("*.log"))),
    )


def batches_until(folder: Path, end_offset: int) -> Iterator[bytes]:
    """The batches of a partition's folder whose offsets lie below `end_offset`, in order."""
    for segment in sorted(folder.glob("*.log")):
        data = segment.read_bytes()
        position = 0
        while position + _HEADER_BYTES <= len(data):
            header = read_header(data, position)
            if header.next_offset > end_offset:
                return
            end = position + _PREFIX_BYTES + header.batch_length
            if end > len(data):
                return
            yield data[position:end]
            position = end

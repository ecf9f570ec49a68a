"""The checks of the demo: which records were acknowledged and read back, and whether all replicas are identical."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from odradek_demo.flights import Flight
from odradek_protocol.records.batch_header import read_header

_UNSEEN = -1


@dataclass(slots=True)
class AcknowledgementLog:
    """The acknowledged flights, and the longest time between two acknowledgements."""

    acknowledged: bytearray
    count: int = 0
    longest_pause_s: float = 0.0
    longest_pause_began_s: float = 0.0
    _last_s: float = 0.0

    @classmethod
    def of(cls, flights: int) -> AcknowledgementLog:
        return cls(acknowledged=bytearray(flights))

    def begin(self, now_s: float) -> None:
        """Start to measure the time between acknowledgements, because the first record is being sent."""
        self._last_s = now_s

    def note(self, sequence: int, now_s: float) -> None:
        """Record the acknowledgement of the flight with this sequence number."""
        pause_s = now_s - self._last_s
        if pause_s > self.longest_pause_s:
            self.longest_pause_s, self.longest_pause_began_s = pause_s, self._last_s
        self._last_s = now_s
        self.acknowledged[sequence] = 1
        self.count += 1


@dataclass(slots=True)
class ReadBack:
    """The records that were read from the topic, compared with the flights that were sent."""

    flights: Sequence[Flight]
    read: int = 0
    duplicates: int = 0
    foreign: int = 0  # Records that are not flights.
    damaged: int = 0  # Records whose key or value differs from what was sent.
    out_of_order: int = 0  # Records that are out of order within their key.
    _seen: bytearray = field(init=False)
    _last_of_key: dict[bytes, int] = field(init=False)
    _digests: dict[int, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._seen = bytearray(len(self.flights))
        self._last_of_key = defaultdict(lambda: _UNSEEN)
        self._digests = {}

    def note(self, key: bytes | None, value: bytes) -> None:
        """Compare the next record that was read with the flight that was sent. The records of a partition must be
        passed in order.
        """
        self.read += 1
        sequence = json.loads(value).get("seq", _UNSEEN)
        if not 0 <= sequence < len(self.flights):
            self.foreign += 1
            return
        sent = self.flights[sequence]
        if self._seen[sequence]:
            self.duplicates += 1
        self._seen[sequence] = 1
        if sent.key != key or sent.value != value:
            self.damaged += 1
        if key is not None:
            if sequence <= self._last_of_key[key]:
                self.out_of_order += 1
            self._last_of_key[key] = sequence
        self._digests[sequence] = _digest(key, value)

    def missing(self, log: AcknowledgementLog) -> int:
        """Return the number of acknowledged flights that were not read."""
        return sum(
            1
            for seen, acknowledged in zip(self._seen, log.acknowledged, strict=True)
            if acknowledged and not seen
        )

    def sha256(self) -> str:
        """Return the checksum of the keys and values that were read, in the order of the flights in the data set."""
        return _sha256(self._digests[i] for i in sorted(self._digests))

    def source_sha256(self) -> str:
        """Return the checksum of the keys and values that were sent, in the order of the flights."""
        return _sha256(_digest(flight.key, flight.value) for flight in self.flights)


def carrier_delays(values: Iterable[bytes]) -> list[tuple[str, int, float]]:
    """Return (carrier, number of flights, mean arrival delay in minutes) for each carrier. The carrier with the most
    flights is first. `values` are the JSON values of records, one for each flight.
    """
    flights: dict[str, int] = defaultdict(int)
    delays: dict[str, list[int]] = defaultdict(list)
    for value in values:
        row = json.loads(value)
        flights[row["carrier"]] += 1
        if row["arr_delay"] is not None:
            delays[row["carrier"]].append(row["arr_delay"])
    return sorted(
        ((c, n, sum(delays[c]) / len(delays[c]) if delays[c] else 0.0) for c, n in flights.items()),
        key=lambda row: -row[1],
    )


def _digest(key: bytes | None, value: bytes) -> bytes:
    digest = hashlib.sha256()
    digest.update(b"\x00" if key is None else b"\x01" + len(key).to_bytes(4) + key)
    digest.update(value)
    return digest.digest()


def _sha256(digests: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()


_PREFIX_BYTES = 12  # Base offset and batch length.
_HEADER_BYTES = 61


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """The result of comparing the replicas of one partition."""

    partition: int
    high_watermark: int
    bytes_compared: int  # The number of compared bytes of each replica.
    replicas: int
    is_identical: bool
    segments: int  # The number of segments of the first replica.


def compare_replicas(
    directories: Sequence[Path], topic: str, partition: int, high_watermark: int
) -> ReplicaComparison:
    """Compare the files of all replicas of a partition up to the high watermark. `directories` are the data directories
    of the brokers.
    """
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
    """Yield the batches in a partition's folder that end at or before `end_offset`, in order."""
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

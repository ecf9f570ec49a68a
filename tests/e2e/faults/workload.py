"""Produces numbered records with acks=all, records when each was acknowledged, and checks what is
read back.

`under_load` runs an idempotent producer while the test injects faults. `faults_of` compares the
acknowledged records with those that are read back: none may be lost or duplicated, each partition
must have the order in which records were sent, and each record must be at the offset that its
acknowledgement named.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from odradek import Client, DeliveryFuture

RATE = 1_000  # records/s
SETTLE_S_MAX = 60.0
DELIVERY_MS_MAX = 120_000
PROBE = b"probe"  # prefix of values that a test sends in addition to the load
_PACE_S = 0.005
_READ_MS_MAX = 30_000


class Place(NamedTuple):
    """The partition and offset of a record; the offset is -1 if the acknowledgement did not name
    it.
    """

    partition: int
    offset: int


@dataclass(slots=True)
class Workload:
    """The state of a load, in which record `n` goes to partition `n % partitions`.

    `under_load` writes it, and tests read it.
    """

    partitions: int
    sent: int = 0
    acknowledged: dict[int, Place] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0  # between two acknowledgements of one partition, since `begin_gap`
    is_over: bool = False
    _last_s: dict[int, float] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def begin_gap(self) -> None:
        """Discard the gaps that ended before now; gaps that are still open count from their
        beginning.
        """
        self.longest_gap_s = 0.0

    def note(self, sequence: int, future: DeliveryFuture) -> None:
        """Record that a record was acknowledged or failed."""
        self._changed.set()
        error = future.exception()
        if error is not None:
            self.failures.append(f"record {sequence}: {error}")
            return
        metadata, now_s = future.result(), time.monotonic()
        self.acknowledged[sequence] = Place(metadata.partition, metadata.offset)
        gap_s = now_s - self._last_s.get(metadata.partition, now_s)
        self.longest_gap_s = max(self.longest_gap_s, gap_s)
        self._last_s[metadata.partition] = now_s

    async def progress(self, records: int, timeout_s: float = SETTLE_S_MAX) -> None:
        """Wait until the next `records` records of every partition are acknowledged.

        Raises:
            TimeoutError: they were not acknowledged within `timeout_s`.
        """
        first = self.sent
        wanted = set(range(first, first + records * self.partitions))
        async with asyncio.timeout(timeout_s):
            while not wanted <= self.acknowledged.keys():
                assert not self.failures, self.failures[:3]
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def under_load(
    client: Client, topic: str, *, partitions: int, rate: int = RATE
) -> AsyncIterator[Workload]:
    """Send records until the end of the `with` block, and then wait until every record is
    acknowledged or failed.
    """
    load = Workload(partitions=partitions)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_send(client, topic, load, rate))
        try:
            await load.progress(100)
            yield load
        finally:
            load.is_over = True


async def _send(client: Client, topic: str, load: Workload, rate: int) -> None:
    def noting(sequence: int) -> Callable[[DeliveryFuture], None]:
        return lambda future: load.note(sequence, future)

    async with client.producer(acks="all", delivery_timeout_ms=DELIVERY_MS_MAX) as producer:
        began_s = time.monotonic()
        while not load.is_over:
            while load.sent < (time.monotonic() - began_s) * rate and not load.is_over:
                sequence = load.sent
                load.sent += 1
                future = await producer.send(
                    topic, b"%d" % sequence, partition=sequence % load.partitions
                )
                future.add_done_callback(noting(sequence))
            await asyncio.sleep(_PACE_S)
        await producer.flush(SETTLE_S_MAX)


async def read_all(client: Client, topic: str, partitions: int) -> list[tuple[Place, bytes]]:
    """Return every record of the topic up to its high watermarks, in the order of each
    partition.
    """
    names = [(topic, index) for index in range(partitions)]
    read: list[tuple[Place, bytes]] = []
    async with client.consumer() as consumer:
        total = sum((await consumer.end_offsets(names)).values())
        consumer.assign(names)
        consumer.seek_to_beginning()
        while len(read) < total:
            records = await consumer.getmany(timeout_ms=_READ_MS_MAX, max_records=5_000)
            assert records, f"{len(read)} of {total} records came within {_READ_MS_MAX} ms"
            read += [(Place(r.partition, r.offset), r.value or b"") for r in records]
    return read


def faults_of(
    acknowledged: Mapping[int, Place], sent: int, read: Iterable[tuple[Place, bytes]]
) -> list[str]:
    """Return the faults of the log: lost, duplicated, reordered and misplaced records."""
    faults: list[str] = []
    seen: dict[int, Place] = {}
    last: dict[int, int] = {}
    for place, value in read:
        if value.startswith(PROBE):
            continue
        sequence = int(value)
        if not 0 <= sequence < sent:
            faults.append(f"record {sequence} at {place} was never sent")
        if sequence in seen:
            faults.append(f"record {sequence} is doubled: {seen[sequence]} and {place}")
        elif sequence < last.get(place.partition, -1):
            faults.append(
                f"record {sequence} at {place} is out of order, after {last[place.partition]}"
            )
        seen.setdefault(sequence, place)
        last[place.partition] = max(sequence, last.get(place.partition, -1))
    for sequence, place in acknowledged.items():
        found = seen.get(sequence)
        if found is None:
            faults.append(f"record {sequence}, acknowledged at {place}, is lost")
        elif found.partition != place.partition or place.offset not in (-1, found.offset):
            faults.append(f"record {sequence}, acknowledged at {place}, is at {found}")
    return faults


async def verify(client: Client, topic: str, load: Workload) -> None:
    """Check that every record was acknowledged and is in the log once, in order, at the acknowledged offset."""
    assert not load.failures, load.failures[:3]
    assert len(load.acknowledged) == load.sent
    faults = faults_of(load.acknowledged, load.sent, await read_all(client, topic, load.partitions))
    assert not faults, f"{len(faults)} faults, the first: {faults[:5]}"

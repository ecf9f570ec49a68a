"""Creates, fills and reads the topics of a test with the SDK, not with Spark."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from odradek.admin.transaction_admin import StepsDescription
from odradek.client import Client
from odradek.consumer.consumer_record import ConsumerRecord
from odradek.partitions import TopicPartition

READ_S_MAX = 300.0


_numbers = itertools.count()
_loop: list[asyncio.AbstractEventLoop] = []


def _run(work):  # type: ignore[no-untyped-def]
    """Run a coroutine on one event loop for all tests, in its own thread, because gRPC does not
    work with several loops one after the other.
    """
    if not _loop:
        _loop.append(asyncio.new_event_loop())
        threading.Thread(target=_loop[0].run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(work, _loop[0]).result()


@dataclass(frozen=True, slots=True)
class Output:
    """One record to send."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] | None = None


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one cluster."""

    bootstrap: str

    def create(self, name: str, *, partitions: int = 4, replicas: int = 1, **configs: str) -> None:
        async def work(client: Client) -> None:
            await client.admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replicas,
                configs={key.replace("_", "."): value for key, value in configs.items()},
            )

        _run(self._with_client(work))

    def new(self, *, partitions: int = 4) -> str:
        """Create a topic with a new name, and return the name."""
        name = f"t{next(_numbers)}"
        self.create(name, partitions=partitions)
        return name

    def add_partitions(self, name: str, total: int) -> None:
        async def work(client: Client) -> None:
            await client.admin.add_partitions(name, total)

        _run(self._with_client(work))

    def delete(self, name: str) -> None:
        async def work(client: Client) -> None:
            await client.admin.delete_topic(name)

        _run(self._with_client(work))

    def delete_before(self, name: str, partition: int, offset: int) -> None:
        async def work(client: Client) -> None:
            await client.admin.delete_records({TopicPartition(name, partition): offset})

        _run(self._with_client(work))

    def ends(self, name: str) -> dict[int, int]:
        """Return the end offset of each partition, as a reader sees it."""

        async def work(client: Client) -> dict[int, int]:
            topic = await client.admin.describe_topic(name)
            wanted = {TopicPartition(name, p.partition): -1 for p in topic.partitions}
            found = await client.admin.list_offsets(wanted)
            return {where.partition: at.offset for where, at in found.items()}

        return dict(_run(self._with_client(work)))

    def steps(self, query: str) -> StepsDescription:
        """Return the last complete step of a query with staged writes."""

        async def work(client: Client) -> StepsDescription:
            return await client.admin.transactions.steps(query)

        described: StepsDescription = _run(self._with_client(work))
        return described

    def leaders(self, name: str) -> dict[int, int]:
        """Return the broker that leads each partition, or -1 if there is none."""

        async def work(client: Client) -> dict[int, int]:
            topic = await client.admin.describe_topic(name)
            return {p.partition: p.leader_id for p in topic.partitions}

        return dict(_run(self._with_client(work)))

    def move_leaders(self, name: str) -> None:
        """Make the next replica of each partition its leader, once all are in sync; no broker
        stops.
        """

        async def work(client: Client) -> None:
            async with asyncio.timeout(READ_S_MAX):
                topic = await client.admin.describe_topic(name)
                while any(set(p.isr) != set(p.replicas) for p in topic.partitions):
                    await asyncio.sleep(0.1)
                    topic = await client.admin.describe_topic(name)
            turned = {
                TopicPartition(name, p.partition): [*p.replicas[1:], p.replicas[0]]
                for p in topic.partitions
            }
            for outcome in await client.admin.reassign_partitions(turned):
                assert outcome.error is None, outcome
            for outcome in await client.admin.elect_leaders(turned):
                assert outcome.error is None, outcome

        _run(self._with_client(work))

    def send(self, name: str, records: Iterable[Output]) -> int:
        """Send all records; return how many were acknowledged."""

        async def work(client: Client) -> int:
            count = 0
            async with client.producer() as producer:
                futures = []
                for record in records:
                    futures.append(
                        await producer.send(
                            name,
                            record.value,
                            key=record.key,
                            partition=record.partition,
                            timestamp_ms=record.timestamp_ms,
                            headers=record.headers,
                        )
                    )
                for future in futures:
                    await future
                    count += 1
            return count

        return _run(self._with_client(work))

    def read(self, name: str, *, isolation_level: str = "read_committed") -> list[ConsumerRecord]:
        """Return all present records that are visible, by partition and offset."""

        async def work(client: Client) -> list[ConsumerRecord]:
            async with (
                client.consumer(name, auto_offset_reset="earliest") as every,
                client.consumer(
                    name, auto_offset_reset="earliest", isolation_level=isolation_level
                ) as consumer,
            ):
                # Markers of transactions have offsets too, and no records.
                ends = await every.end_offsets(every.assignment())
                found: list[ConsumerRecord] = []
                async with asyncio.timeout(READ_S_MAX):
                    for partition, end in ends.items():
                        while await consumer.position(partition) < end:
                            found += await consumer.getmany(timeout_ms=100)
                return [
                    record
                    for record in found
                    if record.offset < ends[TopicPartition(record.topic, record.partition)]
                ]

        records = _run(self._with_client(work))
        return sorted(records, key=lambda record: (record.partition, record.offset))

    def pairs(self, name: str) -> list[tuple[bytes | None, bytes | None]]:
        """Return (key, value) of all records, in order within a partition."""
        return [(record.key, record.value) for record in self.read(name)]

    async def _with_client(self, work):  # type: ignore[no-untyped-def]
        async with Client(self.bootstrap) as client:
            return await work(client)

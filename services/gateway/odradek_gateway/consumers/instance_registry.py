"""Who serves which instance: the compacted topic `__rest_consumers`, read by every gateway from its beginning.

A record's key is `group/instance`; its value has the instance's spec, the gateway that serves it, and a number that
rises with each takeover. Two gateways may want to take over at once: the first record with a number wins, later ones
with the same number are ignored by everyone, their writers included, since all read the same order.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from odradek.client import Client
from odradek.errors import OdradekError, TopicExists
from odradek.partitions import TopicPartition
from odradek.producer.producer import Producer
from odradek_gateway.cluster_access import REGISTRY_TOPIC as TOPIC
from odradek_gateway.consumers.instance import InstanceSpec
from odradek_gateway.rest.errors import KAFKA_RETRIABLE_ERROR, RestError
from odradek_runtime.logs import event_log

_PARTITION: Final = TopicPartition(TOPIC, 0)
_REPLICAS: Final = 3
_SEEN_S: Final = 10.0
_log = event_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The present state of one instance."""

    spec: InstanceSpec
    owner: str  # URL of the gateway that serves it
    number: int


class InstanceRegistry:
    """Started at the first use; `close` ends the reading."""

    def __init__(self, client: Client, producer: Producer, *, url: str) -> None:
        self._client = client
        self._producer = producer
        self._url = url
        self._known: dict[tuple[str, str], Registration] = {}
        self._position = -1
        self._moved = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Read what is there; waits until all of it is known."""
        async with self._starting:
            if self._reading is not None:
                return
            brokers = len(await self._client.admin.list_brokers())
            with contextlib.suppress(TopicExists):
                await self._client.admin.create_topic(
                    TOPIC,
                    partitions=1,
                    replication_factor=min(_REPLICAS, brokers),
                    configs={"cleanup.policy": "compact"},
                )
            self._reading = asyncio.create_task(self._read(), name="rest consumer registry")
            await self.catch_up()

    async def catch_up(self) -> None:
        """Wait until all that is written now is known here."""
        async with self._client.consumer() as consumer:
            ends = await consumer.end_offsets([(TOPIC, 0)])
        await self._wait_for(next(iter(ends.values())) - 1)

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    def find(self, group: str, name: str) -> Registration | None:
        """As far as this gateway has read."""
        return self._known.get((group, name))

    async def register(self, spec: InstanceSpec) -> Registration:
        """Write that this gateway serves the instance; what holds afterwards, which may be another's."""
        key = (spec.group, spec.name)
        before = self._known.get(key)
        number = 1 if before is None else before.number + (before.owner != self._url)
        body = {"spec": asdict(spec), "owner": self._url, "number": number}
        await self._write(key, orjson.dumps(body))
        known = self._known.get(key)
        if known is None:
            raise RestError(503, KAFKA_RETRIABLE_ERROR, f"{key} was deleted at the same time")
        return known

    async def forget(self, group: str, name: str) -> None:
        """The instance is no more."""
        await self._write((group, name), None)

    async def _write(self, key: tuple[str, str], value: bytes | None) -> None:
        done = await self._producer.send_and_wait(TOPIC, value, key=orjson.dumps(key), partition=0)
        await self._wait_for(done.offset)

    async def _wait_for(self, offset: int) -> None:
        async with asyncio.timeout(_SEEN_S), self._moved:
            await self._moved.wait_for(lambda: self._position >= offset)

    async def _read(self) -> None:
        while True:
            try:
                async with self._client.consumer(auto_offset_reset="earliest") as consumer:
                    consumer.assign([(TOPIC, 0)])
                    consumer.seek_to_beginning()
                    while True:
                        for record in await consumer.getmany(timeout_ms=1_000):
                            self._replay(record.key, record.value)
                        # Not the last record's offset: compaction may have taken what stood behind it.
                        self._position = consumer.handed_out().get(_PARTITION, (0, -1))[0] - 1
                        async with self._moved:
                            self._moved.notify_all()
            except OdradekError as error:
                _log.warning("The registry of consumer instances cannot be read", reason=str(error))
                self._position = -1  # all is read again
                await asyncio.sleep(0.5)

    def _replay(self, key: bytes | None, value: bytes | None) -> None:
        try:
            group, name = orjson.loads(key or b"[]")
            if value is None:
                self._known.pop((group, name), None)
                return
            body: dict[str, Any] = orjson.loads(value)
            told = Registration(
                spec=InstanceSpec.from_json(body["spec"]),
                owner=str(body["owner"]),
                number=int(body["number"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            _log.warning("A record of the registry is damaged", reason=repr(error))
            return
        present = self._known.get((group, name))
        is_newer = present is None or told.number > present.number
        if is_newer or (present is not None and told.owner == present.owner):
            self._known[(group, name)] = told

"""The registry of consumer instances: the compacted topic `__rest_consumers`, which every gateway reads from its
beginning.

A record's key has the group and the name of an instance. Its value has the instance's spec, the gateway that serves
the instance, and a number that rises with each takeover. If two gateways take an instance over at the same time, both
write a record with the same number. The first of these records wins: every gateway ignores the second one, and all
gateways read the records in the same order.

A gateway writes the registrations of its own instances again while they are used (`update`). A registration that was
not written again for a long time belongs to an unused instance of a dead gateway, and any gateway may delete it
(`unheard_of`). Each gateway measures this time by its own clock from when it read the record, so the clocks of
gateways need not agree.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields
from typing import Any, Final

import orjson

from odradek.client import Client
from odradek.cluster.cluster import LinkState
from odradek.errors import InvalidTopic, OdradekError, TopicExists
from odradek.partitions import TopicPartition
from odradek.producer.producer import Producer
from odradek_gateway.cluster_access import REGISTRY_TOPIC as TOPIC
from odradek_gateway.errors import KAFKA_RETRIABLE_ERROR, RestError
from odradek_gateway.rest.v2.instance import InstanceSpec
from odradek_runtime.logs import event_log


def supervised(
    work: Coroutine[Any, Any, None], name: str, on_failure: Callable[[BaseException], object]
) -> asyncio.Task[None]:
    """Start a task that runs as long as the process. If the task fails, `on_failure` is called with the exception."""
    task = asyncio.create_task(work, name=name)

    def ended(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            on_failure(error)

    task.add_done_callback(ended)
    return task


_PARTITION: Final = TopicPartition(TOPIC, 0)
_REPLICAS: Final = 3
_SEEN_S: Final = 10.0
_POLL_MS: Final = 1_000
_PAUSE_S: Final = 5.0
_AFTER_PAUSE_S: Final = 5.0
_READ_AGAIN_S: Final = 0.5
_log = event_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The registration of one consumer instance: its spec, and the gateway that serves it."""

    spec: InstanceSpec
    owner: str  # URL of the gateway that serves the instance
    number: int
    heard_at_s: float  # time at which this process read the registration


class InstanceRegistry:
    """Knows which gateway serves each consumer instance, as far as this process has read the registry topic.

    The first call of `start` starts a task that reads the topic; `close` ends the task.
    """

    def __init__(
        self,
        client: Client,
        producer: Producer,
        *,
        url: str,
        on_failure: Callable[[BaseException], object],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_failure` is called if an internal error ends the task that reads the topic. Without this task the gateway
        cannot serve any instance.
        """
        self._client = client
        self._producer = producer
        self._url = url
        self._on_failure = on_failure
        self._clock_s = clock_s
        self._known: dict[tuple[str, str], Registration] = {}
        self._position = -1
        self._polled_at_s = clock_s()
        self._may_lag = False
        self._retry_at_s = 0.0
        self._moved = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._catching_up = asyncio.Lock()

    async def start(self) -> None:
        """Start to read the topic, and wait until all records are read that exist now. Later calls do nothing."""
        async with self._starting:
            if self._reading is not None:
                return
            await self._make_topic()
            self._polled_at_s = self._clock_s()
            self._reading = supervised(self._read(), "rest consumer registry", self._on_failure)
            await self.catch_up()

    async def _make_topic(self) -> None:
        """Create the topic if it does not exist. Its replication factor is the cluster's default or the number of
        brokers (at most _REPLICAS), whichever is higher.

        While a cluster starts, the default may be low because few brokers are live, and a topic keeps the replication
        factor with which it was created.
        """
        admin = self._client.admin
        try:
            usual = await admin.create_topic(TOPIC, partitions=1, validate_only=True)
            brokers = len(await admin.list_brokers())
            await admin.create_topic(
                TOPIC,
                partitions=1,
                replication_factor=max(usual.replication_factor, min(_REPLICAS, brokers)),
                configs={"cleanup.policy": "compact"},
            )
        except TopicExists:
            pass
        except InvalidTopic as error:
            words = f"{TOPIC} cannot be created yet: {error.message}"
            raise RestError(503, KAFKA_RETRIABLE_ERROR, words) from None

    async def catch_up(self) -> None:
        """Wait until this process has read all records that the topic has now. Raises TimeoutError after 10 s."""
        async with self._client.consumer() as consumer:
            ends = await consumer.end_offsets([(TOPIC, 0)])
        await self._wait_for(next(iter(ends.values())) - 1)

    async def catch_up_after_pause(self) -> None:
        """Catch up if this process has not read the topic for _PAUSE_S, or was disconnected from the cluster.

        Other gateways may have taken its instances over meanwhile. The wait is bounded by _AFTER_PAUSE_S, and after a
        failure there is no other attempt for as long. Until an attempt succeeds, an instance may be served that another
        gateway serves too, and records may be read twice. Brokers refuse the commits of the member that was taken over;
        commits of manually assigned partitions are not refused, and may set offsets back.
        """
        async with self._catching_up:
            self._may_lag |= self._is_pausing()
            if not self._may_lag or self._clock_s() < self._retry_at_s:
                return
            try:
                async with asyncio.timeout(_AFTER_PAUSE_S):
                    await self.catch_up()
                self._may_lag = False
                self._polled_at_s = self._clock_s()
            except (OdradekError, TimeoutError) as error:
                _log.warning(
                    "Failed to look up whether other gateways took consumer instances over",
                    reason=repr(error),
                )
                self._retry_at_s = self._clock_s() + _AFTER_PAUSE_S

    def _is_pausing(self) -> bool:
        return self._clock_s() - self._polled_at_s > _PAUSE_S

    async def close(self) -> None:
        """Stop reading the topic."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    def find(self, group: str, name: str) -> Registration | None:
        """Return an instance's registration as far as this gateway has read the topic; None if there is none."""
        return self._known.get((group, name))

    def unheard_of(self, longer_than_s: float) -> list[InstanceSpec]:
        """Return the instances whose registration this process last read more than `longer_than_s` ago."""
        since_s = self._clock_s() - longer_than_s
        return [
            registration.spec
            for registration in self._known.values()
            if registration.heard_at_s < since_s
        ]

    async def add(self, spec: InstanceSpec) -> bool:
        """Register a new instance that this gateway serves. Return False if the group already has an instance with
        this name.
        """
        if self.find(spec.group, spec.name) is not None:
            return False
        return (await self._register(spec, 1)).owner == self._url

    async def update(self, spec: InstanceSpec) -> bool:
        """Write the registration of an instance again, with this spec. Return False if another gateway serves the
        instance now, or if the instance was deleted.
        """
        present = self.find(spec.group, spec.name)
        if present is None or present.owner != self._url:
            return False
        return (await self._register(spec, present.number)).owner == self._url

    async def take_over(self, present: Registration, spec: InstanceSpec) -> bool:
        """Register an existing instance as served by this gateway. Return False if another gateway was first."""
        number = present.number + (present.owner != self._url)
        return (await self._register(spec, number)).owner == self._url

    async def forget(self, group: str, name: str) -> None:
        """Delete an instance's registration."""
        await self._write((group, name), None)

    async def _register(self, spec: InstanceSpec, number: int) -> Registration:
        """Write a registration of this gateway for the instance, and wait until it is read.

        Return the registration that is valid then; it may be another gateway's.
        """
        key = (spec.group, spec.name)
        spec_fields = {field.name: getattr(spec, field.name) for field in fields(spec)}
        body = {"spec": spec_fields, "owner": self._url, "number": number}
        await self._write(key, orjson.dumps(body))
        registration = self._known.get(key)
        if registration is None:
            raise RestError(
                503, KAFKA_RETRIABLE_ERROR, f"consumer instance {key} was deleted at the same time"
            )
        return registration

    async def _write(self, key: tuple[str, str], value: bytes | None) -> None:
        written = await self._producer.send_and_wait(
            TOPIC, value, key=orjson.dumps(key), partition=0
        )
        await self._wait_for(written.offset)

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
                        for record in await consumer.getmany(timeout_ms=_POLL_MS):
                            self._replay(record.key, record.value)
                        is_connected = self._client.state is LinkState.CONNECTED
                        self._may_lag |= self._is_pausing() or not is_connected
                        self._polled_at_s = self._clock_s()
                        # The consumer's position counts, not the offset of the last record that was read, because
                        # compaction may have removed the records after the last one.
                        self._position = consumer.positions().get(_PARTITION, 0) - 1
                        async with self._moved:
                            self._moved.notify_all()
            except OdradekError as error:
                _log.warning(
                    "Failed to read the internal topic that lists the consumer instances of all gateways;"
                    " reading it again",
                    reason=str(error),
                )
                self._position = -1  # the topic is read again from its beginning
                await asyncio.sleep(_READ_AGAIN_S)

    def _replay(self, key: bytes | None, value: bytes | None) -> None:
        try:
            group, name = orjson.loads(key or b"[]")
            if value is None:
                self._known.pop((group, name), None)
                return
            body: dict[str, Any] = orjson.loads(value)
            registration = Registration(
                spec=InstanceSpec.from_json(body["spec"]),
                owner=str(body["owner"]),
                number=int(body["number"]),
                heard_at_s=self._clock_s(),
            )
        except (ValueError, TypeError, KeyError) as error:
            _log.warning(
                "Ignored a damaged record in the topic of consumer instances", reason=repr(error)
            )
            return
        present = self._known.get((group, name))
        is_newer = present is None or registration.number > present.number
        if is_newer or (present is not None and registration.owner == present.owner):
            self._known[(group, name)] = registration

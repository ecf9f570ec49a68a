"""Topics that come into being because somebody asked for them: auto creation, and internal ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import grpc.aio

from odradek_broker.cluster.controller_client import ControllerClient, NoController
from odradek_protocol.identity import TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import BROKER_CONFIGS
from odradek_protocol.metadata.image import ALL_BROKERS, MetadataImage
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_runtime.logs import event_log

_TIMEOUT_S: Final = 5.0
_IMAGE_WAIT_S: Final = 2.0
_THE_CLUSTERS: Final = -1  # a count that the controller fills in
_log = event_log(__name__)


class TopicCreation:
    """Creates topics at the controller and waits until this broker's image has them."""

    def __init__(
        self,
        *,
        controllers: ControllerClient,
        image: Callable[[], MetadataImage],
        watch_image: Callable[[Callable[[MetadataImage], None]], Callable[[], None]],
        is_enabled: bool,
        partition_count: int,
        replication_factor: int,
    ) -> None:
        """The last three are this broker's own: each holds where the cluster has nothing set for it."""
        self._controllers = controllers
        self._is_enabled = is_enabled
        self._image = image
        self._watch_image = watch_image
        self._partition_count = partition_count
        self._replication_factor = replication_factor
        self._under_way: dict[str, asyncio.Task[ErrorCode]] = {}

    @property
    def is_enabled(self) -> bool:
        """Whether a topic comes into being because somebody asks for it."""
        name = "auto.create.topics.enable"
        told = self._image().config_of(*ALL_BROKERS).get(name)
        return self._is_enabled if told is None else bool(BROKER_CONFIGS[name].parse(told))

    async def ensure(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Create what is missing, with the counts of the cluster or this broker; the error of each that failed."""
        missing = [name for name in names if TopicName(name) not in self._image().topic_ids]
        cluster = self._image().config_of(*ALL_BROKERS)
        partitions = _THE_CLUSTERS if "num.partitions" in cluster else self._partition_count
        replicas = (
            _THE_CLUSTERS if "default.replication.factor" in cluster else self._replication_factor
        )
        codes = await asyncio.gather(
            *(self._once(name, partitions, replicas, {}) for name in missing)
        )
        return {n: c for n, c in zip(missing, codes, strict=True) if c is not ErrorCode.NONE}

    async def ensure_internal(
        self,
        name: str,
        *,
        partition_count: int,
        replication_factor: int,
        configs: Mapping[str, str],
    ) -> ErrorCode:
        """Create an internal topic, with fewer replicas while fewer brokers live."""
        if TopicName(name) in self._image().topic_ids:
            return ErrorCode.NONE
        live = sum(broker.is_live for broker in self._image().brokers.values())
        return await self._once(
            name, partition_count, max(1, min(replication_factor, live)), dict(configs)
        )

    async def _once(
        self, name: str, partitions: int, replicas: int, configs: dict[str, str]
    ) -> ErrorCode:
        """Many ask for the same topic at once: one request goes out."""
        task = self._under_way.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                self._create(name, partitions, replicas, configs), name=f"create topic {name}"
            )
            self._under_way[name] = task
            task.add_done_callback(lambda _: self._under_way.pop(name, None))
        return await asyncio.shield(task)

    async def _create(
        self, name: str, partitions: int, replicas: int, configs: dict[str, str]
    ) -> ErrorCode:
        request = admin_pb.CreateTopicsRequest(
            topics=[
                admin_pb.NewTopic(
                    name=name,
                    partition_count=partitions,
                    replication_factor=replicas,
                    configs=configs,
                )
            ],
            timeout_ms=int(_TIMEOUT_S * 1000),
        )
        try:
            answer: admin_pb.CreateTopicsResponse = await self._controllers.call(
                "CreateTopics", request, timeout_s=_TIMEOUT_S, is_admin=True
            )
        except (NoController, grpc.aio.AioRpcError) as error:
            _log.warning("Could not create a topic", topic=name, reason=str(error))
            return ErrorCode.LEADER_NOT_AVAILABLE
        code = ErrorCode.received(answer.topics[0].error_code)
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            _log.warning(
                "Could not create a topic",
                topic=name,
                code=code.name,
                reason=answer.topics[0].error_message,
            )
            return code
        return await self._in_image(name)

    async def _in_image(self, name: str) -> ErrorCode:
        arrived = asyncio.Event()

        def look(image: MetadataImage) -> None:
            if TopicName(name) in image.topic_ids:
                arrived.set()

        unwatch = self._watch_image(look)
        try:
            look(self._image())
            async with asyncio.timeout(_IMAGE_WAIT_S):
                await arrived.wait()
        except TimeoutError:
            return ErrorCode.LEADER_NOT_AVAILABLE
        finally:
            unwatch()
        return ErrorCode.NONE

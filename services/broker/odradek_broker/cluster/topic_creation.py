"""Automatic creation of topics that a client uses before they exist, and of internal topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import grpc.aio

from odradek_broker.cluster import metadata_changes
from odradek_broker.cluster.controller_client import ControllerClient, NoController
from odradek_broker.cluster.metadata_changes import Images
from odradek_protocol.identity import TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.configs import cluster_config
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_runtime.logs import event_log

_TIMEOUT_S: Final = 5.0
_CLUSTER_DEFAULT: Final = -1  # the controller replaces this value by the cluster's default
_log = event_log(__name__)


class TopicCreation:
    """Creates topics at the controller, and waits until this broker's image has them."""

    def __init__(self, *, controllers: ControllerClient, images: Images) -> None:
        self._controllers = controllers
        self._images = images
        self._under_way: dict[str, asyncio.Task[ErrorCode]] = {}

    @property
    def is_enabled(self) -> bool:
        """Whether a missing topic is created when a client uses it (`auto.create.topics.enable`)."""
        return bool(cluster_config(self._images.image, "auto.create.topics.enable"))

    async def ensure(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Create the topics that do not exist. Return the error of each topic that could not be created.

        The new topics have the cluster's default numbers of partitions and replicas.
        """
        missing = [name for name in names if TopicName(name) not in self._images.image.topic_ids]
        codes = await asyncio.gather(
            *(self._once(name, _CLUSTER_DEFAULT, _CLUSTER_DEFAULT, {}) for name in missing)
        )
        return {
            name: code
            for name, code in zip(missing, codes, strict=True)
            if code is not ErrorCode.NONE
        }

    async def ensure_internal(
        self,
        name: str,
        *,
        partition_count: int,
        replication_factor: int,
        configs: Mapping[str, str],
        min_isr: int = 1,
    ) -> ErrorCode:
        """Create an internal topic if it does not exist, with fewer replicas if fewer brokers are live.

        If `min_isr` is above 1, it becomes the topic's min.insync.replicas, but at most the number of replicas.
        """
        if TopicName(name) in self._images.image.topic_ids:
            return ErrorCode.NONE
        live = sum(broker.is_live for broker in self._images.image.brokers.values())
        replicas = max(1, min(replication_factor, live))
        configs = dict(configs)
        if min_isr > 1:
            configs["min.insync.replicas"] = str(min(min_isr, replicas))
        return await self._once(name, partition_count, replicas, configs)

    async def _once(
        self, name: str, partitions: int, replicas: int, configs: dict[str, str]
    ) -> ErrorCode:
        """Create a topic with one request, even if several callers need the topic at the same time."""
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
            response: admin_pb.CreateTopicsResponse = await metadata_changes.change(
                self._controllers, self._images, "CreateTopics", request, timeout_s=_TIMEOUT_S
            )
        except (NoController, grpc.aio.AioRpcError) as error:
            _log.warning("Failed to create a topic automatically", topic=name, reason=str(error))
            return ErrorCode.LEADER_NOT_AVAILABLE
        if not response.topics:
            _log.error(
                "Controller's response does not name the topic that was to be created", topic=name
            )
            return ErrorCode.LEADER_NOT_AVAILABLE
        code = ErrorCode.received(response.topics[0].error_code)
        # TOPIC_ALREADY_EXISTS: another broker may just have created the topic. In this case, too, `change` has waited
        # for the topic to be in the image.
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            _log.warning(
                "Failed to create a topic automatically",
                topic=name,
                code=code.name,
                reason=response.topics[0].error_message,
            )
            return code
        is_known = TopicName(name) in self._images.image.topic_ids
        return ErrorCode.NONE if is_known else ErrorCode.LEADER_NOT_AVAILABLE

"""The registration: a broker sends the controller its id, its addresses, and the partitions whose logs lost records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import grpc.aio

from odradek_broker.cluster.controller_client import ControllerClient, NoController
from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_protocol.identity import BrokerEpoch, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.lifecycle import ProcessRefused
from odradek_runtime.listeners import ListenerAddress
from odradek_runtime.logs import event_log

_ATTEMPT_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.2
_RESTART_CLASSES: Final = {
    RestartClass.CLEAN: pb.RESTART_CLASS_CLEAN,
    RestartClass.PROCESS: pb.RESTART_CLASS_PROCESS,
    RestartClass.POWER: pb.RESTART_CLASS_POWER,
}
_log = event_log(__name__)


def wire_listeners(
    listeners: Sequence[ListenerAddress], *, security_protocol: str
) -> list[common_pb2.Listener]:
    """Return the advertised listeners as protobuf messages for the registration."""
    return [
        common_pb2.Listener(
            name=listener.name,
            host=listener.host,
            port=listener.port,
            security_protocol=security_protocol,
        )
        for listener in listeners
    ]


def wire_restart_class(restart_class: RestartClass) -> pb.RestartClass:
    """Return the protobuf value of a restart class, which says what survived the end of the previous process."""
    return _RESTART_CLASSES[restart_class]


def wire_partitions(partitions: Sequence[TopicIdPartition]) -> list[common_pb2.TopicIdPartition]:
    """Return partitions as protobuf messages."""
    return [
        common_pb2.TopicIdPartition(topic_id=partition.topic_id, partition=partition.partition)
        for partition in partitions
    ]


async def register(controllers: ControllerClient, request: pb.RegisterRequest) -> BrokerEpoch:
    """Register the broker at the controller, and return the broker epoch. Waits for an active controller without a time
    limit.

    Raises:
        ProcessRefused: the controller refused the registration.
    """
    while True:
        try:
            response: pb.RegisterResponse = await controllers.call(
                "Register", request, timeout_s=_ATTEMPT_TIMEOUT_S
            )
        except NoController as error:
            _log.warning("Waiting for an active controller", reason=str(error))
            continue
        except grpc.aio.AioRpcError as error:
            raise ProcessRefused(
                f"the registration at the controller failed: {error.code().name} {error.details()}"
            ) from None
        if response.error_code == ErrorCode.NONE:
            return BrokerEpoch(response.broker_epoch)
        code = ErrorCode.received(response.error_code)
        if code.retriable and code is not ErrorCode.STALE_BROKER_EPOCH:
            _log.warning(
                "Controller has not registered this broker yet; trying again",
                code=code.name,
                reason=response.error_message,
            )
            await asyncio.sleep(_PAUSE_S)
            continue
        raise ProcessRefused(
            f"the controller refused to register broker {request.broker_id}: {code.name}:"
            f" {response.error_message}"
        )

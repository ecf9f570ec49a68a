"""The first thing a broker says to the controller: who it is, and what its last life left."""

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
    """The advertised listeners as the registration carries them."""
    return [
        common_pb2.Listener(
            name=one.name, host=one.host, port=one.port, security_protocol=security_protocol
        )
        for one in listeners
    ]


def wire_restart_class(restart_class: RestartClass) -> pb.RestartClass:
    """What kind of stop came before, as messages name it."""
    return _RESTART_CLASSES[restart_class]


def wire_partitions(partitions: Sequence[TopicIdPartition]) -> list[common_pb2.TopicIdPartition]:
    """Partitions as messages name them."""
    return [
        common_pb2.TopicIdPartition(topic_id=one.topic_id, partition=one.partition)
        for one in partitions
    ]


async def register(controllers: ControllerClient, request: pb.RegisterRequest) -> BrokerEpoch:
    """Register, waiting for an active controller as long as it takes; the broker epoch.

    Raises:
        ProcessRefused: the controller does not want this broker.
    """
    while True:
        try:
            answer: pb.RegisterResponse = await controllers.call(
                "Register", request, timeout_s=_ATTEMPT_TIMEOUT_S
            )
        except NoController as error:
            _log.warning("Waiting for an active controller", reason=str(error))
            continue
        except grpc.aio.AioRpcError as error:
            raise ProcessRefused(
                f"the controller does not take the registration: {error.code().name}"
                f" {error.details()}"
            ) from None
        if answer.error_code == ErrorCode.NONE:
            return BrokerEpoch(answer.broker_epoch)
        code = ErrorCode.received(answer.error_code)
        if code.retriable and code is not ErrorCode.STALE_BROKER_EPOCH:
            _log.warning("Registration is delayed", code=code.name, reason=answer.error_message)
            await asyncio.sleep(_PAUSE_S)
            continue
        raise ProcessRefused(
            f"broker {request.broker_id} is refused by the controller: {code.name}:"
            f" {answer.error_message}"
        )

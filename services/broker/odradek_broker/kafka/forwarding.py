"""Forwarding of Kafka requests to the active controller, which decides about topics, configs, ACLs and quotas."""

from __future__ import annotations

from typing import Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from odradek_broker.cluster import metadata_changes
from odradek_broker.cluster.controller_client import NoController
from odradek_broker.kafka.request import AnyRequest
from odradek_protocol.kafka.error_codes import ErrorCode

R = TypeVar("R", bound=Message)
_TIMEOUT_S_MIN: Final = 1.0
_TIMEOUT_S_DEFAULT: Final = 10.0
_TIMEOUT_S_MAX: Final = 60.0


class ControllerUnavailable(Exception):
    """A request to the active controller failed. `code` is the error code for the client.

    REQUEST_TIMED_OUT: no controller responded in time, and it is not known whether the request was carried out, so
    clients retry. INVALID_REQUEST: the controller refused the request as a whole, so a retry would fail again.
    """

    def __init__(self, method: str, error: Exception) -> None:
        text: object = error
        self.code = ErrorCode.REQUEST_TIMED_OUT
        if isinstance(error, grpc.aio.AioRpcError):
            text = error.details()
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                self.code = ErrorCode.INVALID_REQUEST
        super().__init__(f"{method}: {text}")


async def ask_controller(
    request: AnyRequest,
    method: str,
    message: Message,
    response_type: type[R],
    *,
    timeout_ms: int = 0,
    is_admin: bool = True,
) -> R:
    """Send a read-only request to the active controller, and return the response.

    Raises:
        ControllerUnavailable: the request failed.
    """
    try:
        response = await request.services.controllers.call(
            method, message, timeout_s=_timeout_s(timeout_ms), is_admin=is_admin
        )
    except (NoController, grpc.aio.AioRpcError) as error:
        raise ControllerUnavailable(method, error) from None
    assert isinstance(response, response_type), (method, type(response))
    return response


async def change(
    request: AnyRequest,
    method: str,
    message: Message,
    response_type: type[R],
    *,
    timeout_ms: int = 0,
) -> R:
    """Send a change to the active controller, and wait until this broker's metadata image includes the change.

    Raises:
        ControllerUnavailable: the request failed.
    """
    services = request.services
    try:
        response = await metadata_changes.change(
            services.controllers,
            services.partitions,
            method,
            message,
            timeout_s=_timeout_s(timeout_ms),
        )
    except (NoController, grpc.aio.AioRpcError) as error:
        raise ControllerUnavailable(method, error) from None
    assert isinstance(response, response_type), (method, type(response))
    return response


def _timeout_s(timeout_ms: int) -> float:
    timeout_s = timeout_ms / 1000 if timeout_ms > 0 else _TIMEOUT_S_DEFAULT
    return min(max(timeout_s, _TIMEOUT_S_MIN), _TIMEOUT_S_MAX)

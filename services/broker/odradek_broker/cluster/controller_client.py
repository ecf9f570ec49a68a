"""Calls to the active controller.

The controllers' addresses are settings. Responses, including those to heartbeats, say which controller is active. A
call goes to the controller that is assumed to be active. If that controller cannot be reached or responds
NOT_CONTROLLER, the call goes to the next one, until the caller's deadline.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import Message

from odradek_protocol.identity import ControllerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc, controller_service_pb2_grpc
from odradek_runtime.clock import SYSTEM_CLOCK, Clock
from odradek_runtime.cluster_identity import ClusterIdentity
from odradek_runtime.grpc_endpoints import InternalChannels
from odradek_runtime.listeners import host_port
from odradek_runtime.tls import TlsFiles

_ATTEMPT_TIMEOUT_S: Final = 2.0
_PAUSE_S: Final = 0.05
_FAILED_TO_CONNECT: Final = re.compile(
    r"failed to connect to all addresses; last error: [A-Z_]+: \S+: (?:Failed to connect to remote host: )?(.+)"
)
_NOT_CONTROLLER: Final = f"{ErrorCode.NOT_CONTROLLER.name}: "
_PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
    }
)


class NoController(Exception):
    """No active controller responded in time. The message has the error of each controller."""


class Channels(Protocol):
    """gRPC channels to other processes, one for each peer."""

    def channel(self, peer: str, host: str, port: int) -> grpc.aio.Channel:
        """Return the channel to `peer`, for example `controller-1`. The first call of this method for a peer opens the
        channel.
        """

    async def close(self) -> None:
        """Close all channels and cancel calls in progress."""


class ControllerClient:
    """Unary calls to the active controller, and the channels to all controllers."""

    def __init__(
        self,
        controllers: Sequence[tuple[int, str, int]],
        tls: TlsFiles | None,
        *,
        identity: ClusterIdentity | None = None,
        clock: Clock = SYSTEM_CLOCK,
        channels: Channels | None = None,
    ) -> None:
        """`identity` is sent with each call, so that a controller of another cluster refuses the call.

        Without `channels`, gRPC channels with `tls` are opened.
        """
        self.identity = identity or ClusterIdentity()
        self._endpoints = {ControllerId(node): (host, port) for node, host, port in controllers}
        self._order = list(self._endpoints)
        self._clock = clock
        self._channels: Channels = channels or InternalChannels(tls)
        self._active: ControllerId | None = None

    def believe(self, controller: int | None) -> None:
        """Record which controller is active, according to a response."""
        if controller is not None and controller in self._endpoints:
            self._active = ControllerId(controller)

    @property
    def active(self) -> ControllerId | None:
        """The controller that is assumed to be active; None if unknown."""
        return self._active

    def candidates(self) -> list[ControllerId]:
        """Return all controllers, first the one that is assumed to be active."""
        first = [self._active] if self._active is not None else []
        return first + [node for node in self._order if node != self._active]

    def channel(self, controller: ControllerId) -> grpc.aio.Channel:
        """Return the channel to a controller."""
        host, port = self._endpoints[controller]
        return self._channels.channel(f"controller-{controller}", host, port)

    async def call(
        self, method: str, request: Message, *, timeout_s: float, is_admin: bool = False
    ) -> Any:
        """Call `method` of ControllerService (or AdminService) at the active controller.

        A call is repeated only if it did not reach an active controller, or if the response was lost. So the controller
        may execute a request twice; all requests are defined so that this does no harm.

        Raises:
            NoController: the deadline passed.
            grpc.aio.AioRpcError: the call failed with a status that is not in `_PASSING`, such as INVALID_ARGUMENT.
        """
        deadline_ms = self._clock.monotonic_ms() + int(timeout_s * 1000)
        # A controller that hangs must not use up the time in which another controller could respond.
        attempt_s = min(_ATTEMPT_TIMEOUT_S, timeout_s / len(self._endpoints))
        failures: dict[ControllerId, str] = {}
        while True:
            for controller in self.candidates():
                remaining_s = (deadline_ms - self._clock.monotonic_ms()) / 1000
                if remaining_s <= 0:
                    raise NoController(self._complaint(method, failures))
                try:
                    response = await self._stub(controller, is_admin, method)(
                        request,
                        timeout=min(remaining_s, attempt_s),
                        metadata=self.identity.headers(),
                    )
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _PASSING:
                        raise
                    failures[controller] = _reason(error)
                    continue
                if is_not_controller(response):
                    failures[controller] = "not the active controller"
                    self._hint(response)
                    continue
                self._active = controller
                return response
            self._active = None
            await asyncio.sleep(_PAUSE_S)

    async def close(self) -> None:
        """Close all channels."""
        await self._channels.close()

    def _stub(
        self, controller: ControllerId, is_admin: bool, method: str
    ) -> Callable[..., grpc.aio.UnaryUnaryCall[Any, Any]]:
        channel = self.channel(controller)
        stub = (
            admin_service_pb2_grpc.AdminServiceStub(channel)
            if is_admin
            else controller_service_pb2_grpc.ControllerServiceStub(channel)
        )
        bound_method: Callable[..., grpc.aio.UnaryUnaryCall[Any, Any]] = getattr(stub, method)
        return bound_method

    def _hint(self, response: Message) -> None:
        active = getattr(response, "active_controller_id", -1)
        if active >= 0:
            self.believe(active)

    def _complaint(self, method: str, failures: dict[ControllerId, str]) -> str:
        each = "; ".join(
            f"controller {node} at {host_port(*endpoint)}: {failures.get(node, 'not called')}"
            for node, endpoint in self._endpoints.items()
        )
        return f"no active controller responded to {method} in time ({each})"


def _reason(error: grpc.aio.AioRpcError) -> str:
    """Return the reason for which a controller did not execute a call, without gRPC's words around the reason."""
    details = error.details() or ""
    if failed := _FAILED_TO_CONNECT.fullmatch(details):
        return failed[1]
    if details.startswith(_NOT_CONTROLLER):
        return details.removeprefix(_NOT_CONTROLLER)
    return f"{error.code().name} {details}".strip()


def is_not_controller(response: Message) -> bool:
    """Return whether the response says that its sender is not the active controller.

    AdminService reports this with the status FAILED_PRECONDITION instead.
    """
    return getattr(response, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER

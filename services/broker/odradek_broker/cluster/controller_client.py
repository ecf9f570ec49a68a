"""Calls to the active controller, whichever that is now.

The controllers' addresses are settings; which of them is active is learnt from heartbeats and from
answers. A call goes to the one believed active and moves on to the next when that one cannot be
reached or says NOT_CONTROLLER, until the caller's deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

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

Answer = TypeVar("Answer", bound=Message)
_ATTEMPT_TIMEOUT_S: Final = 2.0
_PAUSE_S: Final = 0.05
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
    """No active controller answered in time; the message says what each one said."""


class Channels(Protocol):
    """Channels to other processes, one a peer."""

    def channel(self, peer: str, host: str, port: int) -> grpc.aio.Channel:
        """Return the channel to `peer` (`controller-1`), opened at its first use."""

    async def close(self) -> None:
        """Close all channels; calls under way end."""


class ControllerClient:
    """Unary calls to the active controller, and the channels to each of them."""

    def __init__(
        self,
        controllers: Sequence[tuple[int, str, int]],
        tls: TlsFiles | None,
        *,
        identity: ClusterIdentity | None = None,
        clock: Clock = SYSTEM_CLOCK,
        channels: Channels | None = None,
    ) -> None:
        """`identity` goes with each call: a controller of another cluster refuses it.

        `channels` are gRPC's unless others are given.
        """
        self.identity = identity or ClusterIdentity()
        self._endpoints = {ControllerId(node): (host, port) for node, host, port in controllers}
        self._order = list(self._endpoints)
        self._clock = clock
        self._channels: Channels = channels or InternalChannels(tls)
        self._active: ControllerId | None = None

    def believe(self, controller: int | None) -> None:
        """A heartbeat or an answer said which controller is active."""
        if controller is not None and controller in self._endpoints:
            self._active = ControllerId(controller)

    @property
    def active(self) -> ControllerId | None:
        """The controller believed active."""
        return self._active

    def candidates(self) -> list[ControllerId]:
        """All controllers, the one believed active first."""
        first = [self._active] if self._active is not None else []
        return first + [node for node in self._order if node != self._active]

    def channel(self, controller: ControllerId) -> grpc.aio.Channel:
        """The channel to one controller."""
        host, port = self._endpoints[controller]
        return self._channels.channel(f"controller-{controller}", host, port)

    async def call(
        self, method: str, request: Message, *, timeout_s: float, is_admin: bool = False
    ) -> Any:
        """Call `method` of ControllerService (or AdminService) at the active controller.

        Retries only what did not reach an active controller, or whose answer was lost: callers
        must bear a request that was done twice (all controller requests are made for that).
        Raises NoController at the deadline.
        """
        deadline_ms = self._clock.monotonic_ms() + int(timeout_s * 1000)
        # A controller that hangs must not use up the time in which another would answer.
        attempt_s = min(_ATTEMPT_TIMEOUT_S, timeout_s / len(self._endpoints))
        said: dict[ControllerId, str] = {}
        while True:
            for controller in self.candidates():
                left_s = (deadline_ms - self._clock.monotonic_ms()) / 1000
                if left_s <= 0:
                    raise NoController(self._complaint(method, said))
                try:
                    answer = await self._stub(controller, is_admin, method)(
                        request,
                        timeout=min(left_s, attempt_s),
                        metadata=self.identity.headers(),
                    )
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _PASSING:
                        raise
                    said[controller] = f"{error.code().name} {error.details() or ''}".strip()
                    continue
                if is_not_controller(answer):
                    said[controller] = "not the active controller"
                    self._hint(answer)
                    continue
                self._active = controller
                return answer
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
        found: Callable[..., grpc.aio.UnaryUnaryCall[Any, Any]] = getattr(stub, method)
        return found

    def _hint(self, answer: Message) -> None:
        told = getattr(answer, "active_controller_id", -1)
        if told >= 0:
            self.believe(told)

    def _complaint(self, method: str, said: dict[ControllerId, str]) -> str:
        each = "; ".join(
            f"controller {node} at {host_port(*endpoint)}: {said.get(node, 'not asked')}"
            for node, endpoint in self._endpoints.items()
        )
        return f"no active controller answered {method} in time ({each})"


def is_not_controller(response: Message) -> bool:
    """Return whether a member of the quorum says that it is not the active controller.

    AdminService says so by the status FAILED_PRECONDITION instead.
    """
    return getattr(response, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER

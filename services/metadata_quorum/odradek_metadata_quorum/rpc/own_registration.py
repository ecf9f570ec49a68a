"""The task that registers this controller with the active controller, again every two seconds.

The registration has the feature levels that this program supports. An active controller of an older release does not
know the call RegisterController. Because the registration is repeated, this controller is registered as soon as a newer
controller is active.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Final

import grpc
import grpc.aio

from odradek_metadata_quorum.controller import features
from odradek_metadata_quorum.controller.requests import BatchTooLarge
from odradek_metadata_quorum.raft.quorum import Quorum
from odradek_metadata_quorum.rpc import wire
from odradek_metadata_quorum.rpc.controller_host import (
    ControllerHost,
    NotActive,
    Overloaded,
    Unconfirmed,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import OWN_MAXIMA, OWN_MINIMA
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_protocol.rpc.v1 import controller_service_pb2_grpc as pb_grpc
from odradek_runtime.cluster_identity import ClusterIdentity
from odradek_runtime.grpc_endpoints import InternalChannels
from odradek_runtime.logs import event_log
from odradek_runtime.tls import TlsFiles

INTERVAL_S: Final = 2.0
_NOBODY_ACTIVE_S: Final = 0.1
_TIMEOUT_S: Final = 1.0
_log = event_log(__name__)


class OwnRegistration:
    """Registers this controller with the active controller periodically. `run` is its task."""

    def __init__(
        self,
        *,
        node_id: int,
        host_id: str,
        peers: Mapping[int, tuple[str, int]],
        listeners: Callable[[], list[common_pb2.Listener]],
        host: ControllerHost,
        quorum: Quorum,
        identity: Callable[[], ClusterIdentity],
        tls: TlsFiles | None,
    ) -> None:
        """`peers` has the gRPC addresses of all controllers by id. `identity` and `listeners` are called for each
        registration.
        """
        self._node_id = node_id
        self._host_id = host_id
        self._peers = peers
        self._listeners = listeners
        self._host = host
        self._quorum = quorum
        self._identity = identity
        self._channels = InternalChannels(tls)
        self._incarnation_id = secrets.token_bytes(16)
        self._refusal = ""

    async def run(self) -> None:
        """Register periodically until this task is cancelled."""
        try:
            while True:
                is_registered = await self._register()
                await asyncio.sleep(INTERVAL_S if is_registered else _NOBODY_ACTIVE_S)
        finally:
            await self._channels.close()

    async def _register(self) -> bool:
        """Try to register once. Return False if no active controller responded, so that the next attempt must follow
        soon. A refusal is logged and counts as a response.
        """
        leader_id = self._quorum.leader_id
        if leader_id is None:
            return False
        request = pb.RegisterControllerRequest(
            controller_id=self._node_id,
            incarnation_id=self._incarnation_id,
            listeners=self._listeners(),
            features=dict(OWN_MAXIMA),
            feature_minima=dict(OWN_MINIMA),
            host_id=self._host_id,
        )
        if leader_id == self._node_id:
            return await self._register_here(request)
        if leader_id not in self._peers:
            self._refused(
                f"controller.rpc.endpoints of this controller does not name controller {leader_id}"
            )
            return True
        channel = self._channels.channel(f"controller-{leader_id}", *self._peers[leader_id])
        try:
            response = await pb_grpc.ControllerServiceStub(channel).RegisterController(
                request, timeout=_TIMEOUT_S, metadata=self._identity().headers()
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                # The active controller runs an older release.
                return True
            if error.code() in (
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.PERMISSION_DENIED,
            ):
                self._refused(error.details() or error.code().name)
            return error.code() is not grpc.StatusCode.UNAVAILABLE
        return self._taken(response.error_code, response.error_message)

    async def _register_here(self, request: pb.RegisterControllerRequest) -> bool:
        registration = wire.register_controller_request(request)
        try:
            decision = await self._host.decide(features.register_controller, registration)
        except (NotActive, Overloaded, Unconfirmed, BatchTooLarge):
            return False
        return self._taken(decision.response.error, decision.response.message)

    def _taken(self, error_code: int, message: str) -> bool:
        if error_code == ErrorCode.NOT_CONTROLLER:
            return False
        if error_code != ErrorCode.NONE:
            self._refused(message)
        else:
            self._refusal = ""
        return True

    def _refused(self, reason: str) -> None:
        """Log why this controller could not register, unless the reason is the same as last time."""
        if reason != self._refusal:
            self._refusal = reason
            _log.error(
                "Failed to register this controller with the active controller", reason=reason
            )

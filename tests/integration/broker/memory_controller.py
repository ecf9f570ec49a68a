"""A single controller: the production controller and its services, over a log in memory that
commits at once.

With it, broker processes can be tested without a quorum. `stop` loses everything, except what
`restore` takes over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from odradek_metadata_quorum.controller import Controller, ControllerSettings
from odradek_metadata_quorum.raft.shell import CommittedEntry
from odradek_metadata_quorum.rpc.admin_servicer import AdminServicer
from odradek_metadata_quorum.rpc.controller_host import ControllerHost
from odradek_metadata_quorum.rpc.controller_servicer import ControllerServicer
from odradek_metadata_quorum.rpc.metadata_state_machine import MetadataStateMachine
from odradek_metadata_quorum.rpc.peers import Peers
from odradek_protocol.metadata.features import OWN_MAXIMA
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc as admin_grpc
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_protocol.rpc.v1 import controller_service_pb2_grpc as pb_grpc
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.grpc_endpoints import SERVER_OPTIONS


class MemoryLog:
    """The metadata log of a single voter: a proposal is committed and replayed at once."""

    def __init__(self, machine: MetadataStateMachine, leader_id: int) -> None:
        self.leader_id = leader_id
        self.log: list[CommittedEntry] = []
        self._machine = machine
        self._grown = asyncio.Condition()

    @property
    def applied(self) -> int:
        return self.log[-1].offset if self.log else 0

    def replay(self, entries: Sequence[CommittedEntry]) -> None:
        for entry in entries:
            self.log.append(entry)
            self._machine.apply(entry.offset, entry.epoch, entry.payload)

    async def propose(self, payload: bytes, *, epoch: int, timeout_s: float) -> int:
        self.replay([CommittedEntry(self.applied + 1, epoch, payload)])
        async with self._grown:
            self._grown.notify_all()
        return self.applied

    async def confirm_leadership(self, *, epoch: int, timeout_s: float) -> None:
        """Confirm at once, because no other controller can lead."""

    async def wait_applied(self, offset: int, timeout_s: float) -> int:
        async with self._grown:
            await self._grown.wait_for(lambda: self.applied >= offset)
        return self.applied

    def entries(self, from_offset: int, bytes_max: int) -> Sequence[CommittedEntry]:
        return [entry for entry in self.log if entry.offset >= from_offset]

    async def latest_snapshot(self) -> None:
        """Return no snapshot, because the log is never trimmed."""


class MemoryController(ControllerServicer):
    """A controller that is active from `start` to `stop`; `port` is where it listens."""

    def __init__(
        self, *, cluster_id: str, controller_id: int = 1, seed: int = 7, **settings: Any
    ) -> None:
        """`seed` determines all random values, such as the ids of topics."""
        self.core = Controller(
            ControllerSettings(cluster_id=cluster_id, **settings), random.Random(seed)
        )
        self.host = ControllerHost(self.core, monotonic_ms, self._fail)
        self.log = MemoryLog(MetadataStateMachine(self.core, self.host.on_applied), controller_id)
        self.host.connect(self.log)
        self.port = 0
        peers = Peers(has_tls=False, why_stranger=lambda _: "", must_wait=lambda _: False)
        super().__init__(self.host, self.log, peers, self._describe_quorum)
        self._admin = AdminServicer(
            self.host, peers, cluster_id, lambda: (controller_id, [self.endpoint])
        )
        self._server: grpc.aio.Server | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> str:
        """Return the value of the setting controller.rpc.endpoints."""
        return f"{self.log.leader_id}@127.0.0.1:{self.port}"

    async def start(self, credentials: grpc.ServerCredentials | None = None) -> None:
        """Listen, and become the active controller."""
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        pb_grpc.add_ControllerServiceServicer_to_server(self, self._server)
        admin_grpc.add_AdminServiceServicer_to_server(self._admin, self._server)
        if credentials is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        await self._server.start()
        self._running = asyncio.create_task(self.host.run())
        await asyncio.sleep(0)  # `run` owns the tasks of the proposals
        self.host.on_active(self.log.log[-1].epoch + 1 if self.log.log else 1)

    def restore(self, other: MemoryController) -> None:
        """Start with the metadata of another controller; call it before `start`."""
        self.log.replay(other.log.log)

    async def stop(self) -> None:
        """End all calls and the controller's task."""
        assert self._server is not None and self._running is not None  # noqa: PT018
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        # Given up while the loop lives: gRPC's server wants it even when it is collected.
        server, self._server = self._server, None
        await server.stop(0)
        del server

    def _describe_quorum(self) -> pb.DescribeQuorumResponse:
        return pb.DescribeQuorumResponse(
            leader_id=self.log.leader_id,
            commit_offset=self.log.applied + 1,
            answered_by=self.log.leader_id,
        )

    @staticmethod
    def _fail(error: Exception) -> None:
        raise AssertionError("the controller failed") from error


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for a condition on other objects."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # bounded by the timeout
            await asyncio.sleep(0.01)


async def registered(controller: MemoryController) -> int:
    """Register broker 4, and return its broker epoch."""
    answer = await controller.Register(
        pb.RegisterRequest(
            cluster_id="c",
            broker_id=4,
            incarnation_id=bytes(16),
            directory_ids=[bytes(16)],
            restart_class=pb.RESTART_CLASS_POWER,
            features=dict(OWN_MAXIMA),
        ),
        None,
    )
    return int(answer.broker_epoch)

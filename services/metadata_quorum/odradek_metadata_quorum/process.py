"""The controller process: creates its parts, and starts and stops them in order."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Final

import grpc.aio

from odradek_metadata_quorum.controller import Controller
from odradek_metadata_quorum.errors import CorruptStorage, StorageMismatch
from odradek_metadata_quorum.metrics import PREFIX, QuorumMetrics
from odradek_metadata_quorum.raft.quorum import Quorum
from odradek_metadata_quorum.raft.shell import QuorumRole
from odradek_metadata_quorum.rpc.admin_servicer import AdminServicer
from odradek_metadata_quorum.rpc.controller_host import ControllerHost
from odradek_metadata_quorum.rpc.controller_servicer import ControllerServicer
from odradek_metadata_quorum.rpc.metadata_state_machine import MetadataStateMachine
from odradek_metadata_quorum.rpc.own_registration import OwnRegistration
from odradek_metadata_quorum.rpc.peers import Headers, Peers
from odradek_metadata_quorum.settings import CONTROLLER, RAFT, QuorumProcessSettings
from odradek_metadata_quorum.storage.data_directory import (
    IDENTITY_NAME,
    check_storage,
    format_storage,
)
from odradek_protocol.identity import ControllerId
from odradek_protocol.metadata.records import NewerProgramNeeded, grpc_addresses
from odradek_protocol.rpc.v1 import (
    admin_service_pb2_grpc,
    common_pb2,
    controller_service_pb2_grpc,
)
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.admin_http import AdminHttp
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.cluster_identity import ClusterIdentity, must_wait, why_stranger
from odradek_runtime.grpc_endpoints import (
    Health,
    Probes,
    WrongListenerNotice,
    bind,
    connection_bounds,
    enable_reflection,
    new_server,
)
from odradek_runtime.lifecycle import ProcessRefused, StopRequest, announce_ready, bounded
from odradek_runtime.listeners import (
    ListenerAddress,
    host_port,
    open_port,
    refuse_open_without_tls,
    wrong_listener,
)
from odradek_runtime.logs import event_log
from odradek_runtime.open_files import grpc_connections_max
from odradek_runtime.tls import CertificateExpiry, TlsFiles

_SERVER_GRACE_S: Final = 0.2
_STOP_TIMEOUT_S: Final = 5.0
_TRANSFER_TIMEOUT_S: Final = 1.0
_IDLE_MS_MAX: Final = 600_000  # a connection without calls is closed after this time
_RPCS_MAX: Final = 2_000
_DISK_WAIT_S_MAX: Final = 5.0  # while a disk write takes longer, the controller is not ready
_log = event_log(__name__)


class QuorumProcess:
    """One controller process. The constructor raises SettingsError, ListenRefused or TlsRefused."""

    def __init__(self, settings: QuorumProcessSettings, *, insecure: bool) -> None:
        settings.check()
        self._settings = settings
        self._tls = TlsFiles.from_paths(settings.ssl_certificate, settings.ssl_key, settings.ssl_ca)
        refuse_open_without_tls(
            settings.listeners, has_tls=self._tls is not None, insecure=insecure
        )
        self._insecure = insecure
        self.ports: dict[str, int] = {}

    async def run(self, stop: StopRequest) -> None:
        """Run the controller until `stop` is set. Raises ProcessRefused or ListenRefused if it cannot start."""
        settings = self._settings
        self._prepare_storage()
        controller = Controller(settings.controller_settings(), random.SystemRandom())
        self._host = host = ControllerHost(
            controller,
            monotonic_ms,
            lambda error: stop.set("the controller cannot continue", failure=error),
        )
        quorum_settings = settings.quorum_settings(insecure=self._insecure)
        self._machine = machine = MetadataStateMachine(controller, host.on_applied)
        self._quorum = quorum = Quorum(
            quorum_settings, machine, broker_addresses=self._broker_addresses
        )
        host.connect(quorum)
        quorum.add_leadership_listener(on_active=host.on_active, on_resigned=host.on_resigned)
        server = self._server()
        self._health = Health(server)
        self._is_serving = False
        probes = Probes(self._health, why_not_live=lambda: "", why_not_ready=self._why_not_ready)
        admin_http = self._admin_http()
        self.ports["CONTROLLER"] = bind(
            server, settings.listener(CONTROLLER), self._tls, mutual=self._tls is not None
        )
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(host.run(), name="controller"),
                group.create_task(probes.run(), name="probes"),
            ]
            try:
                # `host.run` must have created its task group before the quorum reports that this node leads, because
                # the host then proposes its first batch in this group.
                await asyncio.sleep(0)
                await self._start(server, admin_http)
                registration = self._own_registration()
                tasks.append(group.create_task(registration.run(), name="registration"))
                await stop.wait()
                _log.info("Stopping", reason=stop.reason)
            finally:
                self._is_serving = False
                await probes.report()
                await bounded(
                    quorum.transfer_leadership(_TRANSFER_TIMEOUT_S),
                    _STOP_TIMEOUT_S,
                    "the leadership to move",
                )
                await server.stop(_SERVER_GRACE_S)
                await bounded(quorum.stop(), _STOP_TIMEOUT_S, "the quorum to stop")
                await admin_http.stop()
                await self._health.close()
                for task in tasks:
                    task.cancel()

    def _prepare_storage(self) -> None:
        settings = self._settings
        identity = {
            "cluster_id": settings.cluster_id,
            "node_id": settings.node_id,
            "voters": [node for node, _, _ in settings.voters],
        }
        try:
            # Formatting writes the identity file last. So a directory that a killed process left half formatted has
            # none, and is formatted again.
            if settings.storage_format_if_empty and not (settings.log_dir / IDENTITY_NAME).exists():
                format_storage(settings.log_dir, **identity)  # type: ignore[arg-type]  # mixed types
            if not settings.log_dir.is_dir():
                raise ProcessRefused(
                    f"the data directory {settings.log_dir} does not exist: run `odradek storage "
                    "format` for it before the first start"
                )
            check_storage(settings.log_dir, **identity)  # type: ignore[arg-type]  # mixed types
        except (StorageMismatch, CorruptStorage) as error:
            raise ProcessRefused(str(error)) from None
        except OSError as error:
            raise ProcessRefused(
                f"the data directory {settings.log_dir} cannot be used: {error}"
            ) from None

    def _server(self) -> grpc.aio.Server:
        server = new_server(
            interceptors=[WrongListenerNotice(self._advice)],
            concurrent_rpcs_max=_RPCS_MAX,
            connections=connection_bounds(
                connections_max=grpc_connections_max(1), idle_ms_max=_IDLE_MS_MAX
            ),
        )
        peers = Peers(
            has_tls=self._tls is not None,
            why_stranger=self._why_stranger,
            must_wait=lambda headers: must_wait(
                headers,
                metadata_incarnation_id=self._host.controller.committed.incarnation_id,
            ),
        )
        controller_service_pb2_grpc.add_ControllerServiceServicer_to_server(
            ControllerServicer(self._host, self._quorum, peers, self._describe_quorum), server
        )
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminServicer(self._host, peers, self._settings.cluster_id, self._describe_members),
            server,
        )
        enable_reflection(server, ["odradek.v1.ControllerService", "odradek.v1.AdminService"])
        return server

    def _advice(self) -> str:
        owner = f"controller {self._settings.node_id}"
        return wrong_listener(CONTROLLER, owner, "brokers", self._broker_addresses())

    def _broker_addresses(self) -> list[str]:
        """Return the addresses at which clients reach the live brokers by gRPC."""
        return [
            address
            for broker in self._host.controller.committed.brokers.values()
            if broker.is_live
            for address in grpc_addresses(broker.endpoints)
        ]

    def _admin_http(self) -> AdminHttp:
        certificates = {
            "ssl.certificate.location": self._settings.ssl_certificate,
            "ssl.ca.location": self._settings.ssl_ca,
        }
        expiry = CertificateExpiry(PREFIX, certificates)
        metrics = QuorumMetrics(self._host, self._quorum, self._machine.events, expiry)
        return AdminHttp(
            metrics=metrics.render,
            liveness={"loop": lambda: ""},
            readiness={"quorum": self._why_not_ready},
        )

    async def _start(self, server: grpc.aio.Server, admin_http: AdminHttp) -> None:
        settings = self._settings
        # Test the port before the quorum opens it: only the error of `open_port` names the port and the remedy.
        open_port(settings.listener(RAFT)).close()
        try:
            await self._quorum.start()
        except (StorageMismatch, CorruptStorage) as error:
            raise ProcessRefused(str(error)) from None
        except NewerProgramNeeded as error:
            raise ProcessRefused(
                f"cannot read the snapshot in {settings.log_dir}: {error}"
            ) from None
        except OSError as error:
            raise ProcessRefused(f"the quorum cannot start: {error}") from None
        self.ports["RAFT"] = self._quorum.listen_port
        if settings.metrics_port >= 0:
            self.ports["METRICS"] = await admin_http.start(
                ListenerAddress(
                    name="METRICS", host=settings.metrics_host, port=settings.metrics_port
                )
            )
        await server.start()
        if settings.health_port >= 0:
            self.ports["HEALTH"] = await self._health.open_for_probes(
                settings.metrics_host, settings.health_port
            )
        self._is_serving = True
        gc.collect()
        gc.freeze()
        _log.info("Serving", node_id=settings.node_id, **self.ports)
        announce_ready(
            role="controller",
            node_id=settings.node_id,
            cluster_id=settings.cluster_id,
            **self.ports,
        )

    def _own_registration(self) -> OwnRegistration:
        settings = self._settings
        endpoints = {node: (host, port) for node, host, port in settings.rpc_endpoints}
        return OwnRegistration(
            node_id=settings.node_id,
            host_id=settings.host_id_or_name,
            peers=endpoints,
            listeners=lambda: [
                common_pb2.Listener(name=CONTROLLER, host=host, port=port)
                for node, (host, port) in endpoints.items()
                if node == settings.node_id
            ],
            host=self._host,
            quorum=self._quorum,
            identity=lambda: ClusterIdentity(
                settings.cluster_id,
                controller_ids=self._voter_ids,
                metadata_incarnation_id=self._host.controller.committed.incarnation_id,
            ),
            tls=self._tls,
        )

    @property
    def _voter_ids(self) -> list[int]:
        return [node for node, _, _ in self._settings.voters]

    def _why_stranger(self, headers: Headers) -> str:
        return why_stranger(
            headers,
            cluster_id=self._settings.cluster_id,
            metadata_incarnation_id=self._host.controller.committed.incarnation_id,
            voters=self._voter_ids,
        )

    def _why_not_ready(self) -> str:
        """Return why this controller is not ready, so that no other controller should be stopped; "" if it is ready.

        Another controller may be stopped if this one can be part of a majority without it. Therefore this controller
        must have applied an entry of the current leader's term, and so all entries that were committed in earlier
        terms.
        """
        if not self._is_serving:
            return "the controller is starting or stopping"
        if self._quorum.role is QuorumRole.JOINING:
            return (
                "the data directory is new, and this controller may not vote until it has caught up"
            )
        if self._quorum.leader_id is None:
            return "this controller knows no leader of the quorum"
        if self._host.controller.committed.epoch != self._quorum.term:
            return "this controller has not applied all entries that the leader has committed"
        if self._quorum.disk_wait_s > _DISK_WAIT_S_MAX:
            return f"a write to the data directory takes longer than {_DISK_WAIT_S_MAX:g} s"
        return ""

    def _describe_members(self) -> tuple[int, list[str]]:
        leader_id = self._quorum.leader_id
        endpoints = [host_port(host, port) for _, host, port in self._settings.rpc_endpoints]
        return (-1 if leader_id is None else leader_id), endpoints

    def _describe_quorum(self) -> pb.DescribeQuorumResponse:
        status = self._quorum.status()
        peers = {peer.node_id: peer for peer in status.peers}
        rpc = {node: host_port(host, port) for node, host, port in self._settings.rpc_endpoints}
        voters = []
        for node, host, port in self._settings.voters:
            peer = peers.get(node)
            log_end = -1
            if node == status.node_id:
                log_end = status.log_last_offset + 1
            elif peer is not None and status.active:
                log_end = peer.match_index + 1
            registered = self._host.controller.committed.controllers.get(ControllerId(node))
            voters.append(
                pb.QuorumVoter(
                    controller_id=node,
                    endpoint=host_port(host, port),
                    log_end=log_end,
                    last_heard_ms=-1 if peer is None else peer.last_response_age_ms,
                    rpc_endpoint=rpc.get(node, ""),
                    host_id="" if registered is None else registered.host_id or "",
                )
            )
        return pb.DescribeQuorumResponse(
            leader_id=-1 if status.leader_id is None else status.leader_id,
            term=status.term,
            commit_offset=status.commit_index + 1,
            voters=voters,
            answered_by=status.node_id,
        )

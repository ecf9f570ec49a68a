"""The broker process: its components, the order in which they start, and the order in which they stop.

A start locks the data directory and finds out whether the last shutdown was clean. It binds the ports, recovers the
logs while registering, and replays the metadata log until the image contains the registration. It then starts the
replicas, asks the controller to unfence this broker, and serves. A stop moves the leaderships to other brokers, closes
the listeners, syncs the logs, and writes the clean-shutdown marker last.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, Final

from odradek_broker.access.authorizer import AclAuthorizer, Authorizer, EverybodyMay
from odradek_broker.access.logins import Logins
from odradek_broker.access.quotas import Quotas
from odradek_broker.access.sasl import load_scramp, token_verifier
from odradek_broker.broker import Broker, Environment
from odradek_broker.cluster.catch_up import CatchUp
from odradek_broker.cluster.heartbeat import Heartbeat
from odradek_broker.cluster.heartbeat_threads import HeartbeatThreads
from odradek_broker.cluster.registration import wire_listeners
from odradek_broker.data_directory import (
    DirectoryInventory,
    open_data_directory,
    warn_of_few_descriptors,
)
from odradek_broker.kafka.listener import KafkaListeners, refuse_unencrypted_listeners
from odradek_broker.kafka.registry import Registry
from odradek_broker.kafka.services import Services
from odradek_broker.listener_settings import REPLICATION, is_kafka_listener
from odradek_broker.metrics import PREFIX, BrokerMetrics
from odradek_broker.replication import partition_host
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.disk.disk_pool import DiskPool, disk_threads
from odradek_broker.rpc.listeners import GrpcListeners
from odradek_broker.rpc.replication_servicer import grpc_dial
from odradek_broker.rpc.services import add_services
from odradek_broker.rpc.transaction_link_servicer import grpc_dial_link, grpc_resolve
from odradek_broker.settings import BrokerSettings
from odradek_protocol.identity import BrokerId, IncarnationId
from odradek_protocol.kafka.response_encoding import warm_up
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage
from odradek_protocol.metadata.records import grpc_addresses
from odradek_runtime.admin_http import AdminHttp
from odradek_runtime.budget.client_budget import ClientBudget
from odradek_runtime.clock import SYSTEM_CLOCK, boottime_ms, monotonic_ms
from odradek_runtime.cluster_identity import ClusterIdentity
from odradek_runtime.grpc_endpoints import InternalChannels, Probes
from odradek_runtime.lifecycle import StopRequest, announce_ready
from odradek_runtime.listeners import (
    ListenerAddress,
    refuse_open_without_authentication,
    refuse_open_without_tls,
)
from odradek_runtime.logs import event_log
from odradek_runtime.tls import CertificateExpiry, TlsFiles

_WARM_UP_PAUSE_S: Final = 0.1
GARBAGE_OBJECTS_MIN: Final = 10_000
"""The garbage collector runs when the number of objects has grown by this many (threshold 0 of `gc.set_threshold`).
With Python's default of 700, the objects of requests in progress started 29 collections in 1,000 commits, and no
collection found garbage. The objects that a start creates live as long as the process: with 700, collections took a
tenth of the CPU time of opening 12,000 logs.
"""
_SERVER_GRACE_S: Final = 0.05
_log = event_log(__name__)


class BrokerProcess:
    """One broker process. `run` starts the broker, serves, and stops it."""

    def __init__(self, settings: BrokerSettings, *, insecure: bool) -> None:
        settings.check()
        self._settings = settings
        self._tls = TlsFiles.from_paths(settings.ssl_certificate, settings.ssl_key, settings.ssl_ca)
        refuse_open_without_tls(
            settings.listeners, has_tls=self._tls is not None, insecure=insecure
        )
        refuse_open_without_authentication(
            settings.listeners, settings.authenticated_listeners(), insecure=insecure
        )
        refuse_unencrypted_listeners(settings, insecure=insecure)
        self._broker_id = BrokerId(settings.node_id)
        self._is_ready = False
        self._catch_up = CatchUp(self._broker_id, timeout_ms=settings.readiness_catch_up_timeout_ms)
        self._may_serve_kafka = asyncio.Event()
        self._serves_kafka = asyncio.Event()
        self._tokens = token_verifier(settings)
        if settings.authenticated_listeners() > {REPLICATION}:
            load_scramp()
        self._logins = Logins()
        self._kafka = KafkaListeners(settings, self._tls, tokens=self._tokens, logins=self._logins)
        self._authorizer: Authorizer = (
            AclAuthorizer(settings.super_users) if settings.authorizer else EverybodyMay()
        )
        self._quotas = Quotas()
        self._budget = ClientBudget(
            decoded_bytes_max=settings.queued_request_bytes_max,
            decoded_bytes_owner_max=settings.queued_request_bytes_max // 4,
        )
        self._admin_http: AdminHttp | None = None
        self._ports: dict[str, int] = {}

    async def run(self, stop: StopRequest) -> None:
        """Run the broker until `stop` is set, or until a failure that it cannot recover from."""
        gc.set_threshold(GARBAGE_OBJECTS_MIN)
        self._stop = stop
        settings = self._settings
        incarnation = IncarnationId(secrets.token_bytes(16))
        directory = open_data_directory(
            settings, broker_id=self._broker_id, incarnation=incarnation
        )
        self._peers = InternalChannels(self._tls)
        self._broker = Broker(
            settings,
            Environment(
                clock=SYSTEM_CLOCK,
                pool=DiskPool(disk_threads(settings.pool_threads_max)),
                controller_channels=InternalChannels(self._tls),
                dial=grpc_dial(self._tls),
                dial_link=grpc_dial_link(self._tls),
                call_resolve=grpc_resolve(self._peers),
                beating=self._beating,
            ),
            directory=directory,
            incarnation=incarnation,
            on_end=lambda reason, failure: stop.set(reason, failure=failure),
            authorizer=self._authorizer,
        )
        self._broker.image_listeners.append(self._image_changed)
        self._broker.tick.start()
        is_clean = False
        try:
            self._bind()
            await self._serve_admin_http()
            await self._open_for_probes()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(work(), name=name)
                    for name, work in self._background().items()
                ]
                serving = group.create_task(self._live(), name="serve")
                stopped = group.create_task(stop.wait(), name="stop")
                await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if self._is_ready and stop.failure is None:
                    is_clean = await self._shut_down()
                for task in (*tasks, serving, stopped):
                    task.cancel()
        finally:
            await self._close(is_clean)

    def _background(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        return {
            **self._broker.background(),
            "probes": self._probes.run,
            "kafka listeners": self._serve_kafka,
        }

    def _beating(self, heartbeat: Heartbeat, identity: ClusterIdentity) -> HeartbeatThreads:
        return HeartbeatThreads(
            heartbeat,
            controllers=self._settings.controllers,
            interval_ms=self._settings.heartbeat_interval_ms,
            tls=self._tls,
            identity=identity,
        )

    def _bind(self) -> None:
        """Bind the ports before the broker registers, because the registration contains them. Serving begins later."""
        self._grpc = GrpcListeners(
            self._settings,
            self._tls,
            authorizer=self._authorizer,
            quotas=self._quotas,
            credentials=lambda: self._broker.partitions.image.scram,
            tokens=self._tokens,
            is_registered=lambda broker_id: broker_id in self._broker.feed.image.brokers,
            grpc_addresses=self._grpc_addresses,
            budget=self._budget,
            logins=self._logins,
        )
        self._ports |= self._grpc.bind()
        self._ports |= self._kafka.bind()

    def _grpc_addresses(self) -> list[str]:
        """Return the addresses of this broker's gRPC listeners for clients; [] before the first registration."""
        broker = self._broker.feed.image.brokers.get(self._broker_id)
        return [] if broker is None else grpc_addresses(broker.endpoints)

    async def _serve_admin_http(self) -> None:
        settings = self._settings
        self._metrics = BrokerMetrics(
            table=self._broker.table,
            directory=self._broker.directory,
            lease=self._broker.lease,
            tick=self._broker.tick,
            loop_lag_seconds=lambda: self._broker.upkeep.loop_lag_s,
        )
        self._metrics.extra.append(self._kafka.counters.families)
        self._metrics.extra.append(self._grpc.calls.families)
        self._metrics.extra.append(self._grpc.without_call.families)
        self._metrics.extra.append(self._logins.families)
        self._metrics.extra.append(self._broker.transactions.coordinator.metrics.families)
        certificates = {
            "ssl.certificate.location": settings.ssl_certificate,
            "ssl.ca.location": settings.ssl_ca,
        }
        self._metrics.extra.append(CertificateExpiry(PREFIX, certificates).families)
        self._admin_http = AdminHttp(
            metrics=self._metrics.render,
            liveness={"event loop": lambda: ""},
            readiness={
                "serving": self._why_not_ready,
                "data directory": lambda: self._broker.table.offline_reason,
            },
        )
        if settings.metrics_port >= 0:
            self._ports["METRICS"] = await self._admin_http.start(
                ListenerAddress(
                    name="METRICS", host=settings.metrics_host, port=settings.metrics_port
                )
            )

    async def _open_for_probes(self) -> None:
        """Open the health port before the logs are recovered, so that a startup probe sees a process that is alive."""
        settings, health = self._settings, self._grpc.health
        self._probes = Probes(
            health,
            why_not_live=lambda: self._broker.table.offline_reason,
            why_not_ready=self._why_not_ready,
        )
        await self._probes.report()
        if settings.health_port >= 0:
            self._ports["HEALTH"] = await health.open_for_probes(
                settings.metrics_host, settings.health_port
            )

    def _why_not_ready(self) -> str:
        if not self._is_ready:
            return "the broker is starting or stopping"
        if self._broker.lease.until_ms < boottime_ms():
            return "the active controller does not respond to heartbeats, or has fenced this broker"
        return self._catch_up.why_not(
            self._broker.feed.image, self._broker.followers.connected, monotonic_ms()
        )

    async def _live(self) -> None:
        settings = self._settings
        await self._broker.join(
            wire_listeners(
                [
                    settings.advertised(listener.name, self._ports[listener.name])
                    for listener in settings.listeners
                ],
                security_protocol="PLAINTEXT" if self._tls is None else "SSL",
            )
        )
        warn_of_few_descriptors(self._broker.directory, settings)
        await self._start_servers()
        await self._broker.membership.ask_unfenced()
        await self._become_ready()
        await self._stop.wait()

    async def _start_servers(self) -> None:
        add_services(
            self._grpc,
            self._broker,
            peers=self._peers,
            quotas=self._quotas,
            is_mutual_tls=self._tls is not None,
        )
        await self._grpc.start()

    async def _become_ready(self) -> None:
        self._may_serve_kafka.set()
        await self._serves_kafka.wait()
        self._is_ready = True
        await self._probes.report()
        gc.collect()
        # Most objects that exist now live until the process ends, so later collections need not scan them.
        gc.freeze()
        is_compiled = not str(partition_host.__file__).endswith(".py")
        _log.info("Serving", broker_id=self._broker_id, ports=self._ports, is_compiled=is_compiled)
        announce_ready(id=self._broker_id, pid=os.getpid(), ports=self._ports)

    async def _serve_kafka(self) -> None:
        await self._may_serve_kafka.wait()
        services = _kafka_services(
            self._broker,
            authorizer=self._authorizer,
            quotas=self._quotas,
            budget=self._budget,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kafka.serve(Registry(services), ready=self._serves_kafka))
            if any(is_kafka_listener(listener.name) for listener in self._settings.listeners):
                group.create_task(_warm_up(self._broker.table.counters))

    def _image_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.acls:
            self._authorizer.entries_changed(image.acls)
        if delta.scram_users:
            self._grpc.sessions.sweep()
        if delta.quotas:
            self._quotas.quotas_changed(image.quotas)

    async def _shut_down(self) -> bool:
        """Let the controller move the leaderships to other brokers; return whether it allowed the stop in time."""
        _log.info("Stopping", reason=self._stop.reason)
        self._is_ready = False
        await self._probes.report()
        return await self._broker.leave()

    async def _close(self, is_clean: bool) -> None:
        """Close the listeners, then the data directory, and stop the heartbeat last."""
        self._broker.tick.stop()
        self._kafka.close()
        await self._grpc.stop(_SERVER_GRACE_S)
        if self._admin_http is not None:
            await self._admin_http.stop()
        await self._grpc.health.close()
        await self._broker.close(is_clean=is_clean)
        await self._peers.close()


async def _warm_up(counters: Counters) -> None:
    """Generate the encoders and decoders of Kafka's messages one by one while no request arrives.

    A request that needs an encoder or decoder earlier generates it by itself. A thread that generates them would slow
    the event loop down, because the loop would wait for the interpreter's lock (GIL) after each of its system calls.
    """
    served = -1
    for _ in warm_up():
        while served != (served := counters.served()):  # noqa: ASYNC110
            # No event signals that requests have stopped arriving, so this loop polls the counters.
            await asyncio.sleep(_WARM_UP_PAUSE_S)
        await asyncio.sleep(0)


def _kafka_services(
    broker: Broker,
    *,
    authorizer: Authorizer,
    quotas: Quotas,
    budget: ClientBudget,
) -> Services:
    """Return the services of this broker's Kafka handlers."""
    settings = broker.settings
    return Services(
        settings=settings,
        broker_id=broker.broker_id,
        cluster_id=broker.cluster_id,
        partitions=broker.partitions,
        controllers=broker.controllers,
        producer_ids=broker.producer_ids,
        topic_creation=broker.topic_creation,
        inventory=DirectoryInventory(broker.table, str(settings.log_dir)),
        authorizer=authorizer,
        quotas=quotas,
        budget=budget,
        groups=broker.groups,
        transactions=broker.transactions.coordinator,
        transactional_offsets=broker.transactions.offsets,
        hanging=broker.hanging,
        connection_numbers=broker.transactions.connection_numbers,
    )

"""A simulated broker's link to the controllers: registration, heartbeats and the lease they renew.

Heartbeats go to all controllers, each over a stream of its own; only the active one's answer renews
the lease, from when the heartbeat was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek_broker.log.storage import StorageFailed
from odradek_metadata_quorum.controller.requests import (
    HeartbeatRequest,
    HeartbeatResponse,
    LogEnd,
    RegisterRequest,
    RegisterResponse,
    ReportLogEndsRequest,
)
from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import OWN_MAXIMA, OWN_MINIMA
from tests.sim.controller_node import CLUSTER_ID
from tests.sim.network import Stream
from tests.sim.scheduler import MS

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess

HEARTBEAT_US = 250 * MS
LEASE_MS = 2_400


class ControllerLink:
    """Of one life of a broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._broker_id = broker.broker_id
        self._cluster = broker.cluster
        self._network = broker.network
        self._process = broker.process
        self._scheduler = broker.scheduler
        self._active_controller = self._scheduler.random.choice(sorted(self._cluster.controllers))
        self._seq = 0
        self._sent: dict[int, tuple[int, int]] = {}  # (the lease's clock, simulated us), by seq
        self._streams: dict[int, Stream] = {}

    def connect(self) -> None:
        """Open a stream to each controller."""
        for controller_id in sorted(self._cluster.controllers):
            self._connect(controller_id)

    def call(self, method: str, request: Any, reply: Any) -> None:
        """A unary call to whom we believe active; `reply` gets None when it is not."""
        controller = self._cluster.controllers[self._active_controller]

        def on_reply(response: Any) -> None:
            if response is None:
                self._active_controller = self._scheduler.random.choice(
                    sorted(self._cluster.controllers)
                )
            reply(response)

        self._network.send(
            self._broker_id,
            controller.process,
            controller.request,
            method,
            request,
            self._process,
            on_reply,
        )

    def register(self) -> None:
        """Ask until it is granted."""
        if self._broker.broker_epoch >= 0:
            return
        disk = self._broker.node.disk
        restart_class, previous_broker_epoch = disk.last_life()
        request = RegisterRequest(
            cluster_id=CLUSTER_ID,
            broker_id=self._broker_id,
            incarnation_id=self._broker.incarnation,
            directory_ids=(disk.directory_id,),
            restart_class=restart_class,
            previous_broker_epoch=previous_broker_epoch,
            lost_partitions=disk.lost_partitions(),
            features=OWN_MAXIMA,
            feature_minima=OWN_MINIMA,
        )
        self.call("handle_register", request, self._registered)
        self._process.after(self._scheduler.between(200, 400) * MS, self.register)

    def _registered(self, response: RegisterResponse | None) -> None:
        if response is None or self._broker.broker_epoch >= 0:
            return
        if response.outcome.error is not ErrorCode.NONE:
            self._scheduler.note(f"broker {self._broker_id} refused: {response.outcome.error.name}")
            return
        self._broker.broker_epoch = response.broker_epoch
        try:
            self._broker.node.disk.told()
        except StorageFailed:
            self._broker.fail_directory()
        self._scheduler.note(
            f"broker {self._broker_id} registered, epoch {self._broker.broker_epoch}"
        )
        self._broker.get_ready()

    def _connect(self, controller_id: int) -> None:
        controller = self._cluster.controllers[controller_id]
        able = controller.process.is_running
        if not able or not self._network.both_ways(self._broker_id, controller_id):
            delay = self._scheduler.between(50, 500) * MS
            self._process.after(delay, self._connect, controller_id)
            return
        stream = Stream(self._network, self._process, controller.process)
        controller.accept_heartbeats(stream, self._broker_id)
        self._streams[controller_id] = stream

        def on_message(response: HeartbeatResponse) -> None:
            self._heard(controller_id, response)

        def on_closed() -> None:
            if self._streams.get(controller_id) is stream:
                del self._streams[controller_id]
            delay = self._scheduler.between(50, 500) * MS
            self._process.after(delay, self._connect, controller_id)

        stream.on_message[0] = on_message
        stream.on_closed[0] = on_closed
        if self._broker.broker_epoch >= 0:
            self._send(controller_id, stream)

    def beat(self) -> None:
        """A heartbeat to each controller, now and from now on."""
        if self._broker.broker_epoch >= 0:
            for controller_id, stream in list(self._streams.items()):
                self._send(controller_id, stream)
        self._process.after(HEARTBEAT_US, self.beat)

    def _send(self, controller_id: int, stream: Stream) -> None:
        self._seq += 1
        sent = (self._broker.lease_clock_ms(), self._scheduler.now_us)
        self._sent[self._seq] = sent
        self._sent.pop(self._seq - 100, None)
        offline = (
            (self._broker.node.disk.directory_id,) if self._broker.node.disk.has_failed else ()
        )
        stream.send(
            self._process,
            HeartbeatRequest(
                broker_id=self._broker_id,
                broker_epoch=self._broker.broker_epoch,
                seq=self._seq,
                image_offset=self._broker.image.offset,
                want_fence=not self._broker.is_ready,
                want_shutdown=self._broker.want_shutdown,
                offline_directory_ids=offline,
                broken_partitions=frozenset(self._broker.broken),
            ),
        )

    def _heard(self, controller_id: int, response: HeartbeatResponse) -> None:
        if response.error is ErrorCode.STALE_BROKER_EPOCH:
            self._broker.exit_as_stale()
            return
        if not response.is_active or response.error is not ErrorCode.NONE:
            return
        self._active_controller = controller_id
        sent = self._sent.get(response.seq)
        if sent is not None and sent[0] + LEASE_MS > self._broker.lease_until_ms:
            self._broker.lease_until_ms, self._broker.lease_sent_us = sent[0] + LEASE_MS, sent[1]
        if response.report_log_ends:
            self._report(response.report_log_ends)
        if self._broker.want_shutdown and response.may_shutdown:
            self._broker.finish_shutdown()

    def _report(self, wanted: tuple[TopicIdPartition, ...]) -> None:
        ends = tuple(
            LogEnd(
                partition=partition,
                last_epoch=self._broker.hosted[partition].replica.last_epoch,
                log_end=self._broker.hosted[partition].replica.log_end,
            )
            for partition in wanted
            if partition in self._broker.hosted
        )
        request = ReportLogEndsRequest(
            broker_id=self._broker_id, broker_epoch=self._broker.broker_epoch, partitions=ends
        )
        self.call("handle_report_log_ends", request, lambda _: None)

"""A simulated controller process: the production controller behind a simulated network."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import grpc
import grpc.aio

from odradek_metadata_quorum.controller import (
    Controller,
    ControllerSettings,
    configs,
    leaders,
    partitions,
    producer_ids,
    registration,
    topics,
)
from odradek_metadata_quorum.controller.requests import Decision, HeartbeatResponse
from odradek_metadata_quorum.raft.shell import CommittedEntry, StateSnapshot
from odradek_metadata_quorum.rpc import wire
from odradek_metadata_quorum.rpc.metadata_feed import FeedMismatch, feed
from odradek_metadata_quorum.rpc.wire_admin import create_topics_pieces, topic_result
from odradek_protocol.identity import BrokerId, MetadataOffset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.snapshot import read_snapshot
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from tests.sim.metadata_log import Entry, MetadataLog
from tests.sim.network import Network, Stream
from tests.sim.scheduler import MS, Process, Scheduler
from tests.sim.simulated_loop import SimulatedLoop

TICK_US = 50 * MS
HANDLERS: dict[str, Callable[..., Any]] = {
    "handle_alter_configs": configs.alter_configs,
    "handle_alter_reassignments": partitions.alter_reassignments,
    "handle_create_topics": topics.create_topics,
    "handle_delete_topics": topics.delete_topics,
    "handle_elect_leaders": leaders.elect_leaders,
}
"""The controller's handlers of the administrator's requests, by the names that these requests contain."""
CLUSTER_ID = "simulated"
RPCS: dict[str, tuple[Callable[[Any], Any], Callable[..., Any], Callable[[Any, int], Any]]] = {
    "Register": (wire.register_request, registration.register, wire.register_response),
    "AlterPartition": (
        wire.alter_partition_request,
        partitions.alter_partitions,
        lambda response, _: wire.alter_partition_response(response),
    ),
    "ReportLogEnds": (
        lambda message: next(wire.report_log_ends_requests(message, len(message.partitions) + 1)),
        leaders.report_log_ends,
        lambda error, _: pb.ReportLogEndsResponse(error_code=error),
    ),
    "AllocateProducerIds": (
        wire.allocate_request,
        producer_ids.allocate_producer_ids,
        lambda response, _: wire.allocate_response(response),
    ),
    "CreateTopics": (
        lambda message: next(create_topics_pieces(message, [1] * len(message.topics), frozenset())),
        topics.create_topics,
        lambda response, _: admin_pb.CreateTopicsResponse(topics=map(topic_result, response)),
    ),
}
"""The RPCs of brokers. Each entry has functions that decode the request, handle it, and encode the response."""
REFUSALS: dict[str, Callable[[int, int], Any]] = {
    "Register": lambda error, active: pb.RegisterResponse(
        error_code=error, broker_epoch=-1, active_controller_id=active
    ),
    "AlterPartition": lambda error, _: pb.AlterPartitionResponse(error_code=error),
    "ReportLogEnds": lambda error, _: pb.ReportLogEndsResponse(error_code=error),
    "AllocateProducerIds": lambda error, _: pb.AllocateProducerIdsResponse(
        error_code=error, producer_id_start=-1
    ),
    "CreateTopics": lambda error, _: grpc.aio.AioRpcError(
        grpc.StatusCode.FAILED_PRECONDITION, grpc.aio.Metadata(), grpc.aio.Metadata()
    ),
}


class ControllerNode:
    """One controller of the quorum. `start` restarts it and rebuilds its state from the snapshot and the log."""

    def __init__(
        self, scheduler: Scheduler, network: Network, log: MetadataLog, controller_id: int
    ) -> None:
        self.scheduler = scheduler
        self.network = network
        self.log = log
        self.controller_id = controller_id
        self.settings = ControllerSettings(cluster_id=CLUSTER_ID)
        self.drift = 1.0
        self.process: Process = None  # type: ignore[assignment]  # set in `start`
        self.start()

    def start(self) -> None:
        """Start the process again. It replays the committed entries again."""
        if self.process is not None and self.process.is_alive:
            return
        self.process = Process(self.scheduler, self.controller_id)
        self.core = Controller(self.settings, Random(self.scheduler.random.getrandbits(32)))
        self.applied = 0
        self.term: int | None = None
        self._proposed = self._replayed = 0
        self._answers: deque[tuple[int, Callable[[], None]]] = deque()
        self.loop = SimulatedLoop.of(self.process)
        self.source = AppliedEntries(self)
        self._heartbeats: dict[int, Stream] = {}
        self.process.after(TICK_US, self._tick)

    def crash(self) -> None:
        self.process.kill()
        self.network.process_ended(self.process)
        self.loop.close()

    def now_ms(self) -> int:
        return int(self.scheduler.now_us * self.drift) // 1000

    # --- calls of the quorum ----------------------------------------------------------------------

    def lead(self, term: int) -> None:
        if self.term is not None:
            self.step_down()
        self.term = term
        self._proposed = self._replayed = 0
        for decision in self.core.became_active(term, self.now_ms()):
            self._propose(decision)

    def step_down(self) -> None:
        if self.term is not None:
            self.term = None
            self._answers.clear()
            self.core.resigned()

    def apply_committed(self) -> None:
        """Replay newly committed entries, and send the responses that waited for them."""
        if self.applied < self.log.trimmed:
            self.step_down()
            image = read_snapshot(self.log.snapshot)
            self.core.restore(image)
            self.applied = self.log.trimmed
            self.scheduler.counters["controller snapshots"] += 1
        while self.applied < len(self.log.entries):
            self._replay(MetadataOffset(self.applied), self.log.entries[self.applied])
            self.applied += 1
        self.source.grew()

    def _replay(self, offset: MetadataOffset, entry: Entry) -> None:
        if self.term is not None and entry.term > self.term:
            self.step_down()
        for record in entry.records:
            self.core.replay(offset, entry.term, record)
        if not entry.records:
            self.core.advance(offset, entry.term)
        elif entry.term == self.term:
            self._replayed += 1
            while self._answers and self._answers[0][0] <= self._replayed:
                self._answers.popleft()[1]()

    def _propose(self, decision: Decision[Any]) -> None:
        if not decision.records:
            return
        assert self.term is not None, decision
        self._proposed += 1
        if not self.log.propose(self, self.term, decision.records):
            self.step_down()

    def _answer(self, decision: Decision[Any], send: Callable[[Any], None]) -> None:
        """Send the response when the decision, and all decisions before it, are committed and replayed by this
        controller.
        """
        self._propose(decision)
        if self.term is None:
            return
        if self._proposed == self._replayed:
            send(decision.response)
        else:
            self._answers.append((self._proposed, lambda: send(decision.response)))

    def _tick(self) -> None:
        for decision in self.core.tick(self.now_ms()):
            self._propose(decision)
            if self.term is None:
                break
        self.process.after(0 if self.core.is_repairing else TICK_US, self._tick)

    # --- requests ---------------------------------------------------------------------------------

    def request(
        self, method: str, request: Any, reply_to: Process, reply: Callable[[Any], None]
    ) -> None:
        """Serve a unary call of the admin to the controller. The reply is None if this controller is not active."""

        def send(response: Any) -> None:
            self.network.send(self.controller_id, reply_to, reply, response)

        if not self.core.is_active:
            send(None)
            return
        self._answer(self.core.decide(self.now_ms(), HANDLERS[method], request), send)

    def call(
        self, method: str, message: Any, reply_to: Process, reply: Callable[[Any], None]
    ) -> None:
        """Serve a unary call of a broker, as the production ControllerServicer does."""

        def send(response: Any) -> None:
            self.network.send(self.controller_id, reply_to, reply, response)

        if not self.core.is_active:
            send(REFUSALS[method](ErrorCode.NOT_CONTROLLER, self._active_id()))
            return
        read, handler, written = RPCS[method]
        decision = self.core.decide(self.now_ms(), handler, read(message))

        def answer(response: Any) -> None:
            message = written(response, self._active_id())
            if method == "CreateTopics":
                message.metadata_offset = min(self.applied, len(self.log.entries) - 1)
            send(message)

        self._answer(decision, answer)

    def _active_id(self) -> int:
        return -1 if self.log.leader_id is None else self.log.leader_id

    # --- heartbeats -------------------------------------------------------------------------------

    def accept_heartbeats(self, stream: Stream, broker_id: int) -> None:
        self._heartbeats[broker_id] = stream

        def on_message(message: pb.HeartbeatRequest) -> None:
            def send(response: HeartbeatResponse) -> None:
                stream.send(self.process, wire.heartbeat_response(response, self._active_id()))

            decision = self.core.heartbeat(self.now_ms(), wire.heartbeat_request(message))
            if self.term is not None:
                self._answer(decision, send)
            else:
                send(decision.response)

        def on_closed() -> None:
            if self._heartbeats.get(broker_id) is stream:
                del self._heartbeats[broker_id]
                self.core.stream_broken(BrokerId(broker_id), self.now_ms())

        stream.on_message[1] = on_message
        stream.on_closed[1] = on_closed

    # --- metadata feed ----------------------------------------------------------------------------

    def accept_feed(self, stream: Stream, request: pb.MetadataFeedRequest) -> None:
        """Serve a broker's MetadataFeed call with the production function `feed`."""
        self.loop.spawn(self._feed(stream, request))

    async def _feed(self, stream: Stream, request: pb.MetadataFeedRequest) -> None:
        with suppress(FeedMismatch):
            async for message in feed(self.source, request.from_offset, request.last_epoch):
                if not stream.is_open_for(self.process):
                    break
                stream.send(self.process, message)
        stream.close(self.process)


class AppliedEntries:
    """The entries that a controller has applied, in the form in which the production feed reads them."""

    def __init__(self, node: ControllerNode) -> None:
        self._node = node
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def applied(self) -> int:
        return self._node.applied - 1

    def grew(self) -> None:
        """Wake the waiting readers, because more entries were applied."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_applied(self, offset: int, timeout_s: float) -> int:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.applied < offset:
                    waiter: asyncio.Future[None] = self._node.loop.create_future()
                    self._waiting.append(waiter)
                    await waiter
        return self.applied

    def entries(self, from_offset: int, bytes_max: int) -> Sequence[CommittedEntry] | None:
        node = self._node
        if from_offset < node.log.trimmed <= node.applied:
            return None
        found: list[CommittedEntry] = []
        size_bytes = 0
        for offset in range(from_offset, node.applied):
            entry = node.log.entries[offset]
            found.append(CommittedEntry(offset, entry.term, entry.payload))
            size_bytes += len(entry.payload)
            if size_bytes >= bytes_max:
                break
        return found

    async def latest_snapshot(self) -> StateSnapshot | None:
        log = self._node.log
        offset = log.trimmed - 1
        self._node.scheduler.counters["broker snapshots"] += 1
        return StateSnapshot(offset, log.entries[offset].term, log.snapshot)

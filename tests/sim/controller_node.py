"""A controller process: the production controller behind a simulated wire."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from odradek_metadata_quorum.controller import (
    Controller,
    ControllerSettings,
    configs,
    leaders,
    partitions,
    registration,
    topics,
)
from odradek_metadata_quorum.controller.requests import (
    Decision,
    HeartbeatRequest,
    HeartbeatResponse,
)
from odradek_protocol.metadata.snapshot import read_snapshot
from tests.sim.metadata_log import Entry, MetadataLog
from tests.sim.network import Network, Stream
from tests.sim.scheduler import MS, Process, Scheduler

TICK_US = 50 * MS
HANDLERS: dict[str, Callable[..., Any]] = {
    "handle_register": registration.register,
    "handle_report_log_ends": leaders.report_log_ends,
    "handle_alter_partition": partitions.alter_partitions,
    "handle_alter_configs": configs.alter_configs,
    "handle_alter_reassignments": partitions.alter_reassignments,
    "handle_create_topics": topics.create_topics,
    "handle_delete_topics": topics.delete_topics,
    "handle_elect_leaders": leaders.elect_leaders,
}
"""The handlers by the names that the simulated wire calls them by."""
CLUSTER_ID = "simulated"


class ControllerNode:
    """One member: restarted by `start`, its core made anew from snapshot and log each time."""

    def __init__(
        self, scheduler: Scheduler, network: Network, log: MetadataLog, controller_id: int
    ) -> None:
        self.scheduler = scheduler
        self.network = network
        self.log = log
        self.controller_id = controller_id
        self.settings = ControllerSettings(cluster_id=CLUSTER_ID)
        self.drift = 1.0
        self.process: Process = None  # type: ignore[assignment]  # start makes it
        self.start()

    def start(self) -> None:
        """A new life; what is committed is read again."""
        if self.process is not None and self.process.is_alive:
            return
        self.process = Process(self.scheduler, self.controller_id)
        self.core = Controller(self.settings, Random(self.scheduler.random.getrandbits(32)))
        self.applied = 0
        self.term: int | None = None
        self._proposed = self._replayed = 0
        self._answers: deque[tuple[int, Callable[[], None]]] = deque()
        self._feeds: list[tuple[Stream, list[int]]] = []
        self._heartbeats: dict[int, Stream] = {}
        self.process.after(TICK_US, self._tick)

    def crash(self) -> None:
        self.process.kill()
        self.network.process_ended(self.process)

    def now_ms(self) -> int:
        return int(self.scheduler.now_us * self.drift) // 1000

    # --- the quorum's side -----------------------------------------------------------------------

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
        """Replay what is new, and answer who waited for it."""
        if self.applied < self.log.trimmed:
            self.step_down()
            image = read_snapshot(self.log.snapshot)
            self.core.restore(image)
            self.applied = self.log.trimmed
            self.scheduler.counters["controller snapshots"] += 1
        while self.applied < len(self.log.entries):
            self._replay(self.applied, self.log.entries[self.applied])
            self.applied += 1
        self._feed_all()

    def _replay(self, offset: int, entry: Entry) -> None:
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
        """Answer when it, and all before it, are committed and replayed here."""
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

    # --- requests --------------------------------------------------------------------------------

    def request(
        self, method: str, request: Any, reply_to: Process, reply: Callable[[Any], None]
    ) -> None:
        """A unary call of the controller's; None comes back when this one is not active."""

        def send(response: Any) -> None:
            self.network.send(self.controller_id, reply_to, reply, response)

        if not self.core.is_active:
            send(None)
            return
        self._answer(self.core.decide(self.now_ms(), HANDLERS[method], request), send)

    # --- heartbeats ------------------------------------------------------------------------------

    def accept_heartbeats(self, stream: Stream, broker_id: int) -> None:
        self._heartbeats[broker_id] = stream

        def on_message(request: HeartbeatRequest) -> None:
            def send(response: HeartbeatResponse) -> None:
                stream.send(self.process, response)

            decision = self.core.heartbeat(self.now_ms(), request)
            if self.term is not None:
                self._answer(decision, send)
            else:
                send(decision.response)

        def on_closed() -> None:
            if self._heartbeats.get(broker_id) is stream:
                del self._heartbeats[broker_id]
                self.core.stream_broken(broker_id, self.now_ms())

        stream.on_message[1] = on_message
        stream.on_closed[1] = on_closed

    # --- the feed --------------------------------------------------------------------------------

    def accept_feed(self, stream: Stream, from_offset: int) -> None:
        """Committed entries from there on, as far as they are applied here; or a snapshot."""
        self._feeds.append((stream, [from_offset]))
        self._feed_all()

    def _feed_all(self) -> None:
        self._feeds = [f for f in self._feeds if f[0].is_open_for(self.process)]
        for stream, position in self._feeds:
            if position[0] < self.log.trimmed <= self.applied:
                stream.send(self.process, ("snapshot", self.log.snapshot))
                position[0] = self.log.trimmed
            if position[0] < self.applied:
                entries = [
                    (offset, self.log.entries[offset])
                    for offset in range(position[0], self.applied)
                ]
                stream.send(self.process, ("entries", entries))
                position[0] = self.applied

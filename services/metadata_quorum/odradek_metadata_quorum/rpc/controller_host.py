"""The host of the controller: it passes requests to the controller, and proposes the controller's decisions to the
quorum.

The response to a request is sent only after the records of its decision, and of all earlier decisions, are committed
and replayed on this node. Decisions are proposed in the order in which they were made. A decision without records, such
as a read of the image or a refusal, gets its response after a majority of the controllers has confirmed that no other
controller was elected before the decision (`confirm_leadership`). So a controller that was deposed and does not know it
yet sends no response.

When the leadership ends, all waiting requests fail with `NotActive`. Their outcome is unknown to the callers, which
repeat the requests at the next active controller. A repeated request has either no further effect, or a response which
says that the request was already carried out.

The response to a heartbeat does not wait for a commit. The response reports a broker as unfenced only once the
unfencing is committed (`is_fenced`). The broker may act on the other fields even if the decision is never committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from odradek_metadata_quorum.controller import Controller, Decision
from odradek_metadata_quorum.controller.requests import HeartbeatRequest, HeartbeatResponse
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_metadata_quorum.errors import (
    LeadershipUnconfirmed,
    NotLeader,
    OutcomeUnknown,
    QuorumError,
)
from odradek_protocol.identity import BrokerId
from odradek_runtime.logs import event_log

P = ParamSpec("P")
Q = TypeVar("Q")
T = TypeVar("T")
IN_FLIGHT_MAX: Final = 2_000  # the most uncommitted decisions; the quorum itself accepts 10,000
# The most bytes of uncommitted decisions. The quorum itself accepts 64 MiB.
IN_FLIGHT_BYTES_MAX: Final = 32 << 20
TICK_S: Final = 0.05
OPENING_WAIT_S: Final = 1.0
PROPOSAL_TIMEOUT_S: Final = 30.0
CONFIRMATION_TIMEOUT_S: Final = 3.0  # a leader without a majority steps down sooner
_log = event_log(__name__)


class NotActive(Exception):
    """This controller is not active, or was deposed before the decision was committed."""


class Overloaded(Exception):
    """Too many decisions are not committed yet. The request had no effect, and the caller may repeat it later."""


class Unconfirmed(Exception):
    """No majority confirmed in time that this controller is still active. The caller may repeat the request."""


class Proposer(Protocol):
    """What the host of a controller needs of the Raft quorum: to propose entries, and to confirm its leadership."""

    async def propose(self, payload: bytes, *, epoch: int, timeout_s: float) -> int:
        """Replicate an entry, as `Quorum.propose` does."""

    async def confirm_leadership(self, *, epoch: int, timeout_s: float) -> None:
        """Return when a majority has confirmed the leadership, as `Quorum.confirm_leadership` does."""


class ControllerHost:
    """Runs one controller on the event loop, and proposes its decisions to the quorum."""

    def __init__(
        self, controller: Controller, clock_ms: Callable[[], int], fail: Callable[[Exception], None]
    ) -> None:
        """`fail` is called with an error after which the process must end. The other controllers then elect a new
        active controller.
        """
        self.controller = controller
        self._clock_ms = clock_ms
        self._fail = fail
        self._quorum: Proposer | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._tail: asyncio.Task[bool] | None = None
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._opened = asyncio.Event()
        self._resigned = asyncio.Event()
        self._streams: dict[BrokerId, int] = {}
        self.batches_committed_total = 0

    def connect(self, quorum: Proposer) -> None:
        """Set the quorum to which decisions are proposed. Call this before `run`."""
        self._quorum = quorum

    async def run(self) -> None:
        """Call the controller's `tick` periodically until this task is cancelled. All proposals run in
        the task group of this method.
        """
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            while True:
                await asyncio.sleep(0 if self.controller.is_repairing else TICK_S)
                for _ in range(3):
                    # Heartbeats that have arrived must be handled before `tick` (rule R24).
                    await asyncio.sleep(0)
                for decision in self.controller.tick(self._clock_ms()):
                    self._submit(decision)

    def on_active(self, epoch: int) -> None:
        """Tell the controller that this node has become the leader of the quorum, and propose its first batch."""
        _log.info("Became the active controller", epoch=epoch)
        self._resigned.clear()
        for decision in self.controller.became_active(epoch, self._clock_ms()):
            self._submit(decision)

    def on_resigned(self, epoch: int) -> None:
        """Tell the controller that this node is no longer the leader of the quorum."""
        _log.info("Stopped being the active controller", epoch=epoch)
        self._opened.clear()
        self._resigned.set()
        self.controller.resigned()
        self._tail = None

    def on_applied(self) -> None:
        """Wake requests that wait for the controller to become active. The state machine calls this
        after each entry.
        """
        if self.controller.is_active:
            self._opened.set()

    async def decide(
        self,
        handler: Callable[Concatenate[Workspace, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Decision[T]:
        """Run a handler of the controller, and wait until its decision is committed.

        Raises:
            NotActive: This controller is not active, or was deposed before the commit.
            Overloaded: Too many decisions are not committed yet. The request had no effect.
            BatchTooLarge: The records do not fit into one batch. The request had no effect.
            Unconfirmed: The decision has no records, and no majority confirmed the leadership in time.
        """
        epoch = await self._admitted()
        decision = self.controller.decide(self._clock_ms(), handler, *args, **kwargs)
        self._submit(decision)
        await self._committed(epoch, self._tail, has_records=bool(decision.records))
        return decision

    async def decide_each(
        self, handler: Callable[[Workspace, Q], T], requests: Iterable[Q]
    ) -> list[Decision[T]]:
        """Decide the pieces of a large request one by one, and wait until all are committed. Other tasks can run
        between two pieces. Raises the errors of `decide`.

        Each piece is a batch of its own. If this controller is deposed meanwhile, the first pieces may be committed and
        the others not.
        """
        decisions: list[Decision[T]] = []
        first_epoch: int | None = None
        for request in requests:
            epoch = await self._admitted()
            if first_epoch not in (None, epoch):
                raise NotActive("this controller was deposed between two batches of the request")
            first_epoch = epoch
            decisions.append(self.controller.decide(self._clock_ms(), handler, request))
            self._submit(decisions[-1])
            tail = self._tail
            await asyncio.sleep(0)
        if first_epoch is not None:
            has_records = any(decision.records for decision in decisions)
            await self._committed(first_epoch, tail, has_records=has_records)
        return decisions

    async def _admitted(self) -> int:
        """Wait until this controller may decide, and return its epoch.

        Raises NotActive if this controller is a standby or does not become active in time, and Overloaded if too many
        changes are not committed yet.
        """
        await self._wait_until_open()
        if self._in_flight >= IN_FLIGHT_MAX or self._in_flight_bytes >= IN_FLIGHT_BYTES_MAX:
            raise Overloaded(
                f"{self._in_flight} changes of {self._in_flight_bytes} bytes are not committed yet: try again later"
            )
        epoch = self.controller.epoch
        assert epoch is not None, "the controller is active but has no epoch"
        return epoch

    async def _committed(
        self, epoch: int, tail: asyncio.Task[bool] | None, *, has_records: bool
    ) -> None:
        """Wait until the proposal of the task `tail` and all earlier ones are committed. If the request has no records,
        then wait until a majority confirms the leadership. Raises NotActive or Unconfirmed.
        """
        if tail is not None and not await asyncio.shield(tail):
            raise NotActive("this controller was deposed before the commit")
        if not has_records:
            await self._confirm(epoch)
        if self.controller.epoch != epoch or not self.controller.is_active:
            raise NotActive("this controller was deposed")

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Handle a broker's heartbeat, on the active controller or a standby. The response does not wait
        for a commit.
        """
        decision = self.controller.heartbeat(self._clock_ms(), request)
        self._submit(decision)
        return decision.response

    def stream_opened(self, broker_id: BrokerId) -> None:
        """Record that a broker opened a heartbeat stream."""
        self._streams[broker_id] = self._streams.get(broker_id, 0) + 1

    def stream_ended(self, broker_id: BrokerId) -> None:
        """Record that a heartbeat stream of a broker ended. If it was the last open one, the broker counts as
        disconnected.
        """
        still_open = self._streams[broker_id] - 1
        if still_open:
            self._streams[broker_id] = still_open
            return
        del self._streams[broker_id]
        self.controller.stream_broken(broker_id, self._clock_ms())

    async def _confirm(self, epoch: int) -> None:
        assert self._quorum is not None, "a decision was requested before `connect`"
        try:
            await self._quorum.confirm_leadership(epoch=epoch, timeout_s=CONFIRMATION_TIMEOUT_S)
        except NotLeader as error:
            raise NotActive(str(error)) from None
        except LeadershipUnconfirmed as error:
            raise Unconfirmed(str(error)) from None

    async def _wait_until_open(self) -> None:
        if not self.controller.is_active and self.controller.epoch is not None:
            try:
                async with asyncio.timeout(OPENING_WAIT_S):
                    await self._opened.wait()
            except TimeoutError:
                pass
        if not self.controller.is_active:
            raise NotActive("this is not the active controller")

    def _submit(self, decision: Decision[object]) -> None:
        if decision.records:
            assert self._tasks is not None, "a decision was requested before `run`"
            epoch = self.controller.epoch
            assert epoch is not None, decision
            self._in_flight += 1
            self._in_flight_bytes += len(decision.payload)
            self._tail = self._tasks.create_task(self._propose(decision.payload, epoch))

    async def _propose(self, payload: bytes, epoch: int) -> bool:
        """Propose a batch, and return whether it was committed.

        Each batch has a task of its own. The tasks start in the order in which they were created, so batches are
        proposed in the order of the decisions.
        """
        assert self._quorum is not None, "a batch was proposed before `connect`"
        try:
            await self._quorum.propose(payload, epoch=epoch, timeout_s=PROPOSAL_TIMEOUT_S)
            self.batches_committed_total += 1
            return True
        except (NotLeader, OutcomeUnknown) as error:
            _log.info(
                "A metadata batch is perhaps not committed, because this controller lost its leadership or the"
                " time limit was reached",
                epoch=epoch,
                reason=str(error),
            )
            if isinstance(error, NotLeader) and self.controller.epoch == epoch:
                # The log lacks this decision, on which later decisions depend, although this controller is not deposed.
                self._fail(error)
            return False
        except QuorumError as error:
            # The log lacks this decision, on which later decisions depend.
            self._fail(error)
            return False
        finally:
            self._in_flight -= 1
            self._in_flight_bytes -= len(payload)

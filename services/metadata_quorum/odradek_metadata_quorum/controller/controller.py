"""The controller: every member of the quorum replays the metadata, and the active controller decides its changes.

    STANDBY  --became_active(epoch)-->  OPENING  --its first batch is replayed-->  ACTIVE
       ^                                   |                                         |
       +---------- resigned() -------------+-----------------------------------------+

In every state, `replay` applies committed records to the committed image. Heartbeats and broken heartbeat streams are
recorded in every state, too, so that a new active controller knows which brokers were silent before (rule R24).

In OPENING the controller proposes one batch of its own: a NoOp and, at the first start of a cluster, also the initial
feature levels, the incarnation id of the log and the initial configs. It makes no other decision until this batch is
replayed. Then all older entries are in the committed image, the controller knows that it is active, and the offset of
each later proposal is one more than the offset of the previous one.

In ACTIVE the controller makes decisions: `decide`, `heartbeat` and `tick` return `Decision`s. The caller must

1. propose the payloads of all decisions that have records, in the order in which the decisions were made, in the epoch
   that `became_active` was given;
2. send the response of a decision only when the records of this and all earlier decisions are committed and replayed on
   this controller;
3. call `resigned` as soon as the quorum reports the loss of leadership or a proposal fails. Decisions that are not
   committed by then get no successful response.

A handler is a function of a `Workspace` and a request. It returns the response, and adds records by `Workspace.write`.
The docstring of workspace.py explains how a decision sees the records of earlier decisions that are not committed yet.
If a handler raises an exception, because of a bug or because its batch is too large, its records are undone and nothing
is proposed.

No method waits, reads a clock or draws a random number. `now_ms` is the time of the caller's monotonic clock, and
`draws` is the caller's source of random numbers. The same calls result in the same decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from odradek_metadata_quorum.controller.brokers import fence_dead, heartbeat, is_stale_epoch
from odradek_metadata_quorum.controller.features import new_incarnation
from odradek_metadata_quorum.controller.leaders import pursue, rebalance
from odradek_metadata_quorum.controller.liveness import Fence, Liveness
from odradek_metadata_quorum.controller.requests import (
    BatchTooLarge,
    ControllerSettings,
    Decision,
    Draws,
    HeartbeatRequest,
    HeartbeatResponse,
)
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import BrokerId, MetadataOffset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.codec import encode_batch
from odradek_protocol.metadata.features import METADATA_VERSION, METADATA_VERSION_WITH_IDENTITY
from odradek_protocol.metadata.image import MetadataDelta, MetadataImage
from odradek_protocol.metadata.records import (
    NO_LEADER,
    Config,
    ConfigResourceType,
    FeatureLevel,
    MetadataBatch,
    MetadataRecord,
    NoOp,
)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Opening:
    epoch: int
    now_ms: int
    records_left: int  # the number of records of the first batch that are not replayed yet


class Controller:
    """The controller of one member of the quorum. The docstring of the module describes its states and the duties of
    its caller.
    """

    def __init__(self, settings: ControllerSettings, draws: Draws) -> None:
        self.settings = settings
        self.committed = MetadataImage()
        self._draws = draws
        self._liveness = Liveness(
            session_ms=settings.session_ms,
            grace_ms=settings.grace_ms,
            stall_ms_min=settings.stall_ms_min,
        )
        self._opening: _Opening | None = None
        self._work: Workspace | None = None
        self._in_flight: deque[tuple[MetadataOffset, tuple[MetadataRecord, ...]]] = deque()

    @property
    def is_active(self) -> bool:
        """Whether this is the active controller, so that `decide` may be called."""
        return self._work is not None

    @property
    def epoch(self) -> int | None:
        """The epoch in which this controller is active or opening; None on a standby."""
        if self._work is not None:
            return self._work.epoch
        return None if self._opening is None else self._opening.epoch

    @property
    def is_repairing(self) -> bool:
        """Whether there are partitions whose leader or ISR the next `tick` may have to change."""
        return self._work is not None and (self._work.is_repair_due or bool(self._work.unsettled))

    @property
    def image(self) -> MetadataImage:
        """The working image if this controller is active, otherwise the committed image."""
        return self.committed if self._work is None else self._work.image

    def why_fenced(self, broker_id: BrokerId) -> str:
        """Return the reason for which this controller last fenced a broker, as text; "" if it has never fenced the
        broker.
        """
        memory = None if self._work is None else self._work.memories.get(broker_id)
        return "" if memory is None else memory.fenced_because

    def became_active(self, epoch: int, now_ms: int) -> list[Decision[None]]:
        """Enter OPENING, because this member leads the quorum in `epoch` and has replayed all earlier entries."""
        assert self.epoch is None, (
            f"became active in epoch {epoch} while active in epoch {self.epoch}"
        )
        records: list[MetadataRecord] = [NoOp()]
        metadata_version = self.committed.metadata_version
        if not self.committed.features:
            levels = self.settings.initial_features
            records += [FeatureLevel(name=name, level=level) for name, level in levels]
            metadata_version = dict(levels)[METADATA_VERSION]
            if metadata_version >= METADATA_VERSION_WITH_IDENTITY:
                records.append(new_incarnation(self._draws))
            records += [
                Config(
                    resource_type=ConfigResourceType.BROKER,
                    resource_name="",
                    name=name,
                    value=value,
                )
                for name, value in self.settings.initial_configs
            ]
        self._opening = _Opening(epoch=epoch, now_ms=now_ms, records_left=len(records))
        next_offset = MetadataOffset(self.committed.offset + 1)
        return [_decision(None, tuple(records), epoch, metadata_version, next_offset)]

    def resigned(self) -> None:
        """Become a standby, and discard all decisions that are not committed."""
        self._opening = self._work = None
        self._in_flight.clear()
        self._liveness.deactivate()

    def replay(
        self,
        offset: MetadataOffset,
        epoch: int,
        record: MetadataRecord,
        delta: MetadataDelta | None = None,
    ) -> None:
        """Apply one committed record of the entry at `offset`, and add the changes to `delta`."""
        if self._work is not None and epoch == self._work.epoch and offset > self.committed.offset:
            expected = self._in_flight.popleft()[0] if self._in_flight else None
            assert offset == expected, (
                f"proposed for offset {expected}, committed at offset {offset}"
            )
        self.committed.replay(offset, epoch, record, delta)
        if self._opening is not None and epoch == self._opening.epoch:
            self._opening.records_left -= 1
            if self._opening.records_left == 0:
                self._open(self._opening)

    def decided(self, offset: MetadataOffset, epoch: int) -> tuple[MetadataRecord, ...] | None:
        """Return the records of the entry at `offset` if this controller decided them in `epoch`, so that the caller
        need not decode them. Return None otherwise.
        """
        if self._work is None or epoch != self._work.epoch or not self._in_flight:
            return None
        first, records = self._in_flight[0]
        return records if first == offset else None

    def advance(self, offset: MetadataOffset, epoch: int) -> None:
        """Set the offset and epoch of the committed image to those of a committed entry, even if it has no records."""
        self.committed.advance(offset, epoch)

    def restore(self, image: MetadataImage) -> None:
        """Replace the committed image by the image of a snapshot. Only a standby may be restored."""
        assert self.epoch is None, (
            f"a snapshot was restored into the active controller of epoch {self.epoch}"
        )
        self.committed = image

    def _open(self, opening: _Opening) -> None:
        self._opening = None
        self._work = Workspace(
            settings=self.settings,
            draws=self._draws,
            liveness=self._liveness,
            committed=self.committed,
            image=self.committed.copy(),
            epoch=opening.epoch,
            next_offset=MetadataOffset(self.committed.offset + 1),
            leaders_checked_at_ms=opening.now_ms,
        )
        unfenced = [b.broker_id for b in self.committed.brokers.values() if not b.fenced]
        self._liveness.activate(unfenced, now_ms=opening.now_ms)

    def tick(self, now_ms: int) -> list[Decision[None]]:
        """Return the decisions that are due by time: fencing, unclean elections, changes of partitions that earlier
        decisions did not complete, and balancing of leaders.

        The caller calls this about every 50 ms, after it has handled all heartbeats that have arrived, and again at
        once while `is_repairing`. On a standby the result is empty.
        """
        work = self._work
        if work is None:
            return []
        decisions: list[Decision[None]] = []
        unfenced = [b.broker_id for b in work.image.brokers.values() if not b.fenced]
        self._liveness.keep_watching(unfenced, now_ms=now_ms)
        fences: list[Fence] = self._liveness.tick(now_ms=now_ms)
        if fences:
            decisions.append(self.decide(now_ms, fence_dead, fences))
        decisions.append(self.decide(now_ms, pursue))
        decisions.append(self.decide(now_ms, _repair))
        decisions.append(self.decide(now_ms, rebalance))
        return [decision for decision in decisions if decision.records]

    def heartbeat(self, now_ms: int, request: HeartbeatRequest) -> Decision[HeartbeatResponse]:
        """Handle a broker's heartbeat. A standby handles it, too, but its response does not renew the
        broker's lease.
        """
        if self._work is not None:
            return self.decide(now_ms, heartbeat, request)
        broker = self.committed.brokers.get(request.broker_id)
        if is_stale_epoch(broker, request.broker_epoch):
            return Decision(
                response=HeartbeatResponse(error=ErrorCode.STALE_BROKER_EPOCH, seq=request.seq)
            )
        if broker is not None:  # heartbeats of unregistered brokers must not use memory
            self._liveness.heartbeat(request.broker_id, now_ms=now_ms)
        return Decision(response=HeartbeatResponse(seq=request.seq))

    def stream_broken(self, broker_id: BrokerId, now_ms: int) -> None:
        """Record that a broker has no open heartbeat stream to this controller any more."""
        self._liveness.stream_broken(broker_id, now_ms=now_ms)

    def decide(
        self,
        now_ms: int,
        handler: Callable[Concatenate[Workspace, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Decision[T]:
        """Run a handler on the working image, and return its response and records. The caller must propose the records.

        If the handler raises an exception, its records are undone and the exception is passed on.

        Raises:
            BatchTooLarge: The handler's records do not fit into one entry of the quorum's log. They are undone.
        """
        work = self._work
        assert work is not None, "a standby cannot decide"
        offset = work.next_offset
        work.now_ms = now_ms
        try:
            response = handler(work, *args, **kwargs)
            records, level = tuple(work.written), work.image.metadata_version
            decision = _decision(response, records, work.epoch, level, offset)
            if len(decision.payload) > self.settings.batch_bytes_max:
                raise BatchTooLarge(
                    f"this request needs a batch of {len(decision.payload)} bytes of metadata, but at most"
                    f" {self.settings.batch_bytes_max} bytes are allowed: send several smaller requests"
                )
        except Exception:
            self._undo(work)
            raise
        if work.take_written():
            self._in_flight.append((offset, decision.records))
        return decision

    def _undo(self, work: Workspace) -> None:
        work.written.clear()
        work.image = self.committed.copy()
        for offset, records in self._in_flight:
            for record in records:
                work.image.replay(offset, work.epoch, record)


def _decision(
    response: T,
    records: tuple[MetadataRecord, ...],
    epoch: int,
    metadata_version: int,
    next_offset: MetadataOffset,
) -> Decision[T]:
    if not records:
        return Decision(response=response, offset=MetadataOffset(next_offset - 1))
    batch = MetadataBatch(controller_epoch=epoch, records=records)
    payload = encode_batch(batch, level=metadata_version)
    return Decision(response=response, records=records, payload=payload, offset=next_offset)


def _repair(work: Workspace) -> None:
    """Settle partitions whose changes did not fit into earlier batches, or that an earlier controller
    did not settle.
    """
    if work.is_repair_due and not work.unsettled:
        work.is_repair_due = False
        live = {broker.broker_id for broker in work.image.brokers.values() if broker.is_live}
        work.unsettled = work.elections_first(
            state
            for state in work.image.partitions()
            if state.leader == NO_LEADER or not live.issuperset(state.isr)
        )
    work.settle_next(work.unsettled)

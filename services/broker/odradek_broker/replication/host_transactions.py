"""The transactional requests of one replica. The replica's host asks transaction coordinators and writes
markers, and logs markers that were lost or that contradict the coordinator's decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, assert_never

from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.host_ports import (
    Registration,
    RegistrationResponse,
    TransactionRegistrar,
)
from odradek_broker.replication.transaction_incidents import (
    IncidentKind,
    TransactionIncident,
)
from odradek_protocol.identity import (
    NO_LEADER_EPOCH,
    PartitionIndex,
    ProducerId,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.control import ControlType, encode_marker
from odradek_runtime.clock import Clock
from odradek_runtime.logs import event_log

OnMarked = Callable[[Sequence[ErrorCode]], None]
TransactionEffect: TypeAlias = (
    fx.RegisterTransaction | fx.AnswerMarkers | fx.OrphanEnded | fx.TransactionTorn
)
_NO_COORDINATOR = RegistrationResponse(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, PartitionIndex(-1), NO_LEADER_EPOCH
)
_log = event_log(__name__)


class Owner(Protocol):
    """The host of one replica, as HostTransactions uses it."""

    topic: TopicName
    partition: TopicIdPartition
    is_removed: bool

    def step(self, event: ev.Event) -> None:
        """Let the replica handle an event."""


class HostTransactions:
    """The transactional requests of one replica that wait for a response. Only the event loop uses this object."""

    __slots__ = ("_clock", "_incidents", "_last_request_id", "_owner", "_writes")

    def __init__(self, owner: Owner, counters: Counters, clock: Clock) -> None:
        self._owner = owner
        self._incidents = counters.transaction_incidents
        self._clock = clock
        self._writes: dict[int, OnMarked] = {}
        self._last_request_id = 0

    def write(self, markers: Sequence[ev.Marker], *, on_done: OnMarked, deadline_ms: int) -> None:
        """Write transaction markers, all in one append. `on_done` is called once with a code for each marker, when the
        markers are committed or refused.
        """
        self._last_request_id += 1
        self._writes[self._last_request_id] = on_done
        self._owner.step(
            ev.MarkersRequested(
                request_id=self._last_request_id, markers=tuple(markers), deadline_ms=deadline_ms
            )
        )

    def end_hanging(
        self,
        producer_id: ProducerId,
        entry: object,
        *,
        is_commit: bool,
        on_done: OnMarked,
        deadline_ms: int,
    ) -> None:
        """End a transaction that no coordinator will end, unless the producer's state in the log differs
        from `entry`.
        """
        self._last_request_id += 1
        self._writes[self._last_request_id] = on_done
        self._owner.step(
            ev.HangingTransactionResolved(
                request_id=self._last_request_id,
                producer_id=producer_id,
                entry=entry,
                is_commit=is_commit,
                deadline_ms=deadline_ms,
            )
        )

    def carry_out(self, effect: TransactionEffect, registrar: TransactionRegistrar | None) -> None:
        """Carry out an effect of the replica that concerns transactions."""
        match effect:
            case fx.RegisterTransaction():
                self._register(effect, registrar)
            case fx.AnswerMarkers():
                self._written(effect)
            case fx.OrphanEnded():
                self._orphan_ended(effect)
            case fx.TransactionTorn():
                self._torn(effect)
            case _:
                assert_never(effect)

    def _register(
        self, effect: fx.RegisterTransaction, registrar: TransactionRegistrar | None
    ) -> None:
        """Ask the coordinator to confirm the producer's transaction, and pass the coordinator's response to the
        replica.
        """
        owner = self._owner

        def responded(response: RegistrationResponse) -> None:
            if not owner.is_removed:
                owner.step(
                    ev.TransactionVerified(
                        guard=effect.guard,
                        error_code=response.error,
                        coordinator_partition=response.coordinator_partition,
                        coordinator_epoch=response.coordinator_epoch,
                        last_outcome=response.last_outcome,
                    )
                )

        if registrar is None:
            responded(_NO_COORDINATOR)
            return
        registrar.register(
            Registration(
                partition=owner.partition,
                topic=owner.topic,
                transactional_id=effect.transactional_id,
                producer_id=effect.producer_id,
                producer_epoch=effect.producer_epoch,
                mode=effect.mode,
                deadline_ms=effect.deadline_ms,
            ),
            responded,
        )

    def _written(self, effect: fx.AnswerMarkers) -> None:
        """Pass the outcome to the caller of `write` or `end_hanging`.

        An exception of the caller's `on_done` is only logged, so that it does not take this partition offline.
        """
        try:
            self._writes.pop(effect.request_id)(effect.error_codes)
        except Exception as error:
            _log.error("Failed to report whether transaction markers were written", exc=error)

    def _orphan_ended(self, effect: fx.OrphanEnded) -> None:
        _log.error(
            "Ended a transaction whose marker was lost: its producer has begun the next transaction",
            partition=str(self._owner),
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
            first_offset=effect.first_offset,
            outcome="commit" if effect.is_commit else "abort",
        )
        self._note(IncidentKind.ORPHANED, effect)

    def _torn(self, effect: fx.TransactionTorn) -> None:
        _log.error(
            "Transaction ended in this partition with another outcome than its coordinator decided",
            partition=str(self._owner),
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
            first_offset=effect.first_offset,
            marker_offset=effect.marker_offset,
            decided="commit" if effect.is_commit else "abort",
        )
        self._note(IncidentKind.TORN, effect)

    def _note(self, kind: IncidentKind, effect: fx.OrphanEnded | fx.TransactionTorn) -> None:
        self._incidents.add(
            TransactionIncident(
                kind=kind,
                topic=self._owner.topic,
                partition=self._owner.partition.partition,
                producer_id=effect.producer_id,
                producer_epoch=effect.producer_epoch,
                first_offset=effect.first_offset,
                is_commit=effect.is_commit,
                wall_ms=self._clock.wall_ms(),
            )
        )


def marker_batches(effect: fx.AppendMarkers, *, now_ms: int) -> bytes:
    """Return control batches for these markers, each with one record and its final offset."""
    return b"".join(
        encode_marker(
            ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=now_ms,
            base_offset=effect.base_offset + number,
            leader_epoch=effect.leader_epoch,
        )
        for number, marker in enumerate(effect.markers)
    )

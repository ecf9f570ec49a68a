"""Writes markers at a leader: the control batches that end transactions in this partition, from the request to the
response.

    request --> AppendMarkers --> appended --> waits for the high watermark --> response
       +--> a marker is refused and not written

The markers of one request are one append. The response NONE tells a coordinator that its marker can no longer be lost,
so the response waits for the high watermark, like that of a produce with acks=all.

A marker is refused

- if this broker knows a newer coordinator of the same transactional ids (`CoordinatorEpochs`). Before a batch of a
  later transaction is appended, its coordinator confirms the transaction, and this broker learns that coordinator's
  epoch. So a late marker of a deposed coordinator cannot end a transaction that the deposed coordinator does not know.
  If this broker knows no newer coordinator, the late marker does no harm: the new coordinator sends the same marker,
  because the decision was committed before any marker was sent.
- if the marker's producer epoch is older than the one in the log. With KIP-890 each transaction has its own producer
  epoch, and the transaction's marker has the next epoch (`is_bumped`). A marker with that next epoch may be a
  duplicate. If no transaction is open, the duplicate is appended again, and when it is committed, the first copy is
  committed too. If a transaction is open, that transaction is a later one, so the duplicate is refused, because it must
  not end that transaction.

A leader also ends a transaction whose marker was lost: when its producer begins a later transaction (`end_orphan`), or
when no coordinator knows the transaction any more (`end_hanging`). The leader's own markers have the producer epoch of
the transaction's batches and the coordinator epoch -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_broker.partition.effects import (
    AnswerMarkers,
    AppendMarkers,
    Effect,
    OrphanEnded,
    TransactionTorn,
)
from odradek_broker.partition.events import (
    HangingTransactionResolved,
    Marker,
    MarkersRequested,
)
from odradek_broker.partition.log_positions import LogPositions
from odradek_broker.partition.produces import ProducerSequences
from odradek_protocol.identity import LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode

NO_COORDINATOR: Final = PartitionIndex(-1)


class CoordinatorEpochs:
    """The latest leader epoch of each partition of `__transaction_state` that this broker knows.

    All replicas of a broker share one object. Its epochs come from the metadata image, from responses to registrations,
    and from markers. After a restart the image comes first, because no replica becomes a leader without the image.
    """

    __slots__ = ("_epochs",)

    def __init__(self) -> None:
        self._epochs: dict[PartitionIndex, LeaderEpoch] = {}

    def heard(self, partition: PartitionIndex, epoch: LeaderEpoch) -> bool:
        """Record the leader epoch of a coordinator. Return False if a newer epoch is known, so this coordinator is
        deposed.
        """
        latest = self._epochs.get(partition)
        if latest is not None and epoch < latest:
            return False
        self._epochs[partition] = epoch
        return True


@dataclass(slots=True)
class _Write:
    """A request to write markers, of which at least one is accepted. `error_codes` has one entry for each marker, NONE
    for the accepted ones.
    """

    request_id: int
    error_codes: tuple[ErrorCode, ...]
    deadline_ms: int
    end_offset: Offset = Offset(-1)


class MarkerWrites:
    """The requests to write markers in one leader epoch. The broker bounds the number of requests that wait."""

    __slots__ = (
        "_appending",
        "_coordinators",
        "_is_appending",
        "_leader_epoch",
        "_log",
        "_producers",
        "_waiters",
    )

    def __init__(
        self,
        leader_epoch: LeaderEpoch,
        *,
        log: LogPositions,
        producers: ProducerSequences,
        coordinators: CoordinatorEpochs,
    ) -> None:
        self._leader_epoch = leader_epoch
        self._log = log
        self._producers = producers
        self._coordinators = coordinators
        self._is_appending = False
        self._appending: _Write | None = None  # None also while the leader appends its own marker
        self._waiters: list[_Write] = []  # in the order of their end offsets

    def __len__(self) -> int:
        return len(self._waiters)

    def request(self, event: MarkersRequested, *, is_under_min_isr: bool) -> list[Effect]:
        """Check the markers of a request, and append those that are not refused."""
        assert not self._is_appending, f"{event} in the middle of an append"
        effects: list[Effect] = []
        error_codes: list[ErrorCode] = []
        accepted: dict[ProducerId, ProducerEpoch] = {}
        for marker in event.markers:
            code = self._judge(marker, accepted.get(marker.producer_id))
            if code is ErrorCode.NONE and is_under_min_isr:
                code = ErrorCode.NOT_ENOUGH_REPLICAS
            if code is ErrorCode.NONE:
                accepted[marker.producer_id] = marker.producer_epoch
            torn = self._torn(marker)
            if torn is not None and code is not ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                effects.append(torn)
            error_codes.append(code)
        write = _Write(event.request_id, tuple(error_codes), event.deadline_ms)
        if not accepted:
            return [*effects, self._respond(write)]
        self._is_appending, self._appending = True, write
        markers = tuple(
            marker
            for marker, code in zip(event.markers, error_codes, strict=True)
            if code is ErrorCode.NONE
        )
        return [*effects, self._append(markers)]

    def end_orphan(self, orphan: OrphanEnded) -> list[Effect]:
        """Append a marker for a transaction whose own marker was lost. The new marker has the producer epoch of the
        transaction's batches.
        """
        assert not self._is_appending, f"{orphan} in the middle of an append"
        marker = _own_marker(orphan.producer_id, orphan.producer_epoch, orphan.is_commit)
        self._is_appending = True
        return [orphan, self._append((marker,))]

    def end_hanging(
        self,
        event: HangingTransactionResolved,
        *,
        is_registering: bool,
        is_under_min_isr: bool,
    ) -> list[Effect]:
        """Append a marker for a transaction that no coordinator will end, unless the producer's state has changed since
        the coordinators were asked, or a batch of the producer waits for a coordinator (`is_registering`).
        """
        entry = self._producers.entry(event.producer_id)
        if (
            is_registering
            or entry is None
            or entry != event.entry
            or entry.transaction_first_offset < 0
        ):
            write = _Write(event.request_id, (ErrorCode.INVALID_TXN_STATE,), event.deadline_ms)
            return [self._respond(write)]
        marker = _own_marker(event.producer_id, entry.epoch, event.is_commit)
        request = MarkersRequested(
            request_id=event.request_id, markers=(marker,), deadline_ms=event.deadline_ms
        )
        return self.request(request, is_under_min_isr=is_under_min_isr)

    def appended(self, end_offset: Offset) -> None:
        """Let the request of the append wait for the high watermark, because its markers are in the log."""
        assert self._is_appending, "MarkersAppended without a preceding AppendMarkers"
        write, self._appending = self._appending, None
        self._is_appending = False
        self._log.appended(end_offset)
        if write is not None:
            write.end_offset = end_offset
            self._waiters.append(write)

    def failed(self) -> list[Effect]:
        """Fail the request of the append in progress, because the write failed or was refused."""
        write, self._appending = self._appending, None
        self._is_appending = False
        return [self._respond(write, ErrorCode.KAFKA_STORAGE_ERROR)] if write is not None else []

    def committed(self, high_watermark: Offset) -> list[Effect]:
        """Respond to the requests whose markers are below the high watermark."""
        waiters = self._waiters
        count = 0
        while count < len(waiters) and waiters[count].end_offset <= high_watermark:
            count += 1
        if not count:
            return []
        self._waiters = waiters[count:]
        return [self._respond(write) for write in waiters[:count]]

    def expire(self, now_ms: int) -> list[Effect]:
        """Respond to requests whose deadline has passed; their markers may still be committed."""
        late = [write for write in self._waiters if write.deadline_ms <= now_ms]
        if not late:
            return []
        self._waiters = [write for write in self._waiters if write.deadline_ms > now_ms]
        return [self._respond(write, ErrorCode.REQUEST_TIMED_OUT) for write in late]

    def resign(self, error_code: ErrorCode) -> list[Effect]:
        """Fail all waiting requests, because the leader epoch is over. The next leader may or may not have their
        markers.
        """
        assert not self._is_appending, "resigning in the middle of an append of markers"
        writes, self._waiters = self._waiters, []
        return [self._respond(write, error_code) for write in writes]

    def _append(self, markers: tuple[Marker, ...]) -> AppendMarkers:
        return AppendMarkers(
            base_offset=self._log.log_end, leader_epoch=self._leader_epoch, markers=markers
        )

    def _judge(self, marker: Marker, accepted_epoch: ProducerEpoch | None) -> ErrorCode:
        """Return NONE if the marker may be appended, or else the error. `accepted_epoch` is the producer epoch of an
        earlier marker for the same producer in this request; None if there is none.
        """
        is_own = marker.coordinator_partition == NO_COORDINATOR
        if not is_own and not self._coordinators.heard(
            marker.coordinator_partition, marker.coordinator_epoch
        ):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        entry = self._producers.entry(marker.producer_id)
        if entry is None and accepted_epoch is None:
            return ErrorCode.NONE
        if accepted_epoch is not None:
            known_epoch, is_open = accepted_epoch, False
        else:
            assert entry is not None
            known_epoch, is_open = entry.epoch, entry.transaction_first_offset >= 0
            if not is_own and marker.coordinator_epoch < entry.coordinator_epoch:
                return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if marker.producer_epoch < known_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if marker.is_bumped and marker.producer_epoch == known_epoch and is_open:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.NONE

    def _torn(self, marker: Marker) -> TransactionTorn | None:
        """Return a report if the marker contradicts the outcome with which its transaction has already ended in this
        partition; otherwise None.

        With transaction.version 0 or 1, a producer has many transactions in one epoch. A marker of that epoch is then
        compared only with a marker that a leader wrote by itself.
        """
        entry = self._producers.entry(marker.producer_id)
        ended = self._producers.ended(marker.producer_id)
        if entry is None or entry.transaction_first_offset >= 0 or ended is None:
            return None
        data_epoch = marker.producer_epoch - 1 if marker.is_bumped else marker.producer_epoch
        is_distinct = ended.marker_epoch > ended.data_epoch or ended.is_by_leader
        if data_epoch != ended.data_epoch or marker.is_commit == ended.is_commit or not is_distinct:
            return None
        return TransactionTorn(
            producer_id=marker.producer_id,
            producer_epoch=ended.data_epoch,
            first_offset=ended.first_offset,
            marker_offset=ended.marker_offset,
            is_commit=marker.is_commit,
        )

    def _respond(self, write: _Write, failure: ErrorCode = ErrorCode.NONE) -> AnswerMarkers:
        error_codes = write.error_codes
        if failure is not ErrorCode.NONE:
            error_codes = tuple(
                failure if code is ErrorCode.NONE else code for code in write.error_codes
            )
        return AnswerMarkers(
            request_id=write.request_id, error_codes=error_codes, leader_epoch=self._leader_epoch
        )


def _own_marker(producer_id: ProducerId, epoch: ProducerEpoch, is_commit: bool) -> Marker:
    return Marker(producer_id, epoch, is_commit, NO_COORDINATOR, LeaderEpoch(-1), is_bumped=False)

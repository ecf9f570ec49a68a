"""One replica of one partition: what its broker decides about it. INTERFACE, body follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from odradek_protocol.identity import BrokerId, LeaderEpoch, Offset, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode

from odradek_broker.partition.effects import Effect, Role
from odradek_broker.partition.events import Event, FollowerSession
from odradek_broker.partition.producer_sequences import ProducerSequences


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """What a broker sets for all its replicas."""

    replica_lag_time_max_ms: int = 10_000
    """`replica.lag.time.max.ms`: a follower that was not caught up for longer leaves the ISR."""
    isr_resend_ms: int = 1_000
    """An ISR proposal that got no answer, or whose image has not come, is sent again."""
    attach_retry_min_ms: int = 50
    attach_retry_max_ms: int = 500
    """A refused Attach is repeated after the first, doubling up to the second."""
    attach_timeout_ms: int = 3_000
    """An Attach without an answer is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAtOpen:
    """The log as recovery left it. `epochs`: (leader epoch, first offset under it), rising."""

    log_start: Offset
    log_end: Offset
    durable_end: Offset
    high_watermark: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]


@dataclass(frozen=True, slots=True)
class DataDue:
    """What a follower has not been sent. Send batches from `from_offset` up to `log_end` (as many
    as fit), or none of them when the two are equal: then only the high watermark is news, which
    may wait 50 ms for company. `high_watermark` and `log_start` go with every Data: read them, by
    asking again, when the message is built, not when its bytes were ordered from the disk."""

    from_offset: Offset
    log_end: Offset
    high_watermark: Offset
    log_start: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class ReadBound:
    """What a consumer may read here: [start_offset, end_offset), unless `error_code` is set."""

    error_code: ErrorCode
    start_offset: Offset
    end_offset: Offset
    leader_epoch: LeaderEpoch


class Replica:
    """One replica. Owned by one task; nothing here waits, and `step` is cheap."""

    def __init__(
        self,
        *,
        partition: TopicIdPartition,
        broker_id: BrokerId,
        settings: ReplicaSettings,
        log: LogAtOpen,
        producers: ProducerSequences,
        attach_seqs: Iterator[int],
    ) -> None:
        """`attach_seqs`: one `itertools.count(1)` per broker process, shared by its replicas, so
        that an Attach never bears a number that an earlier replica of the partition used."""
        raise NotImplementedError

    def step(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Take one event; the effects are to be done in order before the next one."""
        raise NotImplementedError

    # --- reading the state -----------------------------------------------------------------------

    partition: TopicIdPartition
    role: Role
    leader: BrokerId
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start: Offset
    log_end: Offset

    @property
    def is_under_min_isr(self) -> bool:
        """We lead, and the committed ISR is smaller than min.insync.replicas."""
        raise NotImplementedError

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Of the last record; for Attach and ReportLogEnds."""
        raise NotImplementedError

    def data_due(self, session: FollowerSession) -> DataDue | None:
        """What to push in this session; None: nothing, or it is not attached there."""
        raise NotImplementedError

    def may_answer(self, leader_epoch: LeaderEpoch, *, lease_until_ms: int, now_ms: int) -> bool:
        """The gate that every answer of a leader passes at the socket, not at its start (R13)."""
        raise NotImplementedError

    def read_bound(
        self, *, last_stable_offset: Offset, is_committed_only: bool, client_leader_epoch: int = -1
    ) -> ReadBound:
        """How far a consumer may read here, leader or follower (R14, R15)."""
        raise NotImplementedError

    def latest_offset(
        self, *, last_stable_offset: Offset, is_committed_only: bool, client_leader_epoch: int = -1
    ) -> ReadBound:
        """ListOffsets(latest): `end_offset` is the answer; OFFSET_NOT_AVAILABLE while the high
        watermark lies below the start of our epoch, as the last leader may have shown more."""
        raise NotImplementedError

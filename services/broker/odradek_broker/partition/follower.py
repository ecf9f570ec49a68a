"""The follower: the work of a replica while it follows one leader in one leader epoch.

    DETACHED --SessionReady, or the retry is due--> ATTACHING --Attached--> STREAMING
       ^                                             |     ^                   |
       |                                    Diverged,|     |Truncated,         |Data that does
       |                                Snapshotless v     |LogReset           |not fit
       |                                           CUTTING-+                   |
       +---- Refused, the session's end -- from ATTACHING or STREAMING         +--> ATTACHING

A follower starts without truncating anything (rule R2): only the leader knows where the two logs diverge, and the
leader reports it in the response to an Attach (rule R4). In the phase CUTTING a TruncateTo or ResetLog is in progress.
Until that effect has completed, nothing else changes the log, a change of role waits (replica.py), and the follower
only records which session opened or closed.

Invariants:

- The log end rises only by Data that arrives in STREAMING, in this session and leader epoch, with the log end as its
  base offset (rule R5). The log end falls only after a response to the Attach that reported the current log end.
- The high watermark never passes the log end, and falls only together with it.
- The follower acknowledges nothing until the leader has responded with Attached in this epoch.

What cannot happen: a gap in the log, or a batch of one lineage after records of another. A Data message that was
delayed until after another Attach has a different base offset, or arrives in a different phase, so it is not appended.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from odradek_broker.partition.effects import (
    AdvanceLogStart,
    Append,
    Effect,
    HighWatermarkMoved,
    ResetLog,
    SendAck,
    SendAttach,
    SendDetach,
    Sync,
    TruncateTo,
)
from odradek_broker.partition.events import (
    AttachedReceived,
    DataReceived,
    DivergedReceived,
    LeaderSessionClosed,
    RefusedReceived,
    SessionReady,
    SnapshotlessReceived,
)
from odradek_broker.partition.log_positions import LogPositions
from odradek_broker.partition.settings import ReplicaSettings
from odradek_broker.partition.truncation import Divergence, cut_offset
from odradek_protocol.identity import BrokerId, LeaderEpoch, Offset


class Phase(Enum):
    """The phase of a follower. The docstring of the module shows the transitions."""

    DETACHED = "detached"
    ATTACHING = "attaching"
    CUTTING = "cutting"
    STREAMING = "streaming"


class Follower:
    """The state and the event handlers of a follower, for one leader in one leader epoch."""

    __slots__ = (
        "_acked",
        "_appending",
        "_attach_seq",
        "_attach_seqs",
        "_log",
        "_retry_at_ms",
        "_retry_ms",
        "_session_id",
        "_settings",
        "leader",
        "leader_epoch",
        "phase",
    )

    def __init__(
        self,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        *,
        log: LogPositions,
        attach_seqs: Iterator[int],
        settings: ReplicaSettings,
    ) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.phase = Phase.DETACHED
        self._log = log
        self._attach_seqs = attach_seqs
        self._settings = settings
        self._session_id: int | None = None
        self._attach_seq = 0
        """The number of the last Attach that was sent."""
        self._acked: tuple[Offset, bool, Offset] | None = None
        """The position, whether it is synced, and the log start of the last acknowledgement; None: none was sent since
        the last Attached response.
        """
        self._appending: DataReceived | None = None
        self._retry_at_ms = 0
        self._retry_ms = settings.attach_retry_min_ms

    def on_session_ready(self, event: SessionReady, now_ms: int) -> list[Effect]:
        """Attach in this session from now on, and detach from the session that it replaces."""
        if event.leader != self.leader:
            return []
        effects: list[Effect] = []
        if self._session_id not in (None, event.session_id) and self.phase is not Phase.DETACHED:
            effects.append(SendDetach(session_id=self._session_id))
        self._session_id = event.session_id
        if self.phase is not Phase.CUTTING:
            self._attach(effects, now_ms)
        return effects

    def on_session_closed(self, event: LeaderSessionClosed, now_ms: int) -> list[Effect]:
        """Handle the end of the stream to the leader. The broker opens another one, and reports SessionReady."""
        if event.session_id == self._session_id:
            self._session_id = None
            if self.phase is not Phase.CUTTING:
                self.phase = Phase.DETACHED
        return []

    def adopt(self) -> list[Effect]:
        """Acknowledge again if the image changed the topic's durability, because the durability decides whether the
        written or the synced end is acknowledged.
        """
        return self.on_synced()

    def resign(self) -> list[Effect]:
        """Detach from the leader, because the leader epoch ended, this broker is no replica any more, or the topic was
        deleted.
        """
        assert self._appending is None, f"resigning in the middle of {self._appending}"
        if self._session_id is None or self.phase is Phase.DETACHED:
            return []
        return [SendDetach(session_id=self._session_id)]

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Send the Attach message to the leader again if it was refused or got no response."""
        effects: list[Effect] = []
        waits = self.phase in (Phase.DETACHED, Phase.ATTACHING)
        if waits and self._session_id is not None and now_ms >= self._retry_at_ms:
            self._attach(effects, now_ms)
        return effects

    @property
    def waits_for_time(self) -> bool:
        """Whether the follower waits for a point in time: a later `on_tick` may repeat an Attach."""
        return self._session_id is not None and self.phase in (Phase.DETACHED, Phase.ATTACHING)

    def on_attached(self, event: AttachedReceived, now_ms: int) -> list[Effect]:
        """Acknowledge at once the records that this log already has, because an Attach is no acknowledgement for the
        leader.
        """
        if not self._is_awaited(event):
            return []
        self.phase = Phase.STREAMING
        self._retry_ms = self._settings.attach_retry_min_ms
        self._acked = None
        effects: list[Effect] = []
        self._follow(effects, event.high_watermark, event.log_start)
        self.acknowledge(effects)
        self._sync(effects)
        return effects

    def on_diverged(self, event: DivergedReceived, now_ms: int) -> list[Effect]:
        """Truncate the log (rule R4), but only if the response is about the current log end. After a response about an
        earlier log end, the truncation would remove records that were appended since.
        """
        log = self._log
        if not self._is_awaited(event) or (event.for_log_end, event.for_last_epoch) != (
            log.log_end,
            log.last_epoch,
        ):
            return []
        cut = cut_offset(log, Divergence(event.epoch, event.end_offset))
        if cut < 0:
            self._retry_later(now_ms)
            return []
        return [self._cut(cut) if cut >= log.log_start else self._reset(cut)]

    def on_snapshotless(self, event: SnapshotlessReceived, now_ms: int) -> list[Effect]:
        """Delete the log and start an empty one at the leader's log start: the leader has deleted the records that this
        log needs next, or the two logs have nothing in common.
        """
        if not self._is_awaited(event):
            return []
        # A leader never sends a negative offset, unless its message is damaged.
        if event.log_start < 0:
            self._retry_later(now_ms)
            return []
        return [self._reset(event.log_start)]

    def on_refused(self, event: RefusedReceived, now_ms: int) -> list[Effect]:
        """Attach again after a delay. If the leader is in a newer leader epoch, this Follower is replaced as soon as
        the image has that epoch.
        """
        ends_stream = event.attach_seq == 0 and self.phase is Phase.STREAMING
        if not ends_stream and not (
            self.phase is Phase.ATTACHING and event.attach_seq == self._attach_seq
        ):
            return []
        if event.session_id == self._session_id:
            self._retry_later(now_ms)
        return []

    def on_cut(self, now_ms: int) -> list[Effect]:
        """Attach again from the new log end, because the log was truncated or reset."""
        assert self.phase is Phase.CUTTING, f"cut while {self.phase}"
        self.phase = Phase.DETACHED
        effects: list[Effect] = []
        if self._session_id is not None:
            self._attach(effects, now_ms)
        return effects

    def _is_awaited(
        self, event: AttachedReceived | DivergedReceived | SnapshotlessReceived
    ) -> bool:
        """Return whether this is the response to the Attach that is in progress."""
        return (
            self.phase is Phase.ATTACHING
            and event.session_id == self._session_id
            and event.attach_seq == self._attach_seq
            and event.leader_epoch == self.leader_epoch
        )

    def _attach(self, effects: list[Effect], now_ms: int) -> None:
        assert self._session_id is not None, "attaching without a session"
        log = self._log
        self.phase = Phase.ATTACHING
        self._attach_seq = next(self._attach_seqs)
        self._retry_at_ms = now_ms + self._settings.attach_timeout_ms
        effects.append(
            SendAttach(
                session_id=self._session_id,
                attach_seq=self._attach_seq,
                leader_epoch=self.leader_epoch,
                log_end=log.log_end,
                last_epoch=log.last_epoch,
                log_start=log.log_start,
            )
        )

    def _retry_later(self, now_ms: int) -> None:
        self.phase = Phase.DETACHED
        self._retry_at_ms = now_ms + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, self._settings.attach_retry_max_ms)

    def _cut(self, end_offset: Offset) -> Effect:
        self.phase = Phase.CUTTING
        self._log.cutting_to, self._log.is_reset = end_offset, False
        return TruncateTo(end_offset=end_offset)

    def _reset(self, start_offset: Offset) -> Effect:
        self.phase = Phase.CUTTING
        self._log.cutting_to, self._log.is_reset = start_offset, True
        return ResetLog(start_offset=start_offset)

    def on_data(self, event: DataReceived, now_ms: int) -> list[Effect]:
        """Append data that begins exactly at the log end; drop any other data, and attach again (rule R5)."""
        if event.session_id != self._session_id or self.phase is not Phase.STREAMING:
            return []
        log = self._log
        if event.leader_epoch != self.leader_epoch or event.base_offset != log.log_end:
            effects: list[Effect] = []
            self._attach(effects, now_ms)
            return effects
        if not self._is_sound(event):
            # The leader's copy or the connection is damaged. Wait before attaching again, so that the leader does not
            # resend the same data in a tight loop.
            self._retry_later(now_ms)
            return [SendDetach(session_id=event.session_id)]
        if event.end_offset == event.base_offset:
            effects = []
            self._follow(effects, event.high_watermark, event.log_start)
            self.acknowledge(effects)
            return effects
        # This replica led in a later epoch but wrote no record in it. Truncating to the log end removes that epoch.
        if event.epochs[0][0] < log.epochs.latest:
            return [SendDetach(session_id=event.session_id), self._cut(log.log_end)]
        first = event.epochs[0][1]
        # The log is empty, and starts in the middle of the leader's batch.
        if first < log.log_end:
            log.begin_at(first)
        self._appending = event
        return [
            Append(
                base_offset=min(first, event.base_offset),
                leader_epoch=self.leader_epoch,
                request_id=None,
            )
        ]

    def on_appended(self, end_offset: Offset) -> list[Effect]:
        """Acknowledge the leader's batches, which are in the log now."""
        event, log = self._appending, self._log
        assert event is not None, "Appended without a preceding Append"
        assert end_offset == event.end_offset, f"append ended at {end_offset}: {event}"
        self._appending = None
        log.appended(end_offset)
        for epoch, start in event.epochs:
            log.epochs.enter(epoch, start)
        effects: list[Effect] = []
        self._follow(effects, event.high_watermark, event.log_start)
        self.acknowledge(effects)
        self._sync(effects)
        return effects

    def on_append_failed(self) -> None:
        self._appending = None

    def on_append_refused(self, now_ms: int) -> list[Effect]:
        """Detach, because the write was refused (the disk may be full), and ask for the same data again later."""
        self._appending = None
        self._retry_later(now_ms)
        assert self._session_id is not None, "data without a session"
        return [SendDetach(session_id=self._session_id)]

    def on_synced(self) -> list[Effect]:
        """Acknowledge the synced end if the topic has durability=fsync (rule R6). Sync again if records were appended
        since.
        """
        effects: list[Effect] = []
        if self.phase is not Phase.CUTTING:
            self.acknowledge(effects)
            self._sync(effects)
        return effects

    def acknowledge(self, effects: list[Effect]) -> None:
        """Acknowledge this replica's position and log start, if either changed since the last acknowledgement and the
        follower is attached (rule R6).
        """
        log = self._log
        position = (log.position, log.is_fsync, log.log_start)
        if self.phase is not Phase.STREAMING or position == self._acked:
            return
        assert self._session_id is not None, "streaming without a session"
        self._acked = position
        effects.append(
            SendAck(
                session_id=self._session_id,
                leader_epoch=self.leader_epoch,
                ack_to=position[0],
                is_synced=position[1],
                log_start=position[2],
            )
        )

    def _is_sound(self, event: DataReceived) -> bool:
        """Return whether the leader's data can be appended: its CRCs match, its epochs rise and are not above the
        leader epoch, and this log has none of its batches yet.
        """
        log = self._log
        if event.epochs and event.epochs[0][1] < log.log_end and log.log_start < log.log_end:
            return False
        previous = log.last_epoch
        for epoch, _ in event.epochs:
            if not previous <= epoch <= self.leader_epoch:
                return False
            previous = epoch
        return event.is_intact and bool(event.epochs) == (event.end_offset > event.base_offset)

    def _follow(self, effects: list[Effect], high_watermark: Offset, log_start: Offset) -> None:
        """Raise this replica's high watermark and log start to the leader's values, but not past the log end."""
        log = self._log
        moved_to = min(high_watermark, log.log_end)
        if moved_to > log.high_watermark:
            log.high_watermark = moved_to
            effects.append(HighWatermarkMoved(high_watermark=moved_to))
        if log_start > log.log_start and log.advance_start(log_start):
            effects.append(AdvanceLogStart(log_start=log.log_start))

    def _sync(self, effects: list[Effect]) -> None:
        log = self._log
        if log.log_end - log.durable_end >= log.unsynced_max and not log.is_syncing:
            log.is_syncing = True
            effects.append(Sync())

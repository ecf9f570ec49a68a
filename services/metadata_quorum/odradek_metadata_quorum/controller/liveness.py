"""Which brokers this controller believes alive, and when the active one stops believing.

A broker holds one heartbeat stream to every controller (KIP-631 has requests instead; a stream
tells of a death at once, because a dead process takes its connections with it). For each broker
that was ever heard, or is registered, this core keeps one of:

    UNHEARD     nothing yet in this controller's life
    CONNECTED   a stream is open
    BROKEN      its last stream ended at `broken_at_ms`

      UNHEARD --heartbeat--> CONNECTED --stream_broken--> BROKEN --heartbeat--> CONNECTED

Standbys keep this too, without deadlines, so that a new active controller knows of deaths from
before its time (R24). While active, each broker that the image says is unfenced is *watched*, that
is, has a deadline: `session_ms` after its last heartbeat while connected, `grace_ms` after its
break. At activation: a grace for the broken, a session for all others.

Invariants: only watched brokers are fenced, and a fenced one is watched no longer; a decision that
was undone leaves nobody unfenced and unwatched for longer than a tick (`keep_watching`); nothing is
fenced because this controller itself was stalled (a stall moves every deadline by its length, but
of stalls shorter than a session only one a session: a controller that is slow all the time would
fence nobody ever, and the dead would keep their places until their leaders find them lagging); if
more than one broker, and half of the watched or more, break within one grace, the fault is taken
to be ours and every watched broker gets a full session, but for those that broke before that grace,
and for each broker only once since it was last heard. So a dead broker is fenced at most a session
later than without such a break, however often other brokers lose their connections meanwhile.

What this core does not do: it commits no fencing (the controller does, from `tick`'s answer), and
safety never rests on it. Fencing a healthy leader is allowed at any moment: epochs and the ISR
protect acknowledged records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from odradek_protocol.identity import BrokerId


class Connection(Enum):
    """How a broker is known right now; the diagram above is drawn from these."""

    UNHEARD = "unheard"
    CONNECTED = "connected"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Effect: commit the fencing of this broker; `found` is how it was known at the end."""

    broker_id: BrokerId
    found: Connection


@dataclass(slots=True)
class _Known:
    connection: Connection = Connection.UNHEARD
    broken_at_ms: int = 0
    deadline_ms: int | None = None  # None: not watched
    is_forgiven: bool = False  # a mass break moved its deadline since it was last heard


@dataclass(slots=True, kw_only=True)
class Liveness:
    """The belief of one controller. Times: milliseconds of the caller's monotonic clock."""

    session_ms: int
    grace_ms: int
    stall_ms_min: int  # ticks further apart than this mean that we were stalled
    _brokers: dict[BrokerId, _Known] = field(default_factory=dict)
    _ticked_at_ms: int | None = None
    _forgiven_at_ms: int | None = None  # the last stall that moved the deadlines

    def activate(self, unfenced: Iterable[BrokerId], *, now_ms: int) -> None:
        """Become active: watch these brokers from now on (R24)."""
        for known in self._brokers.values():
            known.deadline_ms = None
        self._ticked_at_ms = now_ms
        for broker_id in unfenced:
            known = self._known(broker_id)
            broken = known.connection is Connection.BROKEN
            known.deadline_ms = now_ms + (self.grace_ms if broken else self.session_ms)
        self._forgive_if_the_fault_is_ours(now_ms)

    def deactivate(self) -> None:
        """Be a standby: nobody is fenced from here."""
        for known in self._brokers.values():
            known.deadline_ms = None

    def watch(self, broker_id: BrokerId, *, now_ms: int) -> None:
        """Start to watch a broker that is unfenced now; an old deadline is forgotten."""
        known = self._known(broker_id)
        broken = known.connection is Connection.BROKEN
        known.deadline_ms = now_ms + (self.grace_ms if broken else self.session_ms)

    def keep_watching(self, unfenced: Iterable[BrokerId], *, now_ms: int) -> None:
        """Watch those that are not: what unfenced brokers must be, whatever came of a decision."""
        for broker_id in unfenced:
            if self._known(broker_id).deadline_ms is None:
                self.watch(broker_id, now_ms=now_ms)

    def unwatch(self, broker_id: BrokerId) -> None:
        """Stop to watch a broker that is fenced."""
        if known := self._brokers.get(broker_id):
            known.deadline_ms = None

    def forget(self, broker_id: BrokerId) -> None:
        """A broker is registered no longer."""
        self._brokers.pop(broker_id, None)

    def heartbeat(self, broker_id: BrokerId, *, now_ms: int) -> None:
        """A stream opened, or a heartbeat came."""
        known = self._known(broker_id)
        known.connection = Connection.CONNECTED
        known.is_forgiven = False
        if known.deadline_ms is not None:
            known.deadline_ms = now_ms + self.session_ms

    def stream_broken(self, broker_id: BrokerId, *, now_ms: int) -> None:
        """The last open stream of a broker ended, for whatever reason."""
        known = self._brokers.get(broker_id)
        if known is None or known.connection is not Connection.CONNECTED:
            return
        known.connection, known.broken_at_ms = Connection.BROKEN, now_ms
        if known.deadline_ms is not None:
            known.deadline_ms = now_ms + self.grace_ms
            self._forgive_if_the_fault_is_ours(now_ms)

    def is_connected(self, broker_id: BrokerId) -> bool:
        """Whether a stream of this broker is open."""
        known = self._brokers.get(broker_id)
        return known is not None and known.connection is Connection.CONNECTED

    def tick(self, *, now_ms: int) -> list[Fence]:
        """Judge the deadlines, after the queued heartbeats were handed in, never before."""
        stalled_ms = self._stall(now_ms)
        fences: list[Fence] = []
        for broker_id, known in self._brokers.items():
            if known.deadline_ms is None:
                continue
            known.deadline_ms += stalled_ms
            if known.deadline_ms <= now_ms:
                known.deadline_ms = None
                fences.append(Fence(broker_id=broker_id, found=known.connection))
        return fences

    def _known(self, broker_id: BrokerId) -> _Known:
        return self._brokers.setdefault(broker_id, _Known())

    def _stall(self, now_ms: int) -> int:
        before, self._ticked_at_ms = self._ticked_at_ms, now_ms
        if before is None:
            return 0
        assert now_ms >= before, f"clock went back: {before} -> {now_ms}"
        stalled_ms = now_ms - before
        if stalled_ms <= self.stall_ms_min:
            return 0
        forgiven_at_ms = self._forgiven_at_ms
        is_slow = forgiven_at_ms is not None and before - forgiven_at_ms < self.session_ms
        if is_slow and stalled_ms < self.session_ms:
            return 0
        self._forgiven_at_ms = now_ms
        return stalled_ms

    def _forgive_if_the_fault_is_ours(self, now_ms: int) -> None:
        watched = [known for known in self._brokers.values() if known.deadline_ms is not None]
        broken = [known for known in watched if known.connection is Connection.BROKEN]
        broken_now = sum(now_ms - known.broken_at_ms <= self.grace_ms for known in broken)
        if broken_now > 1 and 2 * broken_now >= len(watched):
            for known in watched:
                assert known.deadline_ms is not None
                if self._may_be_forgiven(known, now_ms):
                    known.deadline_ms = max(known.deadline_ms, now_ms + self.session_ms)
                    known.is_forgiven = True

    def _may_be_forgiven(self, known: _Known, now_ms: int) -> bool:
        is_broken = known.connection is Connection.BROKEN
        broke_before = is_broken and now_ms - known.broken_at_ms > self.grace_ms
        return not broke_before and not known.is_forgiven

"""Which brokers a controller regards as alive, and when the active controller fences them.

A broker holds one heartbeat stream to every controller (KIP-631 has requests instead; a stream
shows a death at once, because a dead process takes its connections with it). For each broker that ever sent a
heartbeat, or is registered, this module keeps one of these states:

    UNHEARD     this controller has heard nothing since it started
    CONNECTED   a stream is open
    BROKEN      its last stream ended at `broken_at_ms`

      UNHEARD --heartbeat--> CONNECTED --stream_broken--> BROKEN --heartbeat--> CONNECTED

Standbys keep these states too, without deadlines, so that a new active controller knows of deaths from
before its time (rule R24). While the controller is active, each broker that is unfenced in the image is *watched*,
that is, it has a deadline: `session_ms` after its last heartbeat while CONNECTED, `grace_ms` after its stream
ended. When the controller becomes active, the deadline of a BROKEN broker is `grace_ms` later, that of any other broker
`session_ms` later.

Invariants:
- Only watched brokers are fenced, and a fenced broker is not watched.
- A decision that was undone leaves no broker unfenced and unwatched for longer than a tick (`keep_watching`).
- No broker is fenced because this controller itself was stalled: a stall moves every deadline by its length.
  Of stalls shorter than `session_ms`, only one in each `session_ms` counts. A controller that is slow all the time
  would otherwise never fence a broker, and dead ones would stay in their ISRs until the leaders find them lagging.
- If more than one broker, and at least half of the watched ones, lose their streams within one `grace_ms`, the
  controller assumes that the fault is its own. Every watched broker then gets a deadline in `session_ms`, except those
  that became BROKEN before. Each broker gets it only once since its last heartbeat. So a dead broker is fenced
  at most `session_ms` later than otherwise, however often other brokers lose their connections meanwhile.

This module commits no fencing (the controller does, from the fences that `tick` returns), and
safety never rests on it. Fencing a healthy leader is allowed at any moment: epochs and the ISR
protect acknowledged records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from odradek_protocol.identity import BrokerId


class Connection(Enum):
    """The states of a broker's connection. The docstring of the module has their diagram."""

    UNHEARD = "unheard"
    CONNECTED = "connected"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A broker that the controller must fence. `found` is the state of its connection when the deadline passed."""

    broker_id: BrokerId
    found: Connection


@dataclass(slots=True)
class _Broker:
    connection: Connection = Connection.UNHEARD
    broken_at_ms: int = 0
    deadline_ms: int | None = None  # None: the broker is not watched
    # Whether its deadline was extended since its last heartbeat, because many streams broke at once.
    is_forgiven: bool = False


@dataclass(slots=True, kw_only=True)
class Liveness:
    """The connection states of the brokers, as one controller sees them.

    Times are ms of the caller's monotonic clock.
    """

    session_ms: int
    grace_ms: int
    stall_ms_min: int  # a longer time between two ticks shows a stall of this process
    _brokers: dict[BrokerId, _Broker] = field(default_factory=dict)
    _ticked_at_ms: int | None = None
    _forgiven_at_ms: int | None = None  # time of the last stall that moved the deadlines

    def activate(self, unfenced: Iterable[BrokerId], *, now_ms: int) -> None:
        """Watch these brokers from now on, because the controller became active (rule R24)."""
        for broker in self._brokers.values():
            broker.deadline_ms = None
        self._ticked_at_ms = now_ms
        for broker_id in unfenced:
            broker = self._broker(broker_id)
            is_broken = broker.connection is Connection.BROKEN
            broker.deadline_ms = now_ms + (self.grace_ms if is_broken else self.session_ms)
        self._forgive_if_the_fault_is_ours(now_ms)

    def deactivate(self) -> None:
        """Stop watching all brokers, because the controller became a standby."""
        for broker in self._brokers.values():
            broker.deadline_ms = None

    def watch(self, broker_id: BrokerId, *, now_ms: int) -> None:
        """Watch a broker with a new deadline, because it is unfenced now."""
        broker = self._broker(broker_id)
        is_broken = broker.connection is Connection.BROKEN
        broker.deadline_ms = now_ms + (self.grace_ms if is_broken else self.session_ms)

    def keep_watching(self, unfenced: Iterable[BrokerId], *, now_ms: int) -> None:
        """Watch the unfenced brokers that are not watched, because a decision to fence them was undone."""
        for broker_id in unfenced:
            if self._broker(broker_id).deadline_ms is None:
                self.watch(broker_id, now_ms=now_ms)

    def unwatch(self, broker_id: BrokerId) -> None:
        """Stop watching a broker, because it is fenced."""
        if broker := self._brokers.get(broker_id):
            broker.deadline_ms = None

    def forget(self, broker_id: BrokerId) -> None:
        """Forget a broker, because it was unregistered."""
        self._brokers.pop(broker_id, None)

    def heartbeat(self, broker_id: BrokerId, *, now_ms: int) -> None:
        """Record that a broker opened a stream or sent a heartbeat."""
        broker = self._broker(broker_id)
        broker.connection = Connection.CONNECTED
        broker.is_forgiven = False
        if broker.deadline_ms is not None:
            broker.deadline_ms = now_ms + self.session_ms

    def stream_broken(self, broker_id: BrokerId, *, now_ms: int) -> None:
        """Record that the last open stream of a broker ended, for whatever reason."""
        broker = self._brokers.get(broker_id)
        if broker is None or broker.connection is not Connection.CONNECTED:
            return
        broker.connection, broker.broken_at_ms = Connection.BROKEN, now_ms
        if broker.deadline_ms is not None:
            broker.deadline_ms = now_ms + self.grace_ms
            self._forgive_if_the_fault_is_ours(now_ms)

    def is_connected(self, broker_id: BrokerId) -> bool:
        """Return whether a stream of this broker is open."""
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.connection is Connection.CONNECTED

    def tick(self, *, now_ms: int) -> list[Fence]:
        """Return the brokers whose deadlines have passed. The caller handles all received heartbeats first."""
        stalled_ms = self._stall(now_ms)
        fences: list[Fence] = []
        for broker_id, broker in self._brokers.items():
            if broker.deadline_ms is None:
                continue
            broker.deadline_ms += stalled_ms
            if broker.deadline_ms <= now_ms:
                broker.deadline_ms = None
                fences.append(Fence(broker_id=broker_id, found=broker.connection))
        return fences

    def _broker(self, broker_id: BrokerId) -> _Broker:
        return self._brokers.setdefault(broker_id, _Broker())

    def _stall(self, now_ms: int) -> int:
        last_ms, self._ticked_at_ms = self._ticked_at_ms, now_ms
        if last_ms is None:
            return 0
        assert now_ms >= last_ms, f"clock went back: {last_ms} -> {now_ms}"
        stalled_ms = now_ms - last_ms
        if stalled_ms <= self.stall_ms_min:
            return 0
        forgiven_at_ms = self._forgiven_at_ms
        is_slow = forgiven_at_ms is not None and last_ms - forgiven_at_ms < self.session_ms
        if is_slow and stalled_ms < self.session_ms:
            return 0
        self._forgiven_at_ms = now_ms
        return stalled_ms

    def _forgive_if_the_fault_is_ours(self, now_ms: int) -> None:
        watched = [broker for broker in self._brokers.values() if broker.deadline_ms is not None]
        broken = [broker for broker in watched if broker.connection is Connection.BROKEN]
        broken_now = sum(now_ms - broker.broken_at_ms <= self.grace_ms for broker in broken)
        if broken_now > 1 and 2 * broken_now >= len(watched):
            for broker in watched:
                assert broker.deadline_ms is not None
                if self._may_be_forgiven(broker, now_ms):
                    broker.deadline_ms = max(broker.deadline_ms, now_ms + self.session_ms)
                    broker.is_forgiven = True

    def _may_be_forgiven(self, broker: _Broker, now_ms: int) -> bool:
        is_broken = broker.connection is Connection.BROKEN
        broke_before = is_broken and now_ms - broker.broken_at_ms > self.grace_ms
        return not broke_before and not broker.is_forgiven

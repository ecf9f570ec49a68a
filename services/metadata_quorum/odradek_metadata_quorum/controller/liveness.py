"""Detection of dead brokers by their heartbeat streams, and the deadlines after which the active controller fences
them.

Each broker has one heartbeat stream to every controller. KIP-631 uses requests instead, but a stream shows the death of
a process at once, because the connections of a dead process are closed. For each broker that is registered or has sent
a heartbeat, this module stores one of these states:

    UNHEARD     the broker has sent nothing since this controller started
    CONNECTED   a heartbeat stream of the broker is open
    BROKEN      the broker's last stream ended at `broken_at_ms`

      UNHEARD --heartbeat--> CONNECTED --stream_broken--> BROKEN --heartbeat--> CONNECTED

Standbys store these states, too, but no deadlines. So a new active controller knows which brokers died before it became
active (rule R24). While the controller is active, each broker that is unfenced in the image is *watched*: it has a
deadline, which is `session_ms` after its last heartbeat while CONNECTED, or `grace_ms` after its stream ended. When the
controller becomes active, the deadline of a BROKEN broker is `grace_ms` later, that of any other broker `session_ms`
later.

Invariants:
- Only watched brokers are fenced, and a fenced broker is not watched.
- If the decision to fence a broker is undone, the broker is watched again at the next tick (`keep_watching`).
- No broker is fenced because this controller was stalled: all deadlines are extended by the length of a stall. Of
  stalls shorter than `session_ms`, only one in each `session_ms` counts. Otherwise a controller that is always slow
  would never fence a broker, and dead brokers would stay in ISRs until the leaders remove them as lagging.
- If more than one watched broker, and at least half of the watched brokers, lose their streams within `grace_ms`, the
  controller assumes that the fault is on its own side. The deadlines of all watched brokers are extended to
  `session_ms` from now, except for brokers that became BROKEN earlier. A deadline is extended in this way only once
  after each heartbeat of the broker. So a dead broker is fenced at most `session_ms` later than otherwise, however
  often other brokers lose their connections.

This module only returns the brokers to fence (`tick`); the controller commits the fencing. Safety does not depend on
this module. A healthy leader may be fenced at any time, because epochs and the ISR protect acknowledged records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from odradek_protocol.identity import BrokerId


class Connection(Enum):
    """The state of a broker's heartbeat streams to this controller, as the docstring of the module describes it."""

    UNHEARD = "unheard"
    CONNECTED = "connected"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A broker that the controller must fence because its deadline has passed. `found` is the broker's connection
    state.
    """

    broker_id: BrokerId
    found: Connection


@dataclass(slots=True)
class _Broker:
    connection: Connection = Connection.UNHEARD
    broken_at_ms: int = 0
    deadline_ms: int | None = None  # None: the broker is not watched
    # Whether the deadline was extended since the last heartbeat because many streams broke at once.
    is_forgiven: bool = False


@dataclass(slots=True, kw_only=True)
class Liveness:
    """The connection states and deadlines of all brokers in one controller. Times are in ms of the caller's monotonic
    clock.
    """

    session_ms: int
    grace_ms: int
    stall_ms_min: int  # a longer time between two ticks counts as a stall of this process
    _brokers: dict[BrokerId, _Broker] = field(default_factory=dict)
    _ticked_at_ms: int | None = None
    _forgiven_at_ms: int | None = None  # time of the last stall that moved the deadlines

    def activate(self, unfenced: Iterable[BrokerId], *, now_ms: int) -> None:
        """Watch these brokers, and no others, because the controller became active (rule R24)."""
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
        """Watch a broker that was unfenced, with a new deadline."""
        broker = self._broker(broker_id)
        is_broken = broker.connection is Connection.BROKEN
        broker.deadline_ms = now_ms + (self.grace_ms if is_broken else self.session_ms)

    def keep_watching(self, unfenced: Iterable[BrokerId], *, now_ms: int) -> None:
        """Watch those of the unfenced brokers that are not watched because a decision to fence them was undone."""
        for broker_id in unfenced:
            if self._broker(broker_id).deadline_ms is None:
                self.watch(broker_id, now_ms=now_ms)

    def unwatch(self, broker_id: BrokerId) -> None:
        """Stop watching a broker that was fenced."""
        if broker := self._brokers.get(broker_id):
            broker.deadline_ms = None

    def forget(self, broker_id: BrokerId) -> None:
        """Delete the state of a broker that was unregistered."""
        self._brokers.pop(broker_id, None)

    def heartbeat(self, broker_id: BrokerId, *, now_ms: int) -> None:
        """Record that a broker opened a stream or sent a heartbeat."""
        broker = self._broker(broker_id)
        broker.connection = Connection.CONNECTED
        broker.is_forgiven = False
        if broker.deadline_ms is not None:
            broker.deadline_ms = now_ms + self.session_ms

    def stream_broken(self, broker_id: BrokerId, *, now_ms: int) -> None:
        """Record that a broker has no open heartbeat stream any more, for whatever reason."""
        broker = self._brokers.get(broker_id)
        if broker is None or broker.connection is not Connection.CONNECTED:
            return
        broker.connection, broker.broken_at_ms = Connection.BROKEN, now_ms
        if broker.deadline_ms is not None:
            broker.deadline_ms = now_ms + self.grace_ms
            self._forgive_if_the_fault_is_ours(now_ms)

    def is_connected(self, broker_id: BrokerId) -> bool:
        """Return whether a heartbeat stream of this broker is open."""
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.connection is Connection.CONNECTED

    def tick(self, *, now_ms: int) -> list[Fence]:
        """Return the brokers whose deadlines have passed, and stop watching them.

        The caller must first handle all heartbeats that have arrived.
        """
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
        assert now_ms >= last_ms, f"the clock went back from {last_ms} to {now_ms}"
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

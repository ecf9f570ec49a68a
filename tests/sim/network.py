"""A network between numbered nodes. Links fail in one or both directions, and messages are delayed, lost or duplicated.

A single message (`send`) may be lost, duplicated, delayed and overtaken. A `Stream` is a connection: its messages
arrive in order and without gaps until it breaks. Each end learns of the break at a different time, and messages in
flight may still arrive at an end that has not learned of the break. A link that is cut loses the messages on it; the
streams over the link break when their keepalive detects the cut (after 1 to 2 s).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.sim.scheduler import MS, Process, Scheduler

KEEPALIVE_MIN_US = 1_000 * MS
KEEPALIVE_MAX_US = 2_000 * MS


class Network:
    """All links of the cluster. Node ids are those of brokers (1 ..), controllers (101 ..) and clients (201 ..)."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.cut: set[tuple[int, int]] = set()
        self.extra_delay_us: dict[tuple[int, int], int] = {}
        self.loss = 0.0
        self.doubling = 0.0
        self.reset = 0.0  # the chance that a message breaks its stream
        self.delay_max_us = 3 * MS
        self._streams: dict[Stream, None] = {}

    def is_open(self, source: int, target: int) -> bool:
        return (source, target) not in self.cut

    def both_ways(self, a: int, b: int) -> bool:
        return self.is_open(a, b) and self.is_open(b, a)

    def delay_us(self, source: int, target: int) -> int:
        scheduler = self.scheduler
        delay = 100 + int(scheduler.random.random() ** 3 * self.delay_max_us)
        extra = self.extra_delay_us.get((source, target))
        return delay + (int(scheduler.random.random() * extra) if extra else 0)

    def send(
        self, source: int, target: Process | None, action: Callable[..., None], *args: Any
    ) -> None:
        """Send one message, which may get lost.

        The message is delivered to the process `target`, if that process still runs when the message arrives.
        """
        scheduler = self.scheduler
        if target is None or scheduler.chance(self.loss):
            return
        copies = 2 if scheduler.chance(self.doubling) else 1
        for _ in range(copies):
            delay = self.delay_us(source, target.node_id)
            scheduler.after(delay, self._arrive, source, target, action, args)

    def _arrive(
        self,
        source: int,
        target: Process,
        action: Callable[..., None],
        args: tuple[Any, ...],
    ) -> None:
        if self.is_open(source, target.node_id):
            target.deliver(action, *args)

    def set_cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Cut exactly these directed links. Streams over these links break when their keepalive detects the cut."""
        self.cut = set(pairs)
        for stream in list(self._streams):
            if not self.both_ways(stream.ends[0].node_id, stream.ends[1].node_id):
                stream.notice_silence()

    def opened(self, stream: Stream) -> None:
        self._streams[stream] = None

    def gone(self, stream: Stream) -> None:
        self._streams.pop(stream, None)

    def process_ended(self, process: Process) -> None:
        """Break the connections of a process that died. The other ends receive resets."""
        for stream in list(self._streams):
            if process in stream.ends:
                stream.abort(process)

    def process_stalled(self, process: Process, duration_us: int) -> None:
        """Let the keepalives of a stalled process's streams find no response."""
        if duration_us > KEEPALIVE_MIN_US:
            for stream in list(self._streams):
                if process in stream.ends:
                    stream.notice_silence()


class Stream:
    """A connection between two processes.

    Each end has a handler for messages (`on_message`), and a handler that is called at most once, when the connection
    ends (`on_closed`).
    """

    def __init__(self, network: Network, opener: Process, acceptor: Process) -> None:
        self.network = network
        self.ends = (opener, acceptor)
        self.on_message: list[Callable[[Any], None] | None] = [None, None]
        self.on_closed: list[Callable[[], None] | None] = [None, None]
        # For each end: whether it knows that the connection has ended.
        self._is_gone = [False, False]
        # For each end: whether all further messages that it sends are lost.
        self._has_gap = [False, False]
        # For each end: whether a message that it sent was lost.
        self._has_lost = [False, False]
        self._last_us = [0, 0]
        network.opened(self)

    def side(self, process: Process) -> int:
        return 0 if process is self.ends[0] else 1

    def is_open_for(self, process: Process) -> bool:
        return not self._is_gone[self.side(process)]

    def send(self, sender: Process, message: Any) -> None:
        """Send a message over the connection, which may lose the message silently."""
        side = self.side(sender)
        if self._is_gone[side] or self._has_gap[side]:
            return
        network, scheduler = self.network, self.network.scheduler
        if network.reset and scheduler.chance(network.reset):
            scheduler.counters["streams reset"] += 1
            self.abort(None)
            return
        target = self.ends[1 - side]
        delay = network.delay_us(sender.node_id, target.node_id)
        at = max(self._last_us[side], scheduler.now_us + delay)
        self._last_us[side] = at
        scheduler.at(at, self._arrive, side, message)

    def close(self, process: Process) -> None:
        """Close this end. The other end learns of the close later."""
        side = self.side(process)
        if self._is_gone[side]:
            return
        self._is_gone[side] = True
        other = 1 - side
        delay = self.network.delay_us(process.node_id, self.ends[other].node_id)
        if not self.network.both_ways(self.ends[0].node_id, self.ends[1].node_id):
            delay = self.network.scheduler.between(KEEPALIVE_MIN_US, KEEPALIVE_MAX_US)
        at = max(self._last_us[side], self.network.scheduler.now_us + delay)
        self.network.scheduler.at(at, self._end, other)
        self._forget()

    def abort(self, dead: Process | None) -> None:
        """Break the connection now. The end `dead` gets no event."""
        network = self.network
        reachable = network.both_ways(self.ends[0].node_id, self.ends[1].node_id)
        for side, end in enumerate(self.ends):
            self._has_gap[side] = True
            if end is dead:
                self._is_gone[side] = True
                continue
            delay = network.delay_us(self.ends[1 - side].node_id, end.node_id)
            if not reachable:
                delay = network.scheduler.between(KEEPALIVE_MIN_US, KEEPALIVE_MAX_US)
            network.scheduler.after(delay, self._end, side)

    def notice_silence(self) -> None:
        """Let the keepalive of each end check for silence later. If the link works again by then, nothing happens."""
        for side in (0, 1):
            delay = self.network.scheduler.between(KEEPALIVE_MIN_US, KEEPALIVE_MAX_US)
            self.network.scheduler.after(delay, self._check, side)

    def _check(self, side: int) -> None:
        """Run a keepalive of this end. If it gets no response, the connection breaks, and the other end learns of the
        break later.
        """
        other = self.ends[1 - side]
        reachable = self.network.both_ways(self.ends[0].node_id, self.ends[1].node_id)
        if self._is_gone[side]:
            return
        if self._has_gap[0] or self._has_gap[1] or not reachable or not other.is_running:
            self._has_gap = [True, True]
            self._end(side)
            delay = self.network.scheduler.between(0, KEEPALIVE_MAX_US)
            self.network.scheduler.after(delay, self._end, 1 - side)

    def _arrive(self, side: int, message: Any) -> None:
        sender, target = self.ends[side], self.ends[1 - side]
        if self._has_lost[side] or (self._has_gap[side] and sender.is_alive):
            return
        if not self.network.is_open(sender.node_id, target.node_id):
            self._has_gap[side] = self._has_lost[side] = True
            self.notice_silence()
            return
        target.deliver(self._deliver, side, message)

    def _deliver(self, side: int, message: Any) -> None:
        handler = self.on_message[1 - side]
        if handler is not None and not self._is_gone[1 - side]:
            handler(message)

    def _end(self, side: int) -> None:
        if self._is_gone[side]:
            return
        self.ends[side].deliver(self._tell_end, side)

    def _tell_end(self, side: int) -> None:
        if self._is_gone[side]:
            return
        self._is_gone[side] = True
        self._forget()
        handler = self.on_closed[side]
        if handler is not None:
            handler()

    def _forget(self) -> None:
        if all(
            gone or not end.is_alive for gone, end in zip(self._is_gone, self.ends, strict=True)
        ):
            self.network.gone(self)

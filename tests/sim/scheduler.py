"""Simulated time: one queue of events, one source of randomness, and one digest of all events."""

from __future__ import annotations

import heapq
import zlib
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

MS = 1_000  # simulated time is counted in microseconds
SECOND = 1_000_000
# An event: its time, its number, the process to which it is delivered, a function and its arguments.
_Event: TypeAlias = "tuple[int, int, Process | None, Callable[..., None], tuple[Any, ...]]"


class Scheduler:
    """Runs events in the order of their times; events with the same time run in the order in which they were scheduled.

    Everything that happens in a run comes from `random` and this queue, so a seed always gives the same run. The
    `digest` covers the time and the number of each event and the notes: two runs with the same digest were the same.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_us = 0
        self.counters: Counter[str] = Counter()
        self.digest = 0
        self.recent: deque[str] = deque(maxlen=400)  # the last notes, which a failing seed prints
        self.is_verbose = False
        self.failure: BaseException | None = None
        self._queue: list[_Event] = []
        self._made = 0

    def at(self, time_us: int, action: Callable[..., None], *args: Any) -> None:
        """Schedule a call at this time, or now if the time has passed."""
        self._made += 1
        time_us = time_us if time_us > self.now_us else self.now_us
        heapq.heappush(self._queue, (time_us, self._made, None, action, args))

    def after(self, delay_us: int, action: Callable[..., None], *args: Any) -> None:
        self.at(self.now_us + delay_us, action, *args)

    def deliver_after(
        self, delay_us: int, process: Process, action: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        """Deliver a call to a process after a delay.

        Most events are such deliveries, so this method and `run` avoid further function calls.
        """
        self._made += 1
        time_us = self.now_us + delay_us if delay_us > 0 else self.now_us
        heapq.heappush(self._queue, (time_us, self._made, process, action, args))

    def between(self, low: int, high: int) -> int:
        """Draw an integer from `low` to `high`, both inclusive."""
        return low + int(self.random.random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def note(self, text: str) -> None:
        """Add an event to the digest, and to the lines that a failing seed prints."""
        self.digest = zlib.crc32(f"{self.now_us} {text}".encode(), self.digest)
        self.recent.append(f"{self.now_us / SECOND:9.4f}  {text}")
        if self.is_verbose:
            print(self.recent[-1])

    def fail(self, error: BaseException) -> None:
        """End the seed with this error after the current event, even if other code catches the error."""
        if self.failure is None:
            self.failure = error

    def run(self, until_us: int) -> None:
        """Run all events that are due up to `until_us`.

        Raises the error that was passed to `fail`.
        """
        queue = self._queue
        pop = heapq.heappop
        while queue and queue[0][0] <= until_us:
            time_us, made, process, action, args = pop(queue)
            self.now_us = time_us
            self.digest = (1_000_003 * self.digest + time_us + made) & 0xFFFFFFFF
            if process is None:
                action(*args)
            elif process.waiting or time_us < process.stalled_until_us:
                process.deliver(action, *args)
            elif process.is_alive:
                try:
                    action(*args)
                except ProcessKilled:
                    if process.is_alive:
                        raise
            if self.failure is not None:
                failure, self.failure = self.failure, None
                raise failure
        self.now_us = until_us


class ProcessKilled(BaseException):
    """A process was killed in the middle of its work. Its own code must not catch this exception."""


class Process:
    """One process of a node.

    Its timers and messages are dropped when it ends, and wait while it is stalled.
    """

    def __init__(self, scheduler: Scheduler, node_id: int) -> None:
        self.scheduler = scheduler
        self.node_id = node_id
        self.is_alive = True
        self.stalled_until_us = 0
        self.waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    @property
    def is_running(self) -> bool:
        return self.is_alive and self.scheduler.now_us >= self.stalled_until_us

    def after(self, delay_us: int, action: Callable[..., None], *args: Any) -> None:
        """Call `action` as a timer of this process."""
        self.scheduler.deliver_after(delay_us, self, action, args)

    def deliver(self, action: Callable[..., None], *args: Any) -> None:
        """Call the function now, after the stall if the process is stalled, or never if the process has ended."""
        if not self.is_alive:
            return
        if self.waiting or self.scheduler.now_us < self.stalled_until_us:
            if not self.waiting:
                self.scheduler.at(self.stalled_until_us, self._wake)
            self.waiting.append((action, args))  # calls keep their order, even after several stalls
            return
        try:
            action(*args)
        except ProcessKilled:
            if self.is_alive:
                raise

    def _run(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            action(*args)
        except ProcessKilled:
            if self.is_alive:
                raise

    def _wake(self) -> None:
        while self.waiting and self.is_alive:
            if self.scheduler.now_us < self.stalled_until_us:
                self.scheduler.at(self.stalled_until_us, self._wake)
                return
            self._run(*self.waiting[0])
            self.waiting.popleft()

    def stall(self, duration_us: int) -> None:
        """Stop the process for a while, as a SIGSTOP, a garbage collection or a live migration does."""
        self.stalled_until_us = max(self.stalled_until_us, self.scheduler.now_us + duration_us)

    def kill(self) -> None:
        self.is_alive = False

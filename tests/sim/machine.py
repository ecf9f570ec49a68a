"""A simulated machine's clock and disk threads, which the production broker gets."""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from odradek_broker.log.log_jobs import ResetJob, TruncateJob
from odradek_runtime.clock import Clock
from tests.sim.scheduler import MS, Process, ProcessKilled, Scheduler

if TYPE_CHECKING:
    from tests.sim.cluster import BrokerNode
    from tests.sim.simulated_loop import SimulatedLoop

WALL_BEGINS_MS = 1_700_000_000_000
SLOW_CUT_CHANCE = 0.5
SLOW_CUT_US_MAX = 400 * MS  # a truncation syncs several files and reads parts of a segment


class MachineClock(Clock):
    """The clocks of one machine. All of them drift, and only the wall clock jumps."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._scheduler = node.cluster.scheduler

    def boottime_ms(self) -> int:
        return int(self._scheduler.now_us * self._node.drift) // 1000

    def monotonic_ms(self) -> int:
        return int(self._scheduler.now_us * self._node.drift) // 1000

    def wall_ms(self) -> int:
        return WALL_BEGINS_MS + self.boottime_ms() + self._node.wall_offset_ms


class DiskThreads:
    """The threads of a broker's DiskPool: each function runs in a later event of the process.

    The event loop learns in a still later event that the function has ended. If the process dies between the two
    events, the work was done, but nobody knows. A death in the middle of the work comes from the disk operations
    themselves (data_directory.py).
    """

    def __init__(self, node: BrokerNode, process: Process, loop: SimulatedLoop) -> None:
        self._node = node
        self._process = process
        self._scheduler = process.scheduler
        self._loop = loop

    def submit(self, do: Callable[..., object], /, *args: Any) -> None:
        """Call `do(work, on_done)` after a random delay. `args` are the arguments of DiskPool: `work` and `on_done`."""
        work, on_done = args
        delay_us = self._scheduler.between(100, self._node.sync_max_us)
        is_cut = isinstance(getattr(work, "__self__", None), TruncateJob | ResetJob)
        if is_cut and self._scheduler.chance(SLOW_CUT_CHANCE):
            delay_us += self._scheduler.between(0, SLOW_CUT_US_MAX)
        self._process.after(delay_us // 2, self._work, do, work, on_done, delay_us // 2)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing, because the threads end with the process."""

    def _work(
        self,
        do: Callable[..., object],
        work: Callable[[], Any],
        on_done: Callable[[], None],
        return_us: int,
    ) -> None:
        """Do the work now, and report its end after `return_us`. Other threads do not wait for it."""
        failure: Exception | None = None
        try:
            work()
        except Exception as error:
            failure = error

        def outcome() -> None:
            if failure is not None:
                raise failure

        self._process.after(return_us, self._loop.run_here, do, outcome, on_done)


class ArrangedBug(Exception):
    """An internal error that the nemesis raised on purpose. Production code may log it."""


class _BugHandler(logging.Handler):
    """A log handler that ends the seed when production code logs an exception that no fault explains."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(logging.ERROR)
        self._scheduler = scheduler

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, ProcessKilled | ArrangedBug):
            self._scheduler.fail(error)


@contextmanager
def deterministic(scheduler: Scheduler) -> Iterator[None]:
    """Draw all randomness of the process from the seed, and end the seed when production code logs an exception."""
    random.seed(scheduler.seed)
    handler = _BugHandler(scheduler)
    logger = logging.getLogger("odradek_broker")
    logger.addHandler(handler)
    quiet = logging.root.manager.disable
    logging.disable(max(quiet, logging.WARNING))
    try:
        with (
            patch.object(secrets, "token_bytes", scheduler.random.randbytes),
            patch.object(secrets, "token_hex", lambda size: scheduler.random.randbytes(size).hex()),
        ):
            yield
    finally:
        logging.disable(quiet)
        logger.removeHandler(handler)

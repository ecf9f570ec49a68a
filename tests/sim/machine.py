"""A simulated machine's clock and disk threads, as the production broker takes them from outside."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

from odradek_broker.log.log_jobs import ResetJob, TruncateJob
from odradek_runtime.clock import Clock
from tests.sim.scheduler import MS, Process, ProcessKilled, Scheduler

if TYPE_CHECKING:
    from tests.sim.cluster import BrokerNode
    from tests.sim.simulated_loop import SimulatedLoop

T = TypeVar("T")
WALL_BEGINS_MS = 1_700_000_000_000
SLOW_CUT_CHANCE = 0.5
SLOW_CUT_US_MAX = 400 * MS  # a cut syncs several files and reads what is kept of a segment


class MachineClock(Clock):
    """The clocks of one machine: they drift; the wall clock jumps, the others never do."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._scheduler = node.cluster.scheduler

    def boottime_ms(self) -> int:
        return int(self._scheduler.now_us * self._node.drift) // 1000

    def monotonic_ms(self) -> int:
        return int(self._scheduler.now_us * self._node.drift) // 1000

    def wall_ms(self) -> int:
        return WALL_BEGINS_MS + self.boottime_ms() + self._node.wall_offset_ms


class SimulatedPool:
    """Runs disk work as events of one process: it begins later, and its end is heard later still.

    Between the two the process may die: then the work was done and nobody knows. A death within
    the work comes from the disk's own operations (data_directory.py).
    """

    def __init__(self, node: BrokerNode, process: Process, loop: SimulatedLoop) -> None:
        self.pending = 0
        self._node = node
        self._process = process
        self._scheduler = process.scheduler
        self._loop = loop
        self._idle: list[asyncio.Future[None]] = []

    def run(self, work: Callable[[], Any], on_done: Callable[[], None]) -> None:
        self.pending += 1
        delay_us = self._scheduler.between(100, self._node.sync_max_us)
        is_cut = isinstance(getattr(work, "__self__", None), TruncateJob | ResetJob)
        if is_cut and self._scheduler.chance(SLOW_CUT_CHANCE):
            delay_us += self._scheduler.between(0, SLOW_CUT_US_MAX)
        self._process.after(delay_us // 2, self._do, work, on_done, delay_us // 2)

    async def call(self, work: Callable[[], T]) -> T:
        done: asyncio.Future[T] = self._loop.create_future()
        outcome: list[T] = []
        failure: list[Exception] = []

        def guarded() -> None:
            try:
                outcome.append(work())
            except Exception as error:
                failure.append(error)

        def settle() -> None:
            if done.cancelled():
                return
            if failure:
                done.set_exception(failure[0])
            else:
                done.set_result(outcome[0])

        self.run(guarded, settle)
        return await done

    async def idle(self) -> None:
        while self.pending:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    def close(self) -> None:
        """The process ends with it."""

    def _do(self, work: Callable[[], Any], on_done: Callable[[], None], delay_us: int) -> None:
        work()
        self._process.after(delay_us, self._loop.run_here, self._done, on_done)

    def _done(self, on_done: Callable[[], None]) -> None:
        self.pending -= 1
        on_done()
        if not self.pending:
            waiting, self._idle = self._idle, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)


class _BugHandler(logging.Handler):
    """Ends the seed when production code logs an exception that nothing in the world explains."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(logging.ERROR)
        self._scheduler = scheduler

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, ProcessKilled):
            self._scheduler.fail(error)


@contextmanager
def deterministic(scheduler: Scheduler) -> Iterator[None]:
    """Draw all of the process's randomness from the seed, and let logged bugs end it."""
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

"""The pool of disk threads runs work and reports its end."""

from __future__ import annotations

import threading

import pytest

from odradek_broker.replication.disk.disk_pool import DiskPool, disk_threads


async def test_a_callback_that_fails_does_not_keep_the_others_from_theirs() -> None:
    pool = DiskPool(disk_threads(1))
    told: list[int] = []

    def broken() -> None:
        raise AssertionError("a bug of one partition")

    pool.run(lambda: None, broken)
    pool.run(lambda: None, lambda: told.append(1))
    both_ended = threading.Event()
    pool.run(both_ended.set, lambda: None)
    assert both_ended.wait(10)  # so that one iteration of the event loop hears of both
    await pool.idle()
    pool.close()
    assert told == [1]
    assert pool.pending == 0


async def test_a_closed_pool_takes_no_more_work() -> None:
    pool = DiskPool(disk_threads(1))
    pool.close()
    with pytest.raises(RuntimeError):
        pool.run(lambda: None, lambda: None)

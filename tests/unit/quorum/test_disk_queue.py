"""After a failed disk job no later job runs, since a later sync that succeeds would prove nothing."""

from __future__ import annotations

import asyncio
import threading

from odradek_metadata_quorum.storage.disk import DiskThread


async def test_jobs_and_their_calls_keep_order_off_the_loop() -> None:
    failures: list[str] = []
    thread = DiskThread(
        "t", asyncio.get_running_loop(), lambda reason, error: failures.append(reason)
    )
    done: list[int] = []
    threads: set[int] = set()
    finished = asyncio.Event()
    for number in range(100):

        def job(number: int = number) -> int:
            threads.add(threading.get_ident())
            return number

        thread.submit(job, done.append)
    thread.submit(lambda: None, lambda _: finished.set())
    async with asyncio.timeout(30):
        await finished.wait()
    assert done == list(range(100))
    assert threads.isdisjoint({threading.get_ident()})
    await thread.close()
    assert failures == []


async def test_a_second_sync_after_a_failed_one_never_passes() -> None:
    failures: list[BaseException | None] = []
    thread = DiskThread(
        "t", asyncio.get_running_loop(), lambda reason, error: failures.append(error)
    )
    done: list[str] = []

    def fail() -> None:
        raise OSError(5, "injected")

    thread.submit(fail, lambda _: done.append("failed one"))
    thread.submit(lambda: None, lambda _: done.append("second one"))
    await thread.close()
    await asyncio.sleep(0)
    assert done == []
    assert [type(error) for error in failures] == [OSError]

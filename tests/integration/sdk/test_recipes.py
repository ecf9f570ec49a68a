"""Each recipe program is killed several times while it runs, and its delivery guarantee still
holds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odradek import Client, sync
from tests.integration.sdk.test_examples import EXAMPLES

pytestmark = pytest.mark.timeout(240)
RECORDS = 2_000
PARTITIONS = 2
KILLS = 4
BATCH_RECORDS = 25
TIMEOUT_S = 90.0
Count = Callable[[], int]


async def fill(bootstrap: str, topic: str, *, times: int = 1) -> None:
    """Write each record `times` times, with numbers as keys, and `ACCOUNT AMOUNT` or a number as
    values.
    """
    async with Client(bootstrap) as client:
        await client.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
        async with client.producer() as producer:
            for number in range(RECORDS):
                for _ in range(times):
                    value = b"%d" % number if times > 1 else b"%d %d" % (number % 7, number)
                    await producer.send(topic, value, key=b"%d" % number)


def killed_again_and_again(
    bootstrap: str,
    recipe: str,
    topic: str,
    path: Path,
    count: Count,
    records: int,
    *,
    apart: Count | None = None,
) -> None:
    """Run the program and kill it several times; then let it run until it does nothing more.

    `apart` returns how many records are committed and not processed, or the other way round. If it is given, each kill
    hits the program while it has records in hand: the kill adds to this number.
    """
    apart_before = 0
    for kill in range(KILLS + 1):
        with running(bootstrap, recipe, topic, path) as program:
            before = count()
            aim = records if kill == KILLS else min(records, before + records // (KILLS + 2))
            last_change_s, last = time.monotonic(), before
            began_s = last_change_s
            while (now := count()) < aim:
                assert program.poll() is None, f"{recipe} ended with {program.returncode}"
                if now != last:
                    last, last_change_s = now, time.monotonic()
                if kill == KILLS and apart is not None and time.monotonic() - last_change_s > 3:
                    # The run ends if the missing records are lost. Otherwise the machine is only slow.
                    if now + apart() == records:
                        break
                    last_change_s = time.monotonic()
                assert time.monotonic() - began_s < TIMEOUT_S, f"{now} of {aim} after {kill} kills"
                time.sleep(0.01)  # another process's state
            if kill < KILLS and apart is not None:
                apart_before = stopped_with_records_in_hand(program, apart, apart_before)
            if kill < KILLS:
                assert count() < records, "it was done before it could be killed"


def stopped_with_records_in_hand(
    program: subprocess.Popen[str], apart: Count, apart_before: int
) -> int:
    """Stop the program (SIGSTOP) when `apart` is greater than before; return it."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        program.send_signal(signal.SIGSTOP)
        if (now := apart()) > apart_before:
            return now
        program.send_signal(signal.SIGCONT)
        assert time.monotonic() < deadline_s, f"{now} records in hand, {apart_before} before"
        time.sleep(0.01)  # another process's state


@contextlib.contextmanager
def running(bootstrap: str, recipe: str, topic: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    program = subprocess.Popen(
        [sys.executable, str(EXAMPLES / recipe), topic, str(path)],
        env={**os.environ, "ODRADEK_BOOTSTRAP": bootstrap},
        text=True,
    )
    try:
        yield program
    finally:
        program.kill()  # SIGKILL
        program.wait()


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def committed(client: sync.Client, group: str) -> int:
    """Return how many records a group has committed."""
    return sum(client.admin.group_offsets(group).values())


def rows(path: Path, query: str) -> list[tuple[int, ...]]:
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as database:
        try:
            return database.execute(query).fetchall()
        except sqlite3.OperationalError:  # its tables are not there yet
            return []


async def test_at_most_once_never_doubles(impatient: str, topic: str, tmp_path: Path) -> None:
    await fill(impatient, topic)
    path = tmp_path / "sent"
    with sync.Client(impatient) as client:
        killed_again_and_again(
            *(impatient, "at_most_once.py", topic, path, lambda: len(lines(path)), RECORDS),
            apart=lambda: committed(client, f"at-most-once.{topic}") - len(lines(path)),
        )
    times = Counter(lines(path))
    assert set(times.values()) == {1}
    lost = RECORDS - len(times)
    assert 0 < lost <= KILLS * BATCH_RECORDS, "what was in hand at a kill, and no more"


async def test_at_least_once_never_loses(impatient: str, topic: str, tmp_path: Path) -> None:
    await fill(impatient, topic)
    path = tmp_path / "shipped"
    with sync.Client(impatient) as client:
        killed_again_and_again(
            *(impatient, "at_least_once.py", topic, path, lambda: len(set(lines(path))), RECORDS),
            apart=lambda: len(lines(path)) - committed(client, f"at-least-once.{topic}"),
        )
    times = Counter(lines(path))
    assert len(times) == RECORDS
    assert 0 < sum(times.values()) - RECORDS <= KILLS * BATCH_RECORDS
    assert max(times.values()) <= KILLS + 1


async def test_a_worker_does_each_job_or_puts_it_into_the_dead_letter_topic(
    impatient: str, topic: str, tmp_path: Path
) -> None:
    bad = {number for number in range(RECORDS) if number % 40 == 0}
    async with Client(impatient) as client:
        await client.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
        async with client.producer() as producer:
            for number in range(RECORDS):
                value = b"no JSON" if number in bad else b'{"order": %d}' % number
                await producer.send(topic, value, key=b"%d" % number, headers=[("source", b"shop")])
    path = tmp_path / "done"
    killed_again_and_again(
        impatient,
        "retrying_worker.py",
        topic,
        path,
        lambda: len(set(lines(path))),
        RECORDS - len(bad),
    )
    assert {int(line) for line in lines(path)} == set(range(RECORDS)) - bad
    origins: dict[int, str] = {}
    async with (
        Client(impatient) as client,
        client.consumer(f"{topic}.dead", auto_offset_reset="earliest") as consumer,
    ):
        while set(origins) != bad:
            records = await consumer.getmany(timeout_ms=10_000)
            assert records, f"not in the dead letter topic: {bad - set(origins)}"
            for record in records:
                headers = dict(record.headers)
                assert headers["source"] == b"shop"
                assert (headers["error"] or b"").startswith(b"JSONDecodeError: Expecting value")
                assert record.value == b"no JSON"
                origin = (headers["origin"] or b"").decode()
                assert origins.setdefault(int(record.key or b""), origin) == origin
    assert len(set(origins.values())) == len(bad)


async def test_the_offset_kept_with_the_result_is_exactly_once(
    impatient: str, topic: str, tmp_path: Path
) -> None:
    await fill(impatient, topic)
    path = tmp_path / "ledger"

    def payments() -> int:
        return sum(n for (n,) in rows(path, "SELECT payments FROM balances"))

    killed_again_and_again(
        impatient, "exactly_once_with_the_result.py", topic, path, payments, RECORDS
    )
    expected = {
        str(account): (
            sum(range(account, RECORDS, 7)),
            len(range(account, RECORDS, 7)),
        )
        for account in range(7)
    }
    found = rows(path, "SELECT account, amount, payments FROM balances")
    assert {account: (amount, count) for account, amount, count in found} == expected
    assert sum(n for (n,) in rows(path, "SELECT next FROM offsets")) == RECORDS


async def test_an_idempotent_consumer_counts_each_event_once(
    impatient: str, topic: str, tmp_path: Path
) -> None:
    await fill(impatient, topic, times=2)
    path = tmp_path / "totals"

    def events() -> int:
        return sum(n for (n,) in rows(path, "SELECT events FROM total"))

    killed_again_and_again(impatient, "idempotent_consumer.py", topic, path, events, RECORDS)
    assert rows(path, "SELECT events, amount FROM total") == [(RECORDS, sum(range(RECORDS)))]

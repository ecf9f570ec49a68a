"""The Spark part of the demo: computes windows over the topic while flights arrive, and writes them back exactly once.
The driver of the pipeline is killed while windows are written. Plain Python computes the same windows for comparison.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odradek.client import Client

_MODULE = "odradek_pipelines.live_delays"
_EXIT_UNAVAILABLE = 3
_WAIT_S = 240.0


@dataclass(slots=True, kw_only=True)
class PipelineOutcome:
    """The result of the Spark pipeline, compared with the result of plain Python."""

    skipped_because: str = ""
    failed_because: str = ""
    windows: int = 0
    differing: int = 0
    dropped_by_watermark: int = 0
    driver_kills: int = 0
    batches_run_again: int = 0
    """The number of batches that the cluster had completed and Spark ran a second time."""
    written: int = 0
    """The number of rows of windows that a consumer with read_committed sees."""
    written_twice: int = 0
    """The number of rows for a window and a batch that already have a row."""
    carriers: list[tuple[str, int, float, float]] = field(default_factory=list)
    """(carrier, flights, mean delay in minutes by Spark, mean delay in minutes by Python)"""

    @property
    def is_well(self) -> bool:
        """Whether all windows are equal and were written exactly once although a batch was run again, or the pipeline
        was skipped. In CI, skipping is a failure.
        """
        if self.skipped_because:
            return not os.environ.get("CI")
        is_exact = not self.differing and not self.written_twice and not self.dropped_by_watermark
        return is_exact and not self.failed_because and self.batches_run_again > 0

    @property
    def complaint(self) -> str:
        """A description of the failure, for an outcome that is a failure."""
        return (
            self.failed_because
            or self.skipped_because
            or f"{self.differing} windows differ, {self.written_twice} rows were written twice, the watermark dropped"
            f" {self.dropped_by_watermark} records, {self.batches_run_again} batches were run again"
        )


class LivePipeline:
    """The pipeline, in its own process. Call `start`, and call `finish` after all records are produced.

    After the first batch is written, but before Spark has recorded that, the driver and its JVM are killed. The driver
    is then started again from its checkpoint, so Spark runs that batch a second time.
    """

    def __init__(self, bootstrap: str, topic: str, records: int, *, target: str) -> None:
        self._bootstrap = bootstrap
        self._target = target
        self._directory = tempfile.TemporaryDirectory(prefix="odradek-demo-")
        self._log = Path(self._directory.name) / "driver.log"
        checkpoint = str(Path(self._directory.name) / "checkpoint")
        self._arguments = (bootstrap, topic, str(records), target, checkpoint)
        self._process: asyncio.subprocess.Process | None = None
        self._following: asyncio.Task[None] | None = None
        self._kills = 0
        self._written: Counter[int] = Counter()
        """By batch number: how often the driver reported the batch as written."""
        self._dropped: dict[int, int] = {}

    async def start(self) -> None:
        """Start the process, without waiting."""
        if importlib.util.find_spec("pyspark_odradek") is None:
            return
        process = await self._spawn()
        self._following = asyncio.create_task(self._follow(process), name="live pipeline")

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _MODULE, *self._arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # So one signal kills the driver and its JVM.
            )
        return self._process

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        """Read the lines of the driver until it ends. Kill it once, when it reports the first written batch, and start
        it again.
        """
        while True:
            was_killed = False
            assert process.stdout is not None
            assert process.stdin is not None
            async for line in process.stdout:
                event = json.loads(line) if line.startswith(b"{") else {}
                if event.get("event") == "progress":
                    self._dropped[event["batch"]] = event["dropped_by_watermark"]
                elif event.get("event") == "written":
                    self._written[event["batch"]] += 1
                    if self._kills:
                        process.stdin.write(b"\n")
                    else:
                        self._kills += 1
                        was_killed = True
                        os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if not was_killed:
                return
            process = await self._spawn()

    async def finish(self, values: Iterable[bytes]) -> PipelineOutcome:
        """Wait until all windows are written, and compare them with the windows that Python computes from these
        values.
        """
        if self._process is None or self._following is None:
            return PipelineOutcome(skipped_because="the Spark connector is not installed")
        rows: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._following
                if self._process.returncode == 0:
                    rows = await self._read_target()
        except TimeoutError:
            return PipelineOutcome(
                failed_because=f"the windows were not written within {_WAIT_S:.0f} s; {self._last_words()}"
            )
        if self._process.returncode == _EXIT_UNAVAILABLE:
            return PipelineOutcome(skipped_because=self._last_words())
        if self._process.returncode:
            return PipelineOutcome(failed_because=self._last_words())
        outcome = _compare(_last_of_each(rows), values)
        outcome.driver_kills = self._kills
        outcome.batches_run_again = sum(times > 1 for times in self._written.values())
        outcome.written = len(rows)
        written = Counter((row["carrier"], row["hour"], row["batch"]) for row in rows)
        outcome.written_twice = written.total() - len(written)
        outcome.dropped_by_watermark = sum(self._dropped.values())
        return outcome

    def _last_words(self) -> str:
        return " / ".join(self._log.read_text(errors="replace").strip().splitlines()[-3:])

    async def _read_target(self) -> list[dict[str, Any]]:
        """Return all windows that a consumer with read_committed sees."""
        rows: list[dict[str, Any]] = []
        async with (
            Client(self._bootstrap) as client,
            client.consumer(self._target, auto_offset_reset="earliest") as all_records,
            client.consumer(
                self._target, auto_offset_reset="earliest", isolation_level="read_committed"
            ) as committed_records,
        ):
            # Transaction markers have offsets, too, but are not records, so the loop compares positions.
            for partition, end in (await all_records.end_offsets(all_records.assignment())).items():
                while await committed_records.position(partition) < end:
                    records = await committed_records.getmany(timeout_ms=500)
                    rows += [json.loads(record.value) for record in records if record.value]
        return rows

    async def cancel(self) -> None:
        """Kill the process, and delete its files."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        self._directory.cleanup()


def _last_of_each(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the latest row of each window, which is the row from the last batch that changed the window."""
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: int(row["batch"])):
        last[row["carrier"], row["hour"]] = row
    return list(last.values())


def _compare(rows: Iterable[dict[str, Any]], values: Iterable[bytes]) -> PipelineOutcome:
    direct: dict[tuple[str, str], list[int]] = defaultdict(list)
    for value in values:
        row = json.loads(value)
        if row["arr_delay"] is not None:
            direct[(row["carrier"], row["time_hour"])].append(row["arr_delay"])
    by_spark = {
        (row["carrier"], row["hour"]): (row["flights"], row["delay_sum_min"]) for row in rows
    }
    expected = {key: (len(delays), sum(delays)) for key, delays in direct.items()}
    differing = sum(by_spark.get(key) != expected.get(key) for key in {*by_spark, *expected})
    carriers = sorted({carrier for carrier, _ in expected})
    table = []
    for carrier in carriers:
        spark_sums = [at for (c, _), at in by_spark.items() if c == carrier]
        sums = [at for (c, _), at in expected.items() if c == carrier]
        flights = sum(count for count, _ in sums)
        by_spark_flights = max(1, sum(count for count, _ in spark_sums))
        table.append(
            (
                carrier,
                flights,
                sum(total for _, total in spark_sums) / by_spark_flights,
                sum(total for _, total in sums) / flights,
            )
        )
    return PipelineOutcome(
        windows=len(by_spark),
        differing=differing,
        carriers=sorted(table, key=lambda row: -row[1]),
    )

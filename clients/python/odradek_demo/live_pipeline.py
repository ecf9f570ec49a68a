"""The Spark part of the demo: a windowed aggregation over the topic while flights arrive, checked by plain Python."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_MODULE = "odradek_pipelines.live_delays"
_EXIT_UNAVAILABLE = 3
_WAIT_S = 150.0


@dataclass(slots=True, kw_only=True)
class PipelineOutcome:
    """The result of Spark, and its comparison with the result of plain Python."""

    skipped_because: str = ""
    failed_because: str = ""
    windows: int = 0
    differing: int = 0
    dropped_by_watermark: int = 0
    carriers: list[tuple[str, int, float, float]] = field(default_factory=list)
    """Carrier, flights that arrived, mean delay in minutes by Spark and by Python."""

    @property
    def is_well(self) -> bool:
        """Whether all windows are equal, or the part was skipped with a reason, which is a failure in CI."""
        if self.skipped_because:
            return not os.environ.get("CI")
        return not self.failed_because and not self.differing and not self.dropped_by_watermark

    @property
    def complaint(self) -> str:
        """The failure in words, if it is not well."""
        return self.failed_because or self.skipped_because or "its table differs"


class LivePipeline:
    """The pipeline, which runs as a process: `start` it, and `finish` after all records are produced."""

    def __init__(self, bootstrap: str, topic: str, records: int) -> None:
        self._arguments = (bootstrap, topic, str(records))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process, without waiting."""
        if importlib.util.find_spec("pyspark_odradek") is None:
            return
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", _MODULE, *self._arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def finish(self, values: Iterable[bytes]) -> PipelineOutcome:
        """Wait for the result table and compare it with the one that Python computes from these records."""
        if self._process is None:
            return PipelineOutcome(skipped_because="the Spark connector is not installed")
        try:
            async with asyncio.timeout(_WAIT_S):
                out, said = await self._process.communicate()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            return PipelineOutcome(failed_because=f"no table within {_WAIT_S:.0f} s")
        if self._process.returncode == _EXIT_UNAVAILABLE:
            return PipelineOutcome(skipped_because=said.decode(errors="replace").strip())
        if self._process.returncode:
            lines = said.decode(errors="replace").strip().splitlines()[-3:]
            return PipelineOutcome(failed_because=" / ".join(lines))
        return _compare(json.loads(out.splitlines()[-1]), values)

    async def cancel(self) -> None:
        """Stop the process at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def _compare(result: dict[str, Any], values: Iterable[bytes]) -> PipelineOutcome:
    direct: dict[tuple[str, str], list[int]] = defaultdict(list)
    for value in values:
        row = json.loads(value)
        if row["arr_delay"] is not None:
            direct[(row["carrier"], row["time_hour"])].append(row["arr_delay"])
    by_spark = {
        (row["carrier"], row["hour"]): (row["flights"], row["delay_sum_min"])
        for row in result["rows"]
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
        dropped_by_watermark=int(result["dropped_by_watermark"]),
        carriers=sorted(table, key=lambda row: -row[1]),
    )

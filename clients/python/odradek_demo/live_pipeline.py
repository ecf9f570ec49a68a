"""The demo's Spark part: a windowed aggregation over the topic while flights stream in, checked by plain Python."""

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
    """What Spark computed, and whether it is what plain Python computes."""

    skipped_because: str = ""
    failed_because: str = ""
    windows: int = 0
    differing: int = 0
    dropped_by_watermark: int = 0
    carriers: list[tuple[str, int, float, float]] = field(default_factory=list)
    """Carrier, flights that arrived, mean delay in minutes by Spark and directly."""

    @property
    def is_well(self) -> bool:
        """The same in every window; or skipped with a reason, which in CI is a failure."""
        if self.skipped_because:
            return not os.environ.get("CI")
        return not self.failed_because and not self.differing and not self.dropped_by_watermark

    @property
    def complaint(self) -> str:
        """What is wrong, when it is not well."""
        return self.failed_because or self.skipped_because or "its table differs"


class LivePipeline:
    """The pipeline as a process of its own: `start`, then `finish` when all is produced."""

    def __init__(self, bootstrap: str, topic: str, records: int) -> None:
        self._arguments = (bootstrap, topic, str(records))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Begin; does not wait."""
        if importlib.util.find_spec("pyspark_odradek") is None:
            return
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", _MODULE, *self._arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def finish(self, values: Iterable[bytes]) -> PipelineOutcome:
        """Wait for its table and compare it with the same computed from these records."""
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
        """End it, whatever it does."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def _compare(told: dict[str, Any], values: Iterable[bytes]) -> PipelineOutcome:
    direct: dict[tuple[str, str], list[int]] = defaultdict(list)
    for value in values:
        row = json.loads(value)
        if row["arr_delay"] is not None:
            direct[(row["carrier"], row["time_hour"])].append(row["arr_delay"])
    by_spark = {
        (row["carrier"], row["hour"]): (row["flights"], row["delay_sum_min"])
        for row in told["rows"]
    }
    wanted = {key: (len(delays), sum(delays)) for key, delays in direct.items()}
    differing = sum(by_spark.get(key) != wanted.get(key) for key in {*by_spark, *wanted})
    carriers = sorted({carrier for carrier, _ in wanted})
    table = []
    for carrier in carriers:
        spark_sums = [at for (c, _), at in by_spark.items() if c == carrier]
        sums = [at for (c, _), at in wanted.items() if c == carrier]
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
        dropped_by_watermark=int(told["dropped_by_watermark"]),
        carriers=sorted(table, key=lambda row: -row[1]),
    )

"""Runs the reads of one side in one JVM: `python spark_reads.py SIDE BOOTSTRAP JARS`, with one command in each line of
standard input.

`batch TOPIC` reads a topic as a batch, and `now TOPIC` as a stream with AvailableNow. The output is
a line of JSON with seconds and CPU seconds (of the JVM and of Python workers), and for `now` the number of records.
`plan TOPIC` and `triggers TOPIC N` measure overheads. The program runs in the benchmark's own
environment, so it imports nothing from the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_by_kind() -> dict[str, float]:
    """Return the CPU seconds of this process's descendants: of the JVM, and of Python workers (also
    those that ended).
    """
    used = {"jvm": 0.0, "python": 0.0}
    parents: dict[int, tuple[int, str, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            name, fields = (
                text[text.index("(") + 1 : text.rindex(")")],
                text.rsplit(")", 1)[1].split(),
            )
            # These are the process's own ticks, and those of its ended children.
            ticks = sum(int(field) for field in fields[11:15])
            parents[int(entry.name)] = (int(fields[1]), name, ticks / TICKS)
    for pid, (_, name, seconds) in parents.items():
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above][0]
        if above == os.getpid() and pid != os.getpid():
            used["jvm" if name == "java" else "python"] += seconds
    return used


def session(side: str, jars: str) -> SparkSession:
    """Start a Spark session; both sides have the same settings.

    Odradek's side is started by the connector's own helper, which also chooses the interpreter of
    the workers.
    """
    settings = {
        "spark.app.name": f"bench {side}",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.master": "local[2]",
    }
    if side == "kafka":
        settings["spark.jars"] = ",".join(str(p) for p in Path(jars).glob("*.jar"))
        builder = SparkSession.builder
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    else:
        from pyspark_odradek import session as our_session

        spark = our_session(**settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Reads:
    def __init__(self, side: str, bootstrap: str, jars: str) -> None:
        self.spark = session(side, jars)
        self.side = side
        self.options = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest"}

    def batch(self, topic: str) -> dict[str, Any]:
        """Read all of a topic into the noop sink."""
        frame = self._frame(self.spark.read, topic)
        began_s, before = time.perf_counter(), cpu_by_kind()
        frame.write.format("noop").mode("overwrite").save()
        return self._took(began_s, before)

    def now(self, topic: str) -> dict[str, Any]:
        """Read all of a topic as a stream with Trigger.AvailableNow."""
        began_s, before = time.perf_counter(), cpu_by_kind()
        progress = self._stream(topic, {"availableNow": True}, {})
        return self._took(began_s, before) | {
            "records": sum(p.numInputRows for p in progress),
            "duration_ms": progress[-1].durationMs,
        }

    def triggers(self, topic: str, count: int) -> dict[str, Any]:
        """Read in many triggers of few records, to measure what a trigger costs besides
        addBatch.
        """
        total = self._frame(self.spark.read, topic).count()
        per_trigger = str(max(1, total // count))
        progress = self._stream(
            topic, {"availableNow": True}, {"maxOffsetsPerTrigger": per_trigger}
        )
        durations = [p.durationMs for p in progress if p.numInputRows][1:]
        return {
            "batches": len(durations),
            "overhead_ms": statistics.median(
                d["triggerExecution"] - d["addBatch"] for d in durations
            ),
            "latest_offset_ms": statistics.median(d["latestOffset"] for d in durations),
            "trigger_ms": statistics.median(d["triggerExecution"] for d in durations),
            "parts_ms": {
                name: statistics.median(d.get(name, 0) for d in durations)
                for name in ("addBatch", "queryPlanning", "walCommit", "commitOffsets", "getBatch")
            },
        }

    def plan(self, topic: str) -> dict[str, Any]:
        """Measure the planning of a read of many partitions."""
        seconds = []
        for _ in range(5):
            began_s = time.perf_counter()
            tasks = self._frame(self.spark.read, topic).rdd.getNumPartitions()
            seconds.append(time.perf_counter() - began_s)
        return {"tasks": tasks, "seconds": statistics.median(seconds)}

    def _frame(self, reader: Any, topic: str) -> DataFrame:
        frame: DataFrame = (
            reader.format(self.side).options(**self.options).option("subscribe", topic).load()
        )
        return frame

    def _stream(self, topic: str, trigger: dict[str, Any], options: dict[str, str]) -> list[Any]:
        directory = tempfile.mkdtemp(prefix="bench-spark-")
        try:
            frame = self._frame(self.spark.readStream.options(**options), topic)
            writer = frame.writeStream.format("noop").option("checkpointLocation", directory)
            query = writer.trigger(**trigger).start()
            query.awaitTermination()
            return list(query.recentProgress)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _took(self, began_s: float, before: dict[str, float]) -> dict[str, Any]:
        seconds, after = time.perf_counter() - began_s, cpu_by_kind()
        return {
            "seconds": seconds,
            **{f"{kind}_cpu_s": after[kind] - before[kind] for kind in after},
        }


def main() -> None:
    side, bootstrap, jars = sys.argv[1:4]
    reads = Reads(side, bootstrap, jars)
    print(json.dumps({"ready": side}), flush=True)
    for line in sys.stdin:
        order, *arguments = line.split()
        if order == "batch":
            answer = reads.batch(arguments[0])
        elif order == "now":
            answer = reads.now(arguments[0])
        elif order == "plan":
            answer = reads.plan(arguments[0])
        else:
            answer = reads.triggers(arguments[0], int(arguments[1]))
        print(json.dumps({"side": side, "order": order, **answer}), flush=True)
    reads.spark.stop()


if __name__ == "__main__":
    main()

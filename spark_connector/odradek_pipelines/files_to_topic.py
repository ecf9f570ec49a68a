"""The pipeline `files-to-topic`: it writes the files that appear in a directory or on an FTP server to a topic, one
record for each line.

A file in the directory must be complete when it appears. So write it under a name with a leading dot, and then rename
it. Files on an FTP server are copied to a spool directory, from which Spark reads them. A file is fetched once, when
its size is the same in two successive listings. With --csv the first line of each file names the fields, and each
record is a JSON object with these fields.
"""

from __future__ import annotations

import csv
import ftplib
import logging
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from odradek_pipelines.ftp_server import FtpDirectory
from odradek_pipelines.pipeline import (
    Pipeline,
    checkpoint_of,
    count,
    target_of,
    write_topic,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TARGET: Final = "lines"
_LOOK_S: Final = 2.0
_log = logging.getLogger(__name__)


class Spool:
    """Copies new files of an FTP directory to a local directory. A file that exists locally is not fetched again."""

    def __init__(self, remote: FtpDirectory, directory: Path) -> None:
        self._remote = remote
        self._directory = directory
        self._sizes: dict[str, int] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def fetch_new(self, *, must_rest: bool) -> list[str]:
        """Fetch new files and return their names. The call blocks.

        With `must_rest`, fetch only files whose size has not changed since the previous call.
        """
        sizes = self._remote.sizes()
        before, self._sizes = self._sizes, sizes
        fetched = []
        for name, size in sorted(sizes.items()):
            if (self._directory / name).exists():
                continue
            if not must_rest or before.get(name) == size:
                self._remote.fetch(name, self._directory)
                fetched.append(name)
        return fetched

    def follow(self) -> None:
        """Start a daemon thread that fetches new files every few seconds. After a failure it tries again."""
        threading.Thread(target=self._follow, name="ftp spool", daemon=True).start()

    def _follow(self) -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_S):
            try:
                self.fetch_new(must_rest=True)
            except ftplib.all_errors as error:
                _log.warning("Failed to fetch files from %s: %s", self._remote, error)


def lines(
    spark: SparkSession,
    directory: Path,
    *,
    is_csv: bool,
    key: str | None,
    files_max: int | None = None,
) -> DataFrame:
    """Return a stream of rows for the sink, one for each line of the files that appear in a directory.

    `key` names the CSV field that becomes the record's key. A batch has at most `files_max` files; None: no limit.
    """
    from pyspark.sql import functions as f

    reader = spark.readStream
    if files_max is not None:
        reader = reader.option("maxFilesPerTrigger", files_max)
    if not is_csv:
        return reader.text(str(directory)).select(f.col("value"))
    files = [path for path in directory.iterdir() if not path.name.startswith(".")]
    if not files:
        raise ValueError(
            f"there is no file in {directory} yet, but --csv needs one, because its first line names the"
            " fields: start again when there is a file"
        )
    first = min(files)
    with first.open(newline="", encoding="utf-8") as file:
        names = next(csv.reader(file))
    schema = ", ".join(f"`{name}` string" for name in names)
    # With enforceSchema off, a file with other columns, or with columns in another order, fails instead of being
    # misread.
    rows = reader.schema(schema).csv(str(directory), header=True, enforceSchema=False)
    value = f.to_json(f.struct(*(f"`{name}`" for name in names)), {"ignoreNullFields": "false"})
    columns = [] if key is None else [f.col(f"`{key}`").alias("key")]
    return rows.select(*columns, value.alias("value"))


def _arguments(parser: ArgumentParser) -> None:
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument(
        "--directory", type=Path, default=None, help="read the files that appear in this directory"
    )
    place.add_argument(
        "--ftp",
        default=None,
        help="fetch the files from this address: ftp://user:password@host:port/path",
    )
    parser.add_argument(
        "--csv",
        action="store_true",
        help="the files are CSV, and the first line of each file names the fields",
    )
    parser.add_argument(
        "--key",
        default=None,
        help="CSV field whose value becomes the record's key; only with --csv",
    )
    parser.add_argument(
        "--batch-files-max",
        type=count,
        default=None,
        help="read at most this many files per trigger; default: no limit",
    )


def _directory(settings: Namespace) -> Path:
    if settings.ftp is None:
        directory: Path = settings.directory
        if not directory.is_dir():
            raise ValueError(f"{directory} is not a directory")
        return directory
    checkpoint = Path(checkpoint_of(settings, PIPELINE.name))
    return checkpoint.with_name(f"{checkpoint.name}.spool")


def _plan(settings: Namespace) -> Sequence[str]:
    directory = _directory(settings)
    steps = [f"read files that appear in {directory}, one record per line"]
    if settings.ftp is not None:
        steps.insert(0, f"copy new files of {FtpDirectory(settings.ftp)} to {directory}")
    if settings.csv:
        steps.append("convert each line to a JSON object with the fields of the file's first line")
    elif settings.key is not None:
        raise ValueError("--key needs --csv, because it names a CSV field")
    return [
        *steps,
        f"write to topic {target_of(settings, TARGET)!r} at {settings.bootstrap}",
    ]


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    directory = _directory(settings)
    if settings.ftp is not None:
        spool = Spool(FtpDirectory(settings.ftp), directory)
        spool.fetch_new(must_rest=False)
        if not settings.available_now:
            spool.follow()
    rows = lines(
        spark,
        directory,
        is_csv=settings.csv,
        key=settings.key,
        files_max=settings.batch_files_max,
    )
    return [write_topic(rows, settings, PIPELINE.name, topic=target_of(settings, TARGET))]


PIPELINE: Final = Pipeline(
    name="files-to-topic",
    summary="the lines of files in a directory or on an FTP server to a topic",
    plan=_plan,
    start=_start,
    add_arguments=_arguments,
)

"""`odradek produce`: send the lines of a file or of standard input as records."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, Literal

import typer

from odradek.cli.connection import PATIENCE_S, complete_topics, with_client
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_USAGE,
    Bootstrap,
    Output,
    OutputFormat,
    Progress,
    canonical,
    counted,
    fail,
    print_facts,
    say,
    unescaped,
)
from odradek.cli.record_format import InputRecord, InvalidRecord, fields_of, key_in, record_of
from odradek.errors import InvalidRequest, OdradekError, RecordTooLarge, UnknownTopic
from odradek.spelling import similar_to

if TYPE_CHECKING:
    from odradek.client import Client
    from odradek.producer.delivery import DeliveryFuture
    from odradek.producer.producer import Producer


REQUEST_BYTES_MAX: Final = 32 * 1024 * 1024
"""The largest request, and thus the largest record. The topic's max.message.bytes is usually lower."""
INTERRUPTED_FLUSH_S_MAX: Final = 5.0
"""How long an interrupted command tries to send the lines that it has already read."""
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
FIELDS_MAX: Final = 20
"""The most fields of a line that an error message names."""
_CHUNK_BYTES: Final = 256 * 1024
_CHUNKS_WAITING_MAX: Final = 4


async def lines_of(descriptor: int, *, line_bytes_max: int) -> AsyncIterator[list[bytes]]:
    """Yield lists of lines until the end of the file. Each list has the lines that arrived since the previous list,
    without line ends. Raises RecordTooLarge for a line longer than `line_bytes_max`, and OSError.

    A read blocks until input arrives. It runs in a thread, so that earlier lines are sent while a user types the next.
    The thread is a daemon, because a terminal may never return another line. The thread uses `os.read`, because a read
    of `sys.stdin` would hold a lock that the interpreter needs to exit. It reads from a duplicate of the descriptor,
    because the caller may close the descriptor, and another file may get its number, before the thread ends.
    """
    import asyncio

    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    free_slots = threading.Semaphore(_CHUNKS_WAITING_MAX)
    has_ended = threading.Event()
    loop = asyncio.get_running_loop()
    own_descriptor = os.dup(descriptor)

    def read() -> None:
        chunk: bytes | OSError
        try:
            while free_slots.acquire() and not has_ended.is_set():
                try:
                    chunk = os.read(own_descriptor, _CHUNK_BYTES)
                except OSError as error:
                    chunk = error
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
                if not chunk or isinstance(chunk, OSError):
                    return
        except RuntimeError:  # The event loop is closed.
            return
        finally:
            os.close(own_descriptor)

    threading.Thread(target=read, name="read input", daemon=True).start()
    rest = bytearray()  # The beginning of a line whose end has not arrived.
    try:
        while chunk := await chunks.get():
            free_slots.release()
            if isinstance(chunk, OSError):
                raise chunk
            first, *others = chunk.split(b"\n")
            rest += first
            if len(rest) > line_bytes_max:
                raise RecordTooLarge(f"a line of the input is longer than {line_bytes_max} bytes")
            if others:
                lines = [bytes(rest), *others[:-1]]
                rest = bytearray(others[-1])
                has_returns = b"\r" in chunk or lines[0].endswith(b"\r")
                yield [line.removesuffix(b"\r") for line in lines] if has_returns else lines
        if rest:
            yield [bytes(rest).removesuffix(b"\r")]
    finally:
        has_ended.set()
        free_slots.release()


def produce(
    topic: Annotated[
        str, typer.Argument(help="Name of the topic to write to.", autocompletion=complete_topics)
    ],
    file: Annotated[
        str,
        typer.Argument(
            help="File whose lines become records; - is standard input.", show_default=False
        ),
    ] = "-",
    acks: Annotated[
        str,
        typer.Option(
            metavar="[0|1|all]",
            help="When a record counts as written: when it is sent (0), when the leader has it (1),"
            " or when all in-sync replicas have it (all).",
        ),
    ] = "all",
    key_separator: Annotated[
        str | None,
        typer.Option(
            "-k",
            "--key-separator",
            metavar="TEXT",
            help="Text between the key and the value of a line; \\t is a tab. A line without this text becomes a record"
            " without a key. If none of the first lines has it, nothing is written.",
        ),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Lines are JSON objects: use the field NAME of each as the key, and the whole line as the value."
            " Dots select a field in an object: customer.id. If none of the first lines has the field, nothing is"
            " written.",
        ),
    ] = None,
    allow_missing_keys: Annotated[
        bool,
        typer.Option(
            "--allow-missing-keys",
            help="Write the records without keys even if none of the first lines has the text of -k or the field of"
            " --key-field.",
        ),
    ] = False,
    partition: Annotated[
        int | None,
        typer.Option(
            "-p",
            "--partition",
            min=0,
            metavar="N",
            help="Write all records to this partition. [default: the key of each record determines its partition]",
        ),
    ] = None,
    null: Annotated[
        str | None,
        typer.Option(
            "-Z",
            "--null",
            metavar="TEXT",
            help="For a line whose value is this text, send a tombstone (a record without a value).",
        ),
    ] = None,
    is_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Lines are JSON objects with key, value, headers, partition and timestamp_ms,"
            " as `odradek consume -o json` prints them.",
        ),
    ] = False,
    repartition: Annotated[
        bool,
        typer.Option(
            "--repartition",
            help="With --json, ignore the partitions in the input and choose them by key.",
        ),
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "-H",
            "--header",
            metavar="NAME=VALUE",
            help="Add this header to every record. Repeatable.",
        ),
    ] = None,
    create: Annotated[
        bool,
        typer.Option(
            "--create",
            help="Create the topic if it does not exist, with the cluster's default numbers of partitions and"
            " replicas.",
        ),
    ] = False,
    compression: Annotated[
        Compression, typer.Option(help="Compress batches of records with this codec.")
    ] = "none",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Send each line of a file or of standard input as a record.

    The exit status is 0 only if all records were acknowledged.

    With --json, a line is an object such as {"key": "k", "value": "v", "headers": [["n", "v"]]}. The value null makes
    the record a tombstone, {"base64": "..."} stands for bytes, and a number, array or object is sent as JSON text.
    With --json and --key-field, blank lines are skipped.
    """
    acks = canonical("--acks", acks, ("0", "1", "all"))
    if key_separator == "":
        fail("--key-separator must not be empty", status=EXIT_USAGE)
    if is_json and (key_separator is not None or null is not None):
        fail(
            '-k and -Z cannot be used with --json: write the key as "key", and a tombstone as "value": null',
            status=EXIT_USAGE,
        )
    if key_field is not None and (is_json or key_separator is not None):
        fail(
            "--key-field cannot be used together with --json or -k: choose one source for the key",
            status=EXIT_USAGE,
        )
    if allow_missing_keys and key_field is None and key_separator is None:
        fail("--allow-missing-keys can be used only with -k or --key-field", status=EXIT_USAGE)
    if repartition and (not is_json or partition is not None):
        fail(
            "--repartition can be used only with --json and without --partition", status=EXIT_USAGE
        )
    headers = tuple(_header(text) for text in header or ())
    source = _open(file)
    run = _Run(
        separator=None if key_separator is None else unescaped(key_separator).encode(),
        null=None if null is None else unescaped(null).encode(),
        key_field=key_field,
        is_json=is_json,
    )
    keeps_partitions = partition is None and not repartition
    progress = Progress("line", is_seen=source.isatty())
    if progress.is_watched and source.isatty():
        say(
            "Each line becomes a record. Press Ctrl-D at the beginning of a line to end the input.",
            is_error=True,
        )

    async def work(client: Client) -> None:
        from odradek.producer.delivery import Deliveries

        producer_acks: Literal[0, 1, "all"] = "all" if acks == "all" else (1 if acks == "1" else 0)
        producer = client.producer(
            acks=producer_acks,
            compression=compression,
            request_bytes_max=REQUEST_BYTES_MAX,
            allow_auto_create_topics=create,
        )
        client._cluster.missing_topics.on_created = lambda note: progress.say(f"odradek: {note}")
        async with _explained(run, producer, progress):
            async for lines in lines_of(source.fileno(), line_bytes_max=REQUEST_BYTES_MAX):
                if not run.sent and not allow_missing_keys and (reason := run.why_keyless(lines)):
                    fail(
                        f"{reason} Nothing was written; with --allow-missing-keys, the records are written without"
                        " keys",
                        status=EXIT_USAGE,
                    )
                if run.has_values_only and not headers:
                    run.sent += len(lines)
                    deliveries = Deliveries()
                    try:
                        await producer._send_into(deliveries, topic, lines, partition=partition)
                    finally:
                        deliveries.add_done_callback(run.count)
                else:
                    for line in lines:
                        record = run.record(line)
                        if record is None:
                            continue
                        target = record.partition if keeps_partitions else partition
                        try:
                            future = await producer.send(
                                topic,
                                record.value,
                                key=record.key,
                                headers=(*record.headers, *headers) or None,
                                partition=target,
                                timestamp_ms=record.timestamp_ms,
                            )
                        except RecordTooLarge as error:
                            raise RecordTooLarge(
                                f"line {run.lines} of the input: {error.message}", hint=error.hint
                            ) from None
                        except UnknownTopic as error:
                            if target is None or target != record.partition:
                                raise
                            raise _partition_missing(error, topic, target) from error
                        future.add_done_callback(partial(run.count_line, run.lines))
                progress.add(len(lines))
            await producer.flush()

    with source, progress:
        with_client(bootstrap, work, is_quick=False)
    if run.error is not None:
        line = "" if run.failed_line is None else f"line {run.failed_line} of the input: "
        fail(
            f"{run.failed:,} of {counted(run.sent, 'record')} were not acknowledged: {line}{run.error}"
        )
    if run.without_key:
        key_source = f"'{key_separator}'" if key_field is None else f"field {key_field}"
        print(
            f"odradek: {run.without_key:,} of {counted(run.sent, 'line')} had no {key_source}:"
            f" {'its record was' if run.without_key == 1 else 'their records were'} sent without a key",
            file=sys.stderr,
        )
    if output is OutputFormat.JSON:
        print_facts({"topic": topic, "records": run.sent}, output)


def _partition_missing(error: UnknownTopic, topic: str, partition: int) -> UnknownTopic:
    """Return the error for an input line whose partition the topic does not have, with both remedies as the hint."""
    return UnknownTopic(
        error.message,
        code=error.code,
        hint=f"give {topic} at least {partition + 1} partitions (`odradek topic add-partitions`), or pass"
        " --repartition, which chooses partitions by key",
    )


class _Run:
    """Converts the lines of one `odradek produce` to records, and counts the records by outcome."""

    def __init__(
        self, *, separator: bytes | None, null: bytes | None, key_field: str | None, is_json: bool
    ) -> None:
        self._separator = separator
        self._null = null
        self._key_field = key_field
        self._is_json = is_json
        self.has_values_only = (
            separator is None and null is None and not is_json and key_field is None
        )
        """Whether each whole line is the value of a record without a key."""
        self.lines = 0
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.without_key = 0
        self.failed_line: int | None = None
        """The line of the first record that failed, if it failed because it is too large."""
        self.error: BaseException | None = None
        """The error of the first record that failed; None if none failed."""

    def record(self, line: bytes) -> InputRecord | None:
        """Convert a line of the input to a record, and count it as sent. The result is None for a blank line between
        JSON objects.

        Raises:
            InvalidRequest: the line is not JSON, or not a JSON object that describes a record.
        """
        key, value = None, line
        self.lines += 1
        if self._is_blank(line):
            return None
        try:
            if self._is_json:
                record = record_of(line)
                self.sent += 1
                return record
            if self._key_field is not None and value != self._null:
                key = key_in(line, self._key_field)
                self.without_key += key is None
        except InvalidRecord as error:
            raise InvalidRequest(f"line {self.lines} of the input: {error}") from None
        self.sent += 1
        if self._separator is not None:
            first, was_split, rest = line.partition(self._separator)
            if was_split:
                key, value = first, rest
            else:
                self.without_key += 1
        if value == self._null:
            return InputRecord(key=key, value=None)
        return InputRecord(key=key, value=value)

    def _is_blank(self, line: bytes) -> bool:
        has_objects = self._is_json or self._key_field is not None
        return has_objects and line != self._null and not line.strip()

    def why_keyless(self, lines: Sequence[bytes]) -> str:
        """Return why none of these first lines of the input has a key, as sentences for the user. The result is "" if
        a line has a key, or if the keys do not come from the lines.

        Raises:
            InvalidRequest: a line before the first line with a key is not a JSON object, or its field cannot be a key.
        """
        if self._separator is not None:
            if any(self._separator in line for line in lines):
                return ""
            shown_separator = repr(self._separator.decode())
            return f"-k {shown_separator}: none of the first {counted(len(lines), 'line')} has this text."
        if self._key_field is None:
            return ""
        with_value = [
            (number, line)
            for number, line in enumerate(lines, self.lines + 1)
            if line != self._null and not self._is_blank(line)
        ]
        for number, line in with_value:
            try:
                if key_in(line, self._key_field) is not None:
                    return ""
            except InvalidRecord as error:
                raise InvalidRequest(f"line {number} of the input: {error}") from None
        if not with_value:
            return ""
        names = fields_of(with_value[0][1])
        near = similar_to(self._key_field, names)
        suggestion = f"; did you mean {near[0]!r}?" if near else "."
        shown_names = ", ".join(names[:FIELDS_MAX]) + (" ..." if len(names) > FIELDS_MAX else "")
        return (
            f"--key-field {self._key_field}: none of the first {counted(len(lines), 'line')} has a value in this"
            f" field{suggestion} The fields of line {with_value[0][0]} are {shown_names}."
        )

    def count(self, records: int, error: OdradekError | None) -> None:
        """Count `records` records as acknowledged if `error` is None, otherwise as failed."""
        if error is None:
            self.acknowledged += records
        else:
            self.failed += records
            self.error = self.error or error

    def count_line(self, number: int, delivery: DeliveryFuture) -> None:
        """Count the record of a line as acknowledged or failed. Only the error of a record that is too large names the
        line, because after any other error, another record of the batch may be the cause.
        """
        error = delivery.exception()
        if isinstance(error, RecordTooLarge) and self.error is None:
            self.failed_line = number
        self.count(1, error)

    @property
    def undecided(self) -> int:
        """The number of records that are neither acknowledged nor failed yet."""
        return self.sent - self.acknowledged - self.failed


@contextlib.asynccontextmanager
async def _explained(run: _Run, producer: Producer, progress: Progress) -> AsyncIterator[None]:
    """Print what the producer waits for while the block runs, and close the producer at the end. If the command was
    interrupted, report how many records were not acknowledged. After any other error, report how many were.
    """
    import asyncio

    async def explain() -> None:
        last_reason = ""
        while True:
            acknowledged = run.acknowledged
            await asyncio.sleep(PATIENCE_S)
            is_stuck = run.acknowledged == acknowledged or producer._sender.is_throttled
            if run.undecided and is_stuck:
                reason = producer.explain_waiting()
                if reason and reason != last_reason:
                    progress.say(
                        f"odradek: waiting: {counted(run.undecided, 'record')} not acknowledged yet: {reason}"
                    )
                    last_reason = reason

    explaining = asyncio.create_task(explain())
    try:
        yield
        await producer.close()
    except BaseException as error:
        # Lines that were read before the interruption, or before an invalid line, are still sent.
        is_interrupted = isinstance(error, asyncio.CancelledError)
        if is_interrupted and run.undecided:
            progress.say(
                f"odradek: interrupted; trying for up to {INTERRUPTED_FLUSH_S_MAX:.0f} s to send the last"
                f" {counted(run.undecided, 'record')}"
            )
        await producer.close(INTERRUPTED_FLUSH_S_MAX)
        if is_interrupted and run.sent > run.acknowledged:
            missing = run.sent - run.acknowledged
            progress.say(
                f"odradek: interrupted; {missing:,} of {counted(run.sent, 'record')} were not acknowledged"
            )
        elif not is_interrupted and run.acknowledged:
            were = "record was" if run.acknowledged == 1 else "records were"
            progress.say(f"odradek: {run.acknowledged:,} {were} written before this error:")
        raise
    finally:
        explaining.cancel()
        await producer.close(0)


def _open(file: str) -> BinaryIO:
    if file == "-":
        if sys.stdin is None:
            fail("standard input is closed: name a file to read instead", status=EXIT_USAGE)
        return sys.stdin.buffer
    try:
        return Path(file).open("rb")
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}", status=EXIT_USAGE)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals:
        fail(f"--header {text!r} does not have the form NAME=VALUE", status=EXIT_USAGE)
    return name, value.encode()

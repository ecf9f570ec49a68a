"""`odradek produce`: send the lines of a file or of standard input as records."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator
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
    fail,
    print_facts,
    say,
    unescaped,
)
from odradek.errors import RecordTooLarge

if TYPE_CHECKING:
    from odradek.client import Client
    from odradek.producer.delivery import DeliveryFuture
    from odradek.producer.producer import Producer


REQUEST_BYTES_MAX: Final = 32 * 1024 * 1024
"""The limit of one record, too; the topic's max.message.bytes is usually lower."""
INTERRUPTED_FLUSH_S_MAX: Final = 5.0
"""How long an interrupted command tries to send the lines that it has read."""
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
_CHUNK_BYTES: Final = 256 * 1024
_CHUNKS_WAITING_MAX: Final = 4


async def lines_of(descriptor: int, *, line_bytes_max: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines that arrived since the last time, without line ends, until the end of the file.

    Raises RecordTooLarge for a line longer than `line_bytes_max`, and OSError.

    A thread reads, because reading blocks: earlier lines are sent while the next one is being typed. It is a daemon,
    because a terminal may never return another line. It uses `os.read`, because it would hold the lock of `sys.stdin`
    at exit.
    """
    import asyncio
    from concurrent.futures import CancelledError

    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS_WAITING_MAX)
    loop = asyncio.get_running_loop()

    def read() -> None:
        while True:
            chunk: bytes | OSError
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except OSError as error:
                chunk = error
            put = chunks.put(chunk)
            try:
                asyncio.run_coroutine_threadsafe(put, loop).result()
            except (RuntimeError, CancelledError):  # the loop has ended, or is about to
                put.close()
                return
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, name="read input", daemon=True).start()
    rest = bytearray()  # the start of a line whose end has not arrived
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        first, *others = chunk.split(b"\n")
        rest += first
        if len(rest) > line_bytes_max:
            raise RecordTooLarge(f"a line of the input is longer than {line_bytes_max} bytes")
        if others:
            lines = [bytes(rest), *others[:-1]]
            rest = bytearray(others[-1])
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [bytes(rest).removesuffix(b"\r")]


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
            help="Acknowledgements that a record needs: none (0), the leader's (1), or those of"
            " all in-sync replicas (all).",
        ),
    ] = "all",
    key_separator: Annotated[
        str | None,
        typer.Option(
            "-k",
            "--key-separator",
            metavar="TEXT",
            help="Text between the key and the value of a line; \\t is a tab. Lines without it "
            "have no key.",
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "-p",
            "--partition",
            min=0,
            metavar="N",
            help="Write all records to this partition. [default: chosen by the key]",
        ),
    ] = None,
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
        typer.Option("--create", help="Create the topic if it does not exist."),
    ] = False,
    compression: Annotated[
        Compression, typer.Option(help="Codec by which batches are compressed.")
    ] = "none",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Send each line of a file or of standard input as a record.

    The exit status is 0 only if all records were acknowledged.
    """
    if acks not in ("0", "1", "all"):
        fail(f"--acks {acks}: allowed are 0, 1, all", status=EXIT_USAGE)
    if key_separator == "":
        fail("--key-separator must not be empty", status=EXIT_USAGE)
    headers = [_header(text) for text in header or ()]
    source = _open(file)

    separator = None if key_separator is None else unescaped(key_separator).encode()
    run = _Run(topic)

    async def work(client: Client) -> None:

        acks_wanted: Literal[0, 1, "all"] = "all" if acks == "all" else (1 if acks == "1" else 0)
        producer = client.producer(
            acks=acks_wanted,
            compression=compression,
            request_bytes_max=REQUEST_BYTES_MAX,
            allow_auto_create=create,
        )
        async with _explained(run, producer):
            async for lines in lines_of(source.fileno(), line_bytes_max=REQUEST_BYTES_MAX):
                for line in lines:
                    key, value = run.split(line, separator)
                    future = await producer.send(
                        topic, value, key=key, headers=headers or None, partition=partition
                    )
                    future.add_done_callback(run.count)
            await producer.flush()

    with source:
        with_client(bootstrap, work, is_quick=False)
    if run.error is not None:
        fail(f"{run.failed} of {run.sent} records were not acknowledged: {run.error}")
    if run.without_key:
        print(
            f"odradek: {run.without_key} of {run.sent} lines had no {key_separator!r}: their records have no key",
            file=sys.stderr,
        )
    if output is OutputFormat.JSON:
        print_facts({"topic": topic, "records": run.sent}, output)
    elif sys.stderr.isatty():
        say(f"{run.sent} records sent to {topic}", is_error=True)


class _Run:
    """Counts of the records that one `odradek produce` has sent, and of their outcomes."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.without_key = 0
        self.error: BaseException | None = None
        """The error of the first record that failed."""

    def split(self, line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
        """Split a line into key and value, and count it as sent."""
        self.sent += 1
        if separator is None:
            return None, line
        key, was_split, value = line.partition(separator)
        if was_split:
            return key, value
        self.without_key += 1
        return None, line

    def count(self, done: DeliveryFuture) -> None:
        """Count the outcome of one record."""
        error = done.exception()
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1
            self.error = self.error or error

    @property
    def undecided(self) -> int:
        """Records that are neither acknowledged nor failed yet."""
        return self.sent - self.acknowledged - self.failed


@contextlib.asynccontextmanager
async def _explained(run: _Run, producer: Producer) -> AsyncIterator[None]:
    """Print what the producer waits for, close it at the end, and report records that an interruption lost."""
    import asyncio

    async def explain() -> None:
        last_reason = ""
        while True:
            acknowledged = run.acknowledged
            await asyncio.sleep(PATIENCE_S)
            if run.undecided and run.acknowledged == acknowledged:
                reason = producer.explain_waiting()
                if reason and reason != last_reason:
                    say(
                        f"odradek: waiting, {run.undecided} records are not acknowledged: {reason}",
                        is_error=True,
                    )
                    last_reason = reason

    explaining = asyncio.create_task(explain())
    try:
        yield
        await producer.close()
    except asyncio.CancelledError:
        await producer.close(INTERRUPTED_FLUSH_S_MAX)
        if run.sent > run.acknowledged:
            missing = run.sent - run.acknowledged
            print(
                f"odradek: interrupted; {missing} of {run.sent} records were not acknowledged",
                file=sys.stderr,
            )
        raise
    finally:
        explaining.cancel()
        await producer.close(0)


def _open(file: str) -> BinaryIO:
    if file == "-":
        if sys.stdin is None:
            fail("standard input is closed; name a file", status=EXIT_USAGE)
        return sys.stdin.buffer
    try:
        return Path(file).open("rb")
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}", status=EXIT_USAGE)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals:
        fail(f"--header {text!r}: write NAME=VALUE", status=EXIT_USAGE)
    return name, value.encode()

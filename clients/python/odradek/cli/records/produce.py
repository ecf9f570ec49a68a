"""`odradek produce`: records from standard input, one a line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, Literal

import typer

from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_ERROR,
    EXIT_USAGE,
    Bootstrap,
    Output,
    OutputFormat,
    fail,
    print_facts,
)
from odradek.cli.session import with_client

if TYPE_CHECKING:
    from odradek.client import Client

REQUEST_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one record, too: the topic's max.message.bytes says what is too large."""
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


def produce(
    topic: Annotated[str, typer.Argument(help="Where to.")],
    file: Annotated[
        str, typer.Argument(help="A file, or - for standard input.", show_default=False)
    ] = "-",
    acks: Annotated[str, typer.Option(help="0, 1 or all.")] = "all",
    key_separator: Annotated[
        str | None,
        typer.Option("-k", "--key-separator", help="What parts key and value of a line."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", min=0, help="Only this one; none: by key.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("-H", "--header", help="NAME=VALUE on every record.")
    ] = None,
    compression: Annotated[Compression, typer.Option(help="How batches are compressed.")] = "none",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Send one record a line. The status is 0 only if all were acknowledged."""
    if acks not in ("0", "1", "all"):
        fail(f"--acks {acks}: allowed are 0, 1, all", status=EXIT_USAGE)
    if key_separator == "":
        fail("--key-separator is empty", status=EXIT_USAGE)
    headers = [_header(text) for text in header or ()]
    source = _open(file)

    async def work(client: Client) -> tuple[int, list[BaseException]]:
        from odradek.cli.records.input_lines import lines_of  # asyncio with it

        errors: list[BaseException] = []
        sent = 0
        how: Literal[0, 1, "all"] = "all" if acks == "all" else (1 if acks == "1" else 0)
        async with client.producer(
            acks=how, compression=compression, request_bytes_max=REQUEST_BYTES_MAX
        ) as producer:
            async for lines in lines_of(source.fileno(), line_bytes_max=REQUEST_BYTES_MAX):
                for line in lines:
                    sent += 1
                    key, value = _split(line, key_separator)
                    future = await producer.send(
                        topic, value, key=key, headers=headers or None, partition=partition
                    )
                    future.add_done_callback(
                        lambda done: errors.append(e) if (e := done.exception()) else None
                    )
            await producer.flush()
        return sent, errors

    with source:
        sent, errors = with_client(bootstrap, work)
    if errors:
        fail(
            f"{len(errors)} of {sent} records were not acknowledged: {errors[0]}", status=EXIT_ERROR
        )
    if output is OutputFormat.JSON:
        print_facts({"topic": topic, "records": sent}, output)
    elif sys.stderr.isatty():
        print(f"{sent} records sent to {topic}", file=sys.stderr)


def _open(file: str) -> BinaryIO:
    if file == "-":
        if sys.stdin is None:
            fail("standard input is closed; name a file", status=EXIT_USAGE)
        return sys.stdin.buffer
    try:
        return Path(file).open("rb")
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}", status=EXIT_USAGE)


def _split(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    return (key, value) if found else (None, line)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals:
        fail(f"--header {text!r}: write NAME=VALUE", status=EXIT_USAGE)
    return name, value.encode()

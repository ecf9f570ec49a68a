"""`odradek consume`: print records to standard output, in a format that the user chooses."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from odradek.cli.connection import chosen_partitions, complete_groups, complete_topics, with_client
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    ESCAPES,
    EXIT_USAGE,
    Bootstrap,
    Output,
    OutputFormat,
    fail,
)

if TYPE_CHECKING:
    from odradek.client import Client

WITHOUT_PARTITIONS_S_MAX: Final = 10.0
"""How long a group member with --exit-at-end waits for its first partition."""
_TOKEN = re.compile(r"%(.)|\\(.)", re.DOTALL)
_FORMAT_HELP = (
    "Print each record by this pattern: %t topic, %p partition, %o offset, %d timestamp in ms, "
    "%k key, %v value, "
    "%h headers, %% percent sign, \\n newline, \\t tab."
)


def consume(
    topic: Annotated[
        list[str],
        typer.Argument(help="Names of the topics to read.", autocompletion=complete_topics),
    ],
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Start at the earliest offset instead of only new records;"
            " in a group, only where none is committed.",
        ),
    ] = False,
    exit_at_end: Annotated[
        bool,
        typer.Option(
            "--exit-at-end",
            help="Stop at the offset that was the end of each partition when the command began.",
        ),
    ] = False,
    count: Annotated[
        int | None,
        typer.Option("-n", "--count", min=1, metavar="N", help="Stop after this many records."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "-p", "--partition", min=0, metavar="N", help="Read only this partition. Repeatable."
        ),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="OFFSET", help="Start at this offset in every partition that is read."
        ),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="MS",
            help="Start at the first record with this timestamp or a later one, in ms since the epoch.",
        ),
    ] = None,
    form: Annotated[str, typer.Option("-f", "--format", help=_FORMAT_HELP)] = "%v\\n",
    read_committed: Annotated[
        bool,
        typer.Option(
            "--read-committed",
            help="Skip records of aborted transactions, and wait for open ones to end"
            " (isolation.level=read_committed).",
        ),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "-g",
            "--group",
            metavar="NAME",
            help="Read as a member of this group, and commit offsets.",
            autocompletion=complete_groups,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print records of topics as they arrive.

    The default is one value per line. With -o json it is one object per line, in which bytes that are not UTF-8 are
    {"base64": "..."}.
    """
    if sum((from_beginning, offset is not None, since is not None)) > 1:
        fail("only one of --from-beginning, --offset and --since can be used", status=EXIT_USAGE)
    if group is not None and (partition or offset is not None or since is not None):
        fail(
            "a group assigns partitions and keeps offsets, so --group cannot be used with "
            "--partition, --offset "
            "or"
            " --since; `odradek group seek` changes where a group starts",
            status=EXIT_USAGE,
        )
    render = _json_line if output is OutputFormat.JSON else _renderer(form)

    async def work(client: Client) -> None:
        arguments: dict[str, Any] = {
            "auto_offset_reset": "earliest" if from_beginning else "latest",
            "isolation_level": "read_committed" if read_committed else "read_uncommitted",
        }
        if group is not None:
            arguments["group"] = group
        async with client.consumer(*topic, **arguments) as consumer:
            ends: dict[Any, int] = {}
            if group is None:
                partitions = await chosen_partitions(client, topic, partition)
                consumer.assign(partitions)
                starts = await consumer.end_offsets(partitions)
                if exit_at_end:
                    ends = {(t, p): end for (t, p), end in starts.items()}
                if from_beginning:
                    starts = await consumer.beginning_offsets(partitions)
                for (name, index), start in starts.items():
                    consumer.seek((name, index), start if offset is None else offset)
                if since is not None:
                    consumer.seek_to_timestamp(since)
                ends = await _unread(consumer, ends)
            remaining = count if count is not None else -1
            settled_s = time.monotonic() + WITHOUT_PARTITIONS_S_MAX
            while remaining != 0 and not (exit_at_end and not ends and group is None):
                batch = min(remaining, 5_000) if remaining > 0 else 5_000
                records = await consumer.getmany(timeout_ms=500, max_records=batch)
                for record in records:
                    sys.stdout.buffer.write(render(record))
                    key = (record.topic, record.partition)
                    if key in ends and record.offset + 1 >= ends[key]:
                        del ends[key]
                remaining -= len(records) if remaining > 0 else 0
                sys.stdout.buffer.flush()
                if not records and exit_at_end:
                    if group is None:
                        ends = await _unread(consumer, ends)
                    elif await _is_at_end(consumer) or (
                        not consumer.assignment() and time.monotonic() > settled_s
                    ):
                        break

    try:
        with_client(bootstrap, work, is_quick=False)
    except BrokenPipeError:  # the reader of the output has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _unread(consumer: Any, ends: dict[Any, int]) -> dict[Any, int]:
    """The ends that the consumer has not reached. Offsets without records (markers, compaction) count as read."""
    return {key: end for key, end in ends.items() if await consumer.position(key) < end}


async def _is_at_end(consumer: Any) -> bool:
    """Whether the member has partitions and has read all of their records."""
    lag = await consumer.lag()
    return 0 < len(lag) == len(consumer.assignment()) and not any(lag.values())


def _renderer(form: str) -> Callable[[Any], bytes]:
    def token(record: Any, letter: str) -> bytes:
        match letter:
            case "t":
                return str(record.topic).encode()
            case "p":
                return str(record.partition).encode()
            case "o":
                return str(record.offset).encode()
            case "d":
                return str(record.timestamp_ms).encode()
            case "k":
                return record.key or b""
            case "v":
                return record.value or b""
            case "h":
                return b",".join(n.encode() + b"=" + (v or b"") for n, v in record.headers)
        return b"%"

    pieces: list[bytes | str] = []  # bytes are printed as they are; a str is the letter of a field
    position = 0
    for match in _TOKEN.finditer(form):
        pieces.append(form[position : match.start()].encode())
        if match[1]:
            if match[1] not in "tpodkvh%":
                fail(f"--format: there is no %{match[1]}; {_FORMAT_HELP}", status=EXIT_USAGE)
            pieces.append(match[1])
        else:
            pieces.append(ESCAPES.get(match[2], match[2]).encode())
        position = match.end()
    pieces.append(form[position:].encode())
    return lambda record: b"".join(
        piece if isinstance(piece, bytes) else token(record, piece) for piece in pieces
    )


def _json_line(record: Any) -> bytes:
    row = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}

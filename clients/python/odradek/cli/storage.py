"""`odradek storage`: what is done to data directories by hand, beside the processes that use them."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.output import (
    EXIT_USAGE,
    Output,
    OutputFormat,
    fail,
    print_facts,
    print_rows,
)
from odradek.extras import what_is_missing

_VOTER = re.compile(r"(\d+)@\S+:\d+")
app = typer.Typer(help="Format data directories, and look after them.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Format data directories, and look after them."""


@app.command("format")
def format_directory(
    data_dir: Annotated[Path, typer.Option(help="log.dirs of the controller.")],
    node_id: Annotated[int, typer.Option(min=0, help="node.id of the controller.")],
    voters: Annotated[
        str, typer.Option(help="controller.quorum.voters: 1@host:9095,2@host:9095,...")
    ],
    cluster_id: Annotated[
        str | None, typer.Option(help="The same for every node; none: a new one, which is printed.")
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Give the directory its identity. Again the same changes nothing, another is refused."""
    if missing := what_is_missing("odradek storage format", "server"):
        fail(missing)
    parts = [_VOTER.fullmatch(one.strip()) for one in voters.split(",")]
    ids = [int(part[1]) for part in parts if part is not None]
    if len(ids) < len(parts):
        fail(f"--voters {voters}: write 1@host:port,2@host:port", status=EXIT_USAGE)
    chosen = cluster_id or str(uuid.uuid4())
    _run(
        "odradek_metadata_quorum.storage.data_directory",
        *(str(data_dir), chosen, str(node_id), ",".join(map(str, ids))),
    )
    print_facts(
        {"data_dir": data_dir, "cluster_id": chosen, "node_id": node_id, "voters": ids}, output
    )


@app.command("strays")
def strays(
    data_dir: Annotated[Path, typer.Option(help="log.dirs of the broker.")],
    remove: Annotated[
        list[str] | None, typer.Option(help="Remove the stray of this name; may be repeated.")
    ] = None,
    remove_all: Annotated[bool, typer.Option("--remove-all", help="Remove all of them.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the logs that a broker put aside because the metadata does not know them, or remove some for good.

    A log is put aside when its topic is not in the metadata, or has no replica on this broker, and the broker saw no
    record that deleted it. It becomes a replica again when the metadata claims it. The broker may run meanwhile.
    """
    if missing := what_is_missing("odradek storage strays", "server"):
        fail(missing)
    chosen = ["all"] if remove_all else remove or []
    lines = _run("odradek_broker.log.directory.stray_command", str(data_dir), *chosen)
    rows = [json.loads(line) for line in lines.splitlines()]
    print_rows(
        [
            {
                "name": row["name"],
                "topic": row["topic"],
                "partition": row["partition"],
                "topic id": row["topic_id"],
                "size bytes": row["size_bytes"],
                "log end": row["log_end_offset"],
                "since": _time(row["since_ms"]),
                "reason": "removed" if chosen else row["reason"],
            }
            for row in rows
        ],
        output,
        empty="no strays",
    )


@app.command("adopt")
def adopt_metadata(
    data_dir: Annotated[Path, typer.Option(help="log.dirs of the broker, which must be stopped.")],
    incarnation: Annotated[
        str,
        typer.Option(
            help="The metadata log to follow from now on, as the refused broker names it; or none."
        ),
    ],
    output: Output = OutputFormat.TABLE,
) -> None:
    """Let a broker follow another metadata log, when the controllers' old data is lost for good.

    Its logs stay. At the next start those of topics that the other metadata does not have are set aside as
    strays, not deleted.
    """
    if missing := what_is_missing("odradek storage adopt", "server"):
        fail(missing)
    if not re.fullmatch(r"none|[0-9a-f]{32}", incarnation):
        fail(f"--incarnation {incarnation}: 32 hexadecimal digits, or none", status=EXIT_USAGE)
    _run("odradek_broker.log.directory.adopt_command", str(data_dir), incarnation)
    print_facts({"data_dir": data_dir, "incarnation": incarnation}, output)


def _run(module: str, *arguments: str) -> str:
    """Run a module of the server as a process; what it prints."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        fail(done.stderr.strip().removeprefix("odradek: "))
    return done.stdout


def _time(since_ms: int) -> str | None:
    if since_ms < 0:
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds")

"""`odradek storage format`: give the data directory of a controller its identity, once."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.output import EXIT_USAGE, Output, OutputFormat, fail, print_facts
from odradek.extras import what_is_missing

_VOTER = re.compile(r"(\d+)@\S+:\d+")
app = typer.Typer(help="Give a controller's data directory its identity.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Give a controller's data directory its identity."""


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
    import subprocess
    import sys

    parts = [_VOTER.fullmatch(one.strip()) for one in voters.split(",")]
    ids = [int(part[1]) for part in parts if part is not None]
    if len(ids) < len(parts):
        fail(f"--voters {voters}: write 1@host:port,2@host:port", status=EXIT_USAGE)
    chosen = cluster_id or str(uuid.uuid4())
    done = subprocess.run(
        [
            *(sys.executable, "-m", "odradek_metadata_quorum.quorum.format_command"),
            *(str(data_dir), chosen, str(node_id), ",".join(map(str, ids))),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        fail(done.stderr.strip().removeprefix("odradek: "))
    print_facts(
        {"data_dir": data_dir, "cluster_id": chosen, "node_id": node_id, "voters": ids}, output
    )

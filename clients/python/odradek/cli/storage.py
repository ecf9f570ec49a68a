"""`odradek storage` and `odradek tls`: change data directories and certificates, without a connection to a cluster."""

from __future__ import annotations

import importlib.util
import json
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from odradek.partitions import INT32_MAX

if TYPE_CHECKING:
    from odradek.cli.certificate_authority import CertificateAuthority

_STORAGE_COMMANDS = "odradek_broker.log.directory.commands"
_DAYS_MAX = 36_500
"""The most days until a certificate expires (100 years). A date after the year 9999 is not valid in X.509."""
_VOTER = re.compile(r"(\d+)@\S+:\d+")
app = typer.Typer(help="Format and repair data directories.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Format and repair data directories."""


@app.command("format")
def format_directory(
    data_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Data directory of the controller (its setting log.dirs)."
        ),
    ],
    node_id: Annotated[
        int,
        typer.Option(
            min=0, max=INT32_MAX, metavar="ID", help="Id of the controller (its setting node.id)."
        ),
    ],
    voters: Annotated[
        str,
        typer.Option(
            metavar="ID@HOST:PORT,...",
            help="All controllers (the setting controller.quorum.voters). Every controller needs the same list.",
        ),
    ],
    cluster_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Id of the cluster, the same on every node. [default: a new id, which is printed]",
        ),
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write the identity of a controller into its data directory.

    Run this command before the controller's first start. The same command can be repeated safely. A directory that
    already has another identity is not changed.
    """
    if missing := what_is_missing("odradek storage format", "server"):
        fail(missing)
    parts = [_VOTER.fullmatch(voter.strip()) for voter in voters.split(",")]
    ids = [int(part[1]) for part in parts if part is not None]
    if len(ids) < len(parts):
        fail(f"--voters {voters} does not have the form 1@host:port,2@host:port", status=EXIT_USAGE)
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
    data_dir: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Data directory of the broker (its setting log.dirs)."),
    ],
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Delete this stray log. Repeatable.")
    ] = None,
    remove_all: Annotated[
        bool, typer.Option("--remove-all", help="Delete all stray logs.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List or remove stray logs.

    A broker sets a log aside as a stray if the cluster's metadata has no such topic, or no replica of the partition on
    this broker, although no record in the metadata deleted the topic or replica. If the metadata contains the replica
    again later, the broker uses the log again. The broker may be running during this command.
    """
    if missing := what_is_missing("odradek storage strays", "server"):
        fail(missing)
    chosen = ["all"] if remove_all else remove or []
    lines = _run(_STORAGE_COMMANDS, "strays", str(data_dir), *chosen)
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
        empty="the data directory has no stray logs",
    )


@app.command("adopt")
def adopt_metadata(
    data_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Data directory of the broker (its setting log.dirs). The broker must be stopped.",
        ),
    ],
    incarnation: Annotated[
        str,
        typer.Option(
            metavar="ID",
            help="Id of the metadata log that the broker must follow. A broker that refuses to start prints this id in"
            " its error. none: the broker follows the first metadata log that a controller sends.",
        ),
    ],
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make a broker follow another metadata log. Use this only after all controllers have lost their data.

    The logs of the broker are not deleted. At its next start, the broker sets aside, as strays, the logs whose
    partitions the new metadata does not assign to it.
    """
    if missing := what_is_missing("odradek storage adopt", "server"):
        fail(missing)
    if not re.fullmatch(r"none|[0-9a-f]{32}", incarnation):
        fail(
            f"--incarnation {incarnation} is not valid: write 32 hexadecimal digits, or none",
            status=EXIT_USAGE,
        )
    _run(_STORAGE_COMMANDS, "adopt", str(data_dir), incarnation)
    print_facts({"data_dir": data_dir, "incarnation": incarnation}, output)


def _run(module: str, *arguments: str) -> str:
    """Run a module of the server in a child process and return its output. If the process fails, its stderr becomes the
    error of the command.
    """
    import subprocess
    import sys

    process = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if process.returncode:
        fail(process.stderr.strip().removeprefix("odradek: "))
    return process.stdout


def _time(since_ms: int) -> str | None:
    if since_ms < 0:
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds")


tls_app = typer.Typer(
    help="Create a certificate authority, and issue certificates.",
    no_args_is_help=True,
)
Directory = Annotated[Path, typer.Option("--dir", help="Directory of the certificate authority.")]


@tls_app.command()
def init(
    directory: Directory = Path("tls"),
    common_name: Annotated[
        str, typer.Option(metavar="NAME", help="Common name in the certificate of the authority.")
    ] = "Odradek cluster CA",
    days: Annotated[
        int,
        typer.Option(min=1, max=_DAYS_MAX, metavar="N", help="Days until the certificate expires."),
    ] = 3650,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a certificate authority. Copy ca.crt to every node and client, and keep ca.key secret."""
    authority = _authority(directory)
    _check_name("--common-name", common_name)
    path = authority.create(common_name=common_name, days=days)
    print_facts({"certificate": path, "key": path.with_suffix(".key")}, output)


@tls_app.command()
def issue(
    name: Annotated[
        str,
        typer.Argument(
            help="Common name of the certificate: broker-ID, controller-ID or a user name."
        ),
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="Host name or IP address of the node that will use the certificate. Repeatable.",
        ),
    ] = None,
    directory: Directory = Path("tls"),
    days: Annotated[
        int,
        typer.Option(min=1, max=_DAYS_MAX, metavar="N", help="Days until the certificate expires."),
    ] = 365,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Issue a certificate and key for a node or user."""
    authority = _authority(directory)
    _check_name("NAME", name)
    for address in host or ():
        if not (address and address.isascii() and address.isprintable()):
            fail(
                f"--host {address!r} is not an address: write a host name in ASCII (xn--...) or an IP address",
                status=EXIT_USAGE,
            )
    certificate, key = authority.issue(name, hosts=host or (), days=days)
    print_facts({"certificate": certificate, "key": key}, output)


@tls_app.command()
def renew(
    name: Annotated[str, typer.Argument(help="Common name of the certificate.")],
    directory: Directory = Path("tls"),
    days: Annotated[
        int,
        typer.Option(min=1, max=_DAYS_MAX, metavar="N", help="Days until the certificate expires."),
    ] = 365,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Replace a certificate and its key by new ones with the same names. Running processes load the new files
    without a restart.
    """
    certificate, key = _authority(directory).renew(name, days=days)
    print_facts({"certificate": certificate, "key": key}, output)


def _check_name(option: str, name: str) -> None:
    from odradek.cli.certificate_authority import NAME_LENGTH_MAX, is_common_name

    if not is_common_name(name):
        fail(
            f"{option} {name!r} is not valid: write 1 to {NAME_LENGTH_MAX} printable ASCII characters",
            status=EXIT_USAGE,
        )


def _authority(directory: Path) -> CertificateAuthority:
    if importlib.util.find_spec("cryptography") is None:
        fail(
            "certificates need the package cryptography: install it with pip install 'odradek[server]'"
        )
    from odradek.cli.certificate_authority import CertificateAuthority

    return CertificateAuthority(directory)

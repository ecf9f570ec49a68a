"""`odradek tls`: the cluster's certificate authority and its nodes' certificates."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.output import Output, OutputFormat, fail, print_facts

if TYPE_CHECKING:
    from odradek.cli.certificate_authority import CertificateAuthority

app = typer.Typer(help="Certificates of the cluster's own authority.", no_args_is_help=True)
Directory = Annotated[Path, typer.Option("--dir", help="Where the authority is kept.")]


@app.command()
def init(
    directory: Directory = Path("tls"),
    common_name: Annotated[str, typer.Option(help="Name of the authority.")] = "Odradek cluster CA",
    days: Annotated[int, typer.Option(min=1, help="How long it is valid.")] = 3650,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make the authority. Every node trusts ca.crt; ca.key stays with you."""
    path = _authority(directory).create(common_name=common_name, days=days)
    print_facts({"certificate": path, "key": path.with_suffix(".key")}, output)


@app.command()
def issue(
    name: Annotated[str, typer.Argument(help="Identity: broker-1, controller-2, a user.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Host name or address that peers dial; repeat it.")
    ] = None,
    directory: Directory = Path("tls"),
    days: Annotated[int, typer.Option(min=1, help="How long it is valid.")] = 365,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Issue a certificate for NAME. Its alternative names hold the hosts, too."""
    certificate, key = _authority(directory).issue(name, hosts=host or (), days=days)
    print_facts({"certificate": certificate, "key": key}, output)


@app.command()
def renew(
    name: Annotated[str, typer.Argument(help="Identity whose certificate is renewed.")],
    directory: Directory = Path("tls"),
    days: Annotated[int, typer.Option(min=1, help="How long it is valid.")] = 365,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Issue a certificate again. The names stay; running processes load it without a restart."""
    certificate, key = _authority(directory).renew(name, days=days)
    print_facts({"certificate": certificate, "key": key}, output)


def _authority(directory: Path) -> CertificateAuthority:
    if importlib.util.find_spec("cryptography") is None:
        fail("certificates need the package cryptography: pip install 'odradek[server]'")
    from odradek.cli.certificate_authority import CertificateAuthority

    return CertificateAuthority(directory)

"""`odradek`: one command line for the cluster's processes and for its users."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from odradek.cli import (
    access,
    bench,
    cluster,
    connection,
    consume,
    group,
    processes,
    produce,
    quorum,
    storage,
    topic,
)
from odradek.cli.output import one_line_errors

QUORUM_PROCESS_OPTIONS = ("--config", "--set", "--insecure")
"""`odradek quorum` with one of these runs a controller; otherwise it is a group of commands about the quorum."""

# gRPC's own log lines stand between a command's words; what they say is in our errors. Read when grpc is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

app = typer.Typer(
    name="odradek",
    help="A distributed, replicated log that speaks Kafka.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes take a third of the start-up; tables of results import rich when they come
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"odradek {version('odradek')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_tell_version, is_eager=True),
    ] = False,
    bootstrap: connection.BootstrapForAll = None,
    timeout: connection.Timeout = connection.CONNECT_S_MAX,
    config: connection.ConfigFile = None,
    user: connection.User = None,
    password_file: connection.PasswordFile = None,
    mechanism: connection.Mechanism = None,
    ca: connection.Ca = None,
    cert: connection.Cert = None,
    key: connection.Key = None,
) -> None:
    """A distributed, replicated log that speaks Kafka."""
    connection.remember(
        config=config,
        user=user,
        password_file=password_file,
        mechanism=mechanism,
        ca=ca,
        cert=cert,
        key=key,
        bootstrap=bootstrap,
        timeout_s=timeout,
    )


app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(cluster.app, name="cluster")
app.add_typer(quorum.feature_app, name="feature")
app.add_typer(quorum.quorum_app, name="quorum")
app.add_typer(storage.app, name="storage")
app.add_typer(access.tls_app, name="tls")
app.add_typer(access.user_app, name="user")
app.add_typer(access.acl_app, name="acl")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("dev")(processes.dev)
app.command("bench")(bench.bench)
processes.add_commands(app)


def main() -> None:
    """Run the command that the arguments name."""
    words = sys.argv[1:]
    with one_line_errors():
        if words[:1] == ["quorum"] and words[1:2] and words[1] in QUORUM_PROCESS_OPTIONS:
            processes.run_module("odradek_metadata_quorum", "server", words[1:])
        app()


if __name__ == "__main__":
    main()

"""`odradek`: one command line for the cluster's processes and for its users."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from odradek.cli import connection
from odradek.cli.access import acl, tls, user
from odradek.cli.cluster import cluster, feature, group, quorum, topic
from odradek.cli.output import fail
from odradek.cli.processes import demo, dev, services, storage
from odradek.cli.records import bench, consume, produce

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
app.add_typer(feature.app, name="feature")
app.add_typer(quorum.app, name="quorum")
app.add_typer(storage.app, name="storage")
app.add_typer(tls.app, name="tls")
app.add_typer(user.app, name="user")
app.add_typer(acl.app, name="acl")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("dev")(dev.dev)
app.command("demo")(demo.demo)
app.command("bench")(bench.bench)
services.add_commands(app)


def main() -> None:
    """Run the command; an error of ours is one line on stderr and a status, never a trace."""
    words = sys.argv[1:]
    try:
        if (
            words[:1] == ["quorum"]
            and words[1:]
            and words[1] in ("--config", "--set", "--insecure")
        ):
            services.run_module("odradek_metadata_quorum", "server", words[1:])
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        fail(f"{error.strerror}: {error.filename}" if error.filename else str(error) or repr(error))
    except Exception as error:
        if type(error).__module__.startswith("odradek"):
            fail(error)
        raise


if __name__ == "__main__":
    main()

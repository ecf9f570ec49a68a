"""The command `odradek`: runs the processes of a cluster, and lets users and administrators work with it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from odradek.cli import (
    access,
    bench,
    cluster,
    connection,
    consume,
    group,
    migration,
    partition,
    processes,
    produce,
    quorum,
    quota,
    storage,
    top,
    topic,
    transaction,
    why,
)
from odradek.cli.output import one_line_errors, printable

QUORUM_PROCESS_OPTIONS = ("--config", "--set", "--insecure")
"""`odradek quorum` followed by one of these options runs a controller; otherwise a command follows it."""

# gRPC would write log lines between the output of a command; our errors say the same. It reads this when imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

COMMANDS_BY_TASK: Final = {
    "Read and write records": ("produce", "consume", "bench"),
    "Administer a cluster": (
        *("why", "top", "topic", "partition", "group", "transaction", "cluster", "feature"),
        *("user", "acl", "quota"),
    ),
    "Run a cluster": (
        *("dev", "demo", "quorum", "broker", "gateway", "pipeline"),
        *("storage", "tls", "config"),
    ),
}


EXAMPLES: Final = {
    "produce": (
        "echo hello | odradek produce greetings",
        "odradek produce orders orders.tsv --key-separator '\\t'",
    ),
    "consume": (
        "odradek consume greetings --from-beginning --exit-at-end",
        "odradek consume orders --group billing -o json",
    ),
    "bench": ("odradek bench --records 1000000 --size 1024 --replicas 3",),
    "why": ("odradek why", "odradek why orders", "odradek why orders/3", "odradek why billing"),
    "top": ("odradek top", "odradek top --once -o json"),
    "topic": (
        "odradek topic create orders --partitions 6 --replicas 3",
        "odradek topic alter-config orders --set retention.ms=86400000",
        "odradek topic trim orders --until 30d --dry-run",
    ),
    "partition": (
        "odradek partition list --under-replicated",
        "odradek partition move orders -p 0 --to 2,3,4 --wait",
        "odradek partition set-replicas orders 3 --dry-run",
        "odradek partition throttle --rate 50MiB",
    ),
    "group": (
        "odradek group list --lag",
        "odradek group describe billing",
        "odradek group seek billing --since 2h --dry-run",
    ),
    "transaction": (
        "odradek transaction list --state Ongoing --older-than 10m",
        "odradek transaction abort orders-1",
    ),
    "cluster": ("odradek cluster health", "odradek cluster config --set min.insync.replicas=2"),
    "feature": ("odradek feature list", "odradek feature set metadata.version 3"),
    "user": ("odradek user create alice", "odradek user list"),
    "acl": ("odradek acl add --principal User:alice --operation read --topic orders",),
    "quota": (
        "odradek quota list",
        "odradek quota set --user alice --producer-byte-rate 10MiB",
        "odradek quota remove --client-id DEFAULT --request-percentage",
    ),
    "dev": ("odradek dev", "odradek dev --brokers 1 --controllers 1 --data-dir /tmp/odradek"),
    "quorum": (
        "odradek quorum status",
        "odradek quorum --config quorum.properties  # runs a controller",
        "odradek quorum --config quorum.properties --help  # lists its settings",
    ),
    "storage": (
        "odradek storage format --data-dir DIR --node-id 1 --voters 1@host1:9095,...",
        "odradek storage strays --data-dir DIR",
    ),
    "tls": ("odradek tls init", "odradek tls issue broker-1 --host broker-1.example.com"),
    "config": ("odradek config import server.properties --to /etc/odradek",),
}


SHARED_HELP_LINES: Final = {
    "--user NAME": ("--user, --mechanism NAME", "Log in as this user, by this SASL mechanism."),
    "--mechanism NAME": None,
    "--config FILE": (
        "--config, --password-file",
        "Files with connection properties, a password.",
    ),
    "--password-file FILE": None,
    "--ca FILE": ("--ca, --cert, --key FILE", "PEM files: authorities, certificate, its key."),
    "--cert FILE": None,
    "--key FILE": None,
    "--show-completion": None,
    "-h, --help": None,
}
"""Options that share a line in the help of the program, so that it fits a screen; None: another line has the option."""
# `click.UsageError`, which is part of typer itself in some releases.
_UsageError: Any = typer.BadParameter.__mro__[1]


@contextlib.contextmanager
def _printable_usage_errors() -> Iterator[None]:
    """Escape control characters in click's usage errors, because these quote arguments unchanged."""
    try:
        yield
    except _UsageError as error:
        error.message = printable(error.message)
        raise


class CommandsByTask(TyperGroup):
    """Lists the commands in the program's help, grouped by task, so that all of them fit on one screen."""

    def format_help_text(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        formatter.write(f"  {self.help}\n")  # no empty line above it: one more command fits

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        """Parse the options of the program itself."""
        with _printable_usage_errors():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments of the command, and run it."""
        with _printable_usage_errors():
            return super().invoke(ctx)

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        # Without the default, range and variable that click adds: each option takes one line.
        records = [
            SHARED_HELP_LINES.get(names, (names, text.partition("  [")[0]))
            for parameter in self.get_params(ctx)
            for names, text in filter(None, [parameter.get_help_record(ctx)])
        ]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        for task, command_names in COMMANDS_BY_TASK.items():
            commands = [self.commands[name] for name in command_names]
            width = formatter.width - max(map(len, self.commands)) - 6
            with formatter.section(task):
                formatter.write_dl(
                    [(c.name, c.get_short_help_str(width)) for c in commands],
                    col_spacing=max(map(len, self.commands))
                    + 2
                    - max(len(c.name or "") for c in commands),
                )


def _examples(command: str) -> str:
    """Return the examples of a command for the end of its help. Click does not wrap a paragraph that
    begins with \b.
    """
    return "\b\n" + "\n".join(["Examples:", *(f"  {example}" for example in EXAMPLES[command])])


app = typer.Typer(
    name="odradek",
    cls=CommandsByTask,
    help="A distributed, replicated log that speaks Kafka.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would add a third to the start-up time; only tables of results import it
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        print(f"odradek {version('odradek')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version of Odradek, and exit.",
            callback=_print_version,
            is_eager=True,
        ),
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


app.command("why", epilog=_examples("why"))(why.why)
app.command("top", epilog=_examples("top"))(top.top)
app.add_typer(topic.app, name="topic", epilog=_examples("topic"))
app.add_typer(partition.app, name="partition", epilog=_examples("partition"))
app.add_typer(group.app, name="group", epilog=_examples("group"))
app.add_typer(transaction.app, name="transaction", epilog=_examples("transaction"))
app.add_typer(cluster.app, name="cluster", epilog=_examples("cluster"))
app.add_typer(quorum.feature_app, name="feature", epilog=_examples("feature"))
app.add_typer(quorum.quorum_app, name="quorum", epilog=_examples("quorum"))
app.add_typer(storage.app, name="storage", epilog=_examples("storage"))
app.add_typer(migration.app, name="config", epilog=_examples("config"))
app.add_typer(access.tls_app, name="tls", epilog=_examples("tls"))
app.add_typer(access.user_app, name="user", epilog=_examples("user"))
app.add_typer(access.acl_app, name="acl", epilog=_examples("acl"))
app.add_typer(quota.app, name="quota", epilog=_examples("quota"))
app.command("produce", epilog=_examples("produce"))(produce.produce)
app.command("consume", epilog=_examples("consume"))(consume.consume)
app.command("dev", epilog=_examples("dev"))(processes.dev)
app.command("bench", epilog=_examples("bench"))(bench.bench)
processes.add_commands(app)


def main() -> None:
    """Run the command that the arguments name."""
    words = sys.argv[1:]
    with one_line_errors():
        if words[:1] == ["quorum"] and words[1:2] and words[1] in QUORUM_PROCESS_OPTIONS:
            processes.run_module("odradek_metadata_quorum", "server", words[1:])
        app(prog_name="odradek")


if __name__ == "__main__":
    main()

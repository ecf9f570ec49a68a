"""The command `odradek`: runs the processes of a cluster, and lets users and administrators work with a cluster."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from odradek.cli import connection
from odradek.cli.output import one_line_errors, open_closed_streams, printable
from odradek.spelling import did_you_mean

QUORUM_PROCESS_OPTIONS = ("--config", "--set", "--insecure")
"""If one of these options follows `odradek quorum`, a controller is run. Otherwise a subcommand such as status follows.
"""

COMMANDS_BY_TASK: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Read and write records": {
        "produce": (
            "produce:produce",
            "Send each line of a file or of standard input as a record.",
        ),
        "consume": ("consume:consume", "Print records of topics as they arrive."),
        "bench": ("bench:bench", "Measure how fast records are produced and consumed."),
    },
    "Administer a cluster": {
        "why": ("why:why", "Explain what is wrong, and how to fix it."),
        "top": ("top:top", "Show brokers, topics and groups with their rates, live."),
        "topic": ("topic:app", "Create, list, describe, change, trim and delete topics."),
        "partition": (
            "partition:app",
            "List and move partitions, elect leaders, throttle replication.",
        ),
        "group": ("group:app", "List, describe, reset and delete consumer groups."),
        "transaction": ("transaction:app", "List, describe and end transactions."),
        "cluster": ("cluster:app", "Show brokers and health, change configs, rebalance replicas."),
        "feature": ("quorum:feature_app", "Show feature levels, and set them after an upgrade."),
        "user": ("access:user_app", "Create, list, change and delete SCRAM users."),
        "acl": ("access:acl_app", "Add, list and remove access control entries."),
        "quota": ("quota:app", "List, set and remove quotas of users and clients."),
    },
    "Run a cluster": {
        "dev": ("processes:dev", "Run a whole cluster in the foreground."),
        "demo": (
            "processes:demo",
            "Kill processes during writes, and show that no record is lost.",
        ),
        "quorum": ("quorum:quorum_app", "Run a controller, or show the controllers' quorum."),
        "broker": (
            "processes:broker",
            "Run a broker in the foreground, or several with --processes.",
        ),
        "gateway": ("processes:gateway", "Run a REST gateway in the foreground."),
        "pipeline": ("processes:pipeline", "Run a Spark pipeline by name."),
        "storage": ("storage:app", "Format and repair data directories."),
        "tls": ("storage:tls_app", "Create a certificate authority, and issue certificates."),
        "config": ("migration:app", "Translate configuration files of Apache Kafka."),
    },
}
"""For each command: its module and object in this package, and its line in the help of `odradek`."""

COMPILED_MODULES: Final = "odradek_broker._native__mypyc"
"""The extension module that contains the compiled code of the broker (proto/compile_modules.py)."""

PARSE_ALL_ARGUMENTS: Final = frozenset({"broker", "gateway", "demo", "pipeline"})
"""The commands whose program parses all arguments and prints its own help."""
_PASS_ON: Final = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
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
    "--user NAME": ("--user, --mechanism NAME", "Log in as this user, with this SASL mechanism."),
    "--mechanism NAME": None,
    "--config FILE": (
        "--config, --password-file",
        "Files: connection properties, the password.",
    ),
    "--password-file FILE": None,
    "--ca FILE": ("--ca, --cert, --key FILE", "PEM files: trusted CAs, own certificate, its key."),
    "--cert FILE": None,
    "--key FILE": None,
    "--show-completion": None,
    "-h, --help": None,
}
"""Options that share one line in the help of `odradek`, so that the help fits on a screen. None: the line of another
option describes this option.
"""
# This is `click.UsageError`, or typer's own copy of the class in releases of typer that contain click.
_UsageError: Any = typer.BadParameter.__mro__[1]


_NOT_ONE_OF: Final = re.compile(
    r"(?:Value error, )?'(?P<value>.*)' is not one of (?P<allowed>.*?)\.?", re.DOTALL
)
"""Matches click's message for a value that is not one of the allowed words."""
KAFKAS_OPTIONS: Final = {
    "--bootstrap-server": "--bootstrap",
    "--bootstrap-servers": "--bootstrap",
    "--broker-list": "--bootstrap",
    "--command-config": "--config before the command",
    "--auto-offset-reset": "--from-beginning",
    "--isolation-level": "--read-committed",
    "--head": "--count",
    "--limit": "--count",
    "--lines": "--count",
    "--max-messages": "--count",
    "--replication-factor": "--replicas",
    "--to-earliest": "--to earliest",
    "--to-latest": "--to latest",
    "--to-offset": "--to OFFSET",
    "--shift-by": "--by",
    "--tail": "--last",
}
"""Options of Kafka's and other tools, and the options of `odradek` that do the same but have no similar name."""


@contextlib.contextmanager
def _explained_usage_errors() -> Iterator[None]:
    """Add suggestions to click's usage errors, and escape the control characters in them, because they quote the user's
    arguments unchanged.
    """
    try:
        yield
    except _UsageError as error:
        message = error.message
        if hasattr(error, "option_name") and hasattr(error, "possibilities"):
            name, near = error.option_name, sorted(error.possibilities or ())
            if equivalent := _equivalent_option(error.ctx, name):
                near = [equivalent]
            if near:
                message += f"; did you mean {' or '.join(near)}?"
            error.possibilities = None
        elif wrong := _NOT_ONE_OF.fullmatch(message):
            allowed = [word.strip(" '") for word in wrong["allowed"].split(",")]
            suggestion = did_you_mean(wrong["value"], allowed)
            message = f"'{wrong['value']}' is not one of {', '.join(allowed)}{suggestion}"
        error.message = printable(message)
        raise


def _equivalent_option(context: Any, name: str) -> str | None:
    """Return the option of the command that does the same as an option of another tool, or None."""
    here = KAFKAS_OPTIONS.get(name)
    if here is None or context is None:
        return None
    known = {option for parameter in context.command.params for option in parameter.opts}
    return here if here.split()[0] in known or here.endswith("command") else None


class Commands(Mapping[str, Any]):
    """All commands by name. Each one is imported and built when it is looked up.

    Building all commands would take longer than most commands run.
    """

    def __init__(self) -> None:
        self._sources = {
            name: source
            for commands in COMMANDS_BY_TASK.values()
            for name, (source, _) in commands.items()
        }
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = self._build(name, self._sources[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def _build(self, name: str, source: str) -> Any:
        module, _, attribute = source.partition(":")
        command = getattr(importlib.import_module(f"odradek.cli.{module}"), attribute)
        single = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
        # Typer builds a group only from an app that has a callback.
        single.callback()(lambda: None)
        epilog = _examples(name) if name in EXAMPLES else None
        if isinstance(command, typer.Typer):
            single.add_typer(command, name=name, epilog=epilog)
        else:
            settings = _PASS_ON if name in PARSE_ALL_ARGUMENTS else None
            single.command(name, epilog=epilog, context_settings=settings)(command)
        group: Any = typer.main.get_command(single)
        return group.commands[name]


class CommandsByTask(TyperGroup):
    """The program `odradek`. Its help lists the commands grouped by task, so that all of them fit on one screen."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_help_text(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        # Click would write an empty line above the text. Without it, the help has one more line for commands.
        formatter.write(f"  {self.help}\n")

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        """Parse the options before the command."""
        with _explained_usage_errors():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments of the command, and run the command."""
        with _explained_usage_errors():
            return super().invoke(ctx)

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        # Click adds defaults, ranges and environment variables to the help text of an option. These additions are cut
        # off, so that each option takes one line.
        records = [
            SHARED_HELP_LINES.get(names, (names, text.partition("  [")[0]))
            for parameter in self.get_params(ctx)
            for names, text in filter(None, [parameter.get_help_record(ctx)])
        ]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        width = max(map(len, self.commands)) + 2
        for task, commands in COMMANDS_BY_TASK.items():
            with formatter.section(task):
                rows = [(name, summary) for name, (_, summary) in commands.items()]
                formatter.write_dl(rows, col_spacing=width - max(map(len, commands)))


def _examples(command: str) -> str:
    r"""Return the examples of a command, for the end of its help. The \b makes click keep the line breaks."""
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

        print(f"odradek {version('odradek')} ({'compiled' if _is_compiled() else 'interpreted'})")
        raise typer.Exit


def _is_compiled() -> bool:
    """Return whether this installation has the broker's compiled modules. Python prefers them to their source files."""
    try:
        return importlib.util.find_spec(COMPILED_MODULES) is not None
    except ModuleNotFoundError:  # The package of the broker is not installed.
        return False


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


def main() -> None:
    """Run the command that the process's arguments name."""
    words = sys.argv[1:]
    open_closed_streams()
    with one_line_errors():
        if words[:1] == ["quorum"] and words[1:2] and words[1] in QUORUM_PROCESS_OPTIONS:
            from odradek.cli.processes import run_module

            run_module("odradek_metadata_quorum", "server", words[1:])
        app(prog_name="odradek")


if __name__ == "__main__":
    main()

"""`odradek quorum | broker | gateway | pipeline`: start the process of that name in this one's place."""

from __future__ import annotations

import os
import sys

import typer

from odradek.cli.output import EXIT_ERROR, fail
from odradek.extras import what_is_missing

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_commands(app: typer.Typer) -> None:
    """Add a command for each service; all arguments are the service's own."""
    _add(app, "broker", "odradek_broker", "server", "Run a broker in the foreground.")
    _add(app, "gateway", "odradek_gateway", "server", "Run a REST gateway in the foreground.")
    _add(app, "pipeline", "pyspark_odradek.pipelines", "spark", "Run a Spark pipeline by name.")


def run_module(module: str, extra: str, arguments: list[str]) -> None:
    """Replace this process by `python -m module`; says which extra is missing where it is not installed."""
    if missing := what_is_missing(module, extra):
        fail(missing, status=EXIT_ERROR)
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def _add(app: typer.Typer, name: str, module: str, extra: str, help_text: str) -> None:
    def run(context: typer.Context) -> None:
        run_module(module, extra, context.args)

    app.command(name, help=help_text, context_settings=_PASS_ON)(run)

"""The command line imports little when it starts, and its errors are one line each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from typer.testing import CliRunner

from odradek.cli.main import app

HEAVY = (
    "asyncio", "cryptography", "fastapi", "grpc", "importlib.metadata", "pyarrow", "pydantic",
    "pyspark", "rich", "structlog",
)  # fmt: skip
_PROBE = """
import sys
sys.argv = ["odradek", *{words!r}]
from odradek.cli.main import app
try:
    app()
except SystemExit:
    pass
print("LOADED", [m for m in {heavy!r} if m in sys.modules])
"""


@pytest.mark.parametrize(
    "words", [["--help"], ["topic", "--help"], ["dev", "--help"], ["consume", "--help"]]
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    # typer looks at the parameters of a single command with pydantic, where that is installed
    typers = {"pydantic", "importlib.metadata"} if len(words) > 1 else set()
    heavy = tuple(name for name in HEAVY if name not in typers)
    done = subprocess.run(
        [sys.executable, "-c", _PROBE.format(words=words, heavy=heavy)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "LOADED []"


def test_the_version_says_whether_the_broker_is_compiled(tmp_path: Path) -> None:
    package = tmp_path / "odradek_broker"
    package.mkdir()
    (package / "__init__.py").touch()

    def version() -> str:
        return subprocess.run(
            [sys.executable, "-m", "odradek.cli.main", "--version"],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
        ).stdout

    assert re.fullmatch(r"odradek \S+ \(interpreted\)\n", version())
    (package / f"_native__mypyc{EXTENSION_SUFFIXES[0]}").touch()
    assert re.fullmatch(r"odradek \S+ \(compiled\)\n", version())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["consume", "t", "--from-beginning", "--offset", "3"], "can be used"),
        (["consume", "t", "-f", "%x"], "unknown placeholder %x"),
        (["produce", "t", "/no/such/file"], "cannot read /no/such/file"),
        (["produce", "t", "--acks", "2"], "must be one of 0, 1, all"),
        (["produce", "t", "--key-separator", ""], "--key-separator must not be empty"),
        (["produce", "t", "--partition", "-1"], "--partition"),
        (["consume", "t", "--offset", "soon"], "write an offset, -N for the last N records"),
        (["consume", "t", "--offset", "earlyest"], "--from-beginning starts at the earliest"),
        (["produce", "t", "--acks", "al"], "0, 1, all; did you mean all?"),
        (["consume", "t", "-o", "jsno"], "'jsno' is not one of table, json; did you mean json?"),
        (["consume", "t", "--key-as", "hx"], "'--key-as': 'hx' is not one of text, json, hex,"),
        (["acl", "add", "--operation", "raed"], "two-phase-commit; did you mean read?"),
        (["acl", "add", "--principal", "User:a"], "Missing option '--operation'.\n"),
        (["consume", "t", "--from-begin"], "; did you mean --from-beginning?"),
        (["consume", "t", "--auto-offset-reset", "earliest"], "did you mean --from-beginning?"),
        (["consume", "t", "--tail", "5"], "No such option: --tail; did you mean --last?"),
        (["consume", "t", "--limit", "5"], "did you mean --count?"),
        (["consume", "t", "--last", "5", "--offset", "3"], "--since and --last can be used"),
        (["consume", "t", "--last", "5", "--grep", "x"], "--last cannot be used with"),
        (["consume", "t", "--last", "0"], "--last"),
        (["group", "seek", "g", "--auto-offset-reset", "x"], "No such option: --auto-offset-reset"),
        (["group", "seek", "g", "--to-earliest"], "did you mean --to earliest?"),
        (["group", "seek", "g", "--to", "earlyest"], "or an offset; did you mean earliest?"),
        (["group", "list", "--state", "Stabel"], "CompletingRebalance, Dead; did you mean Stable?"),
        (["transaction", "list", "--state", "open"], "--state open is not valid: it must be one"),
        (["consume", "t", "--group", "g", "--offset", "1"], "odradek group seek"),
        (["bench", "--acks", "2"], "--acks"),
        (["topic", "lst"], "Did you mean 'list'?"),
        (["--timeout", "0", "topic", "list"], "--timeout"),
        (["topic", "create", "t", "--config", "novalue"], "does not have the form NAME=VALUE"),
        (["topic", "alter-config", "t"], "nothing to change"),
        (["group", "seek", "g", "--to", "never", "--topic", "t"], "write start or earliest"),
        (
            ["storage", "format", "--data-dir", "/tmp/x", "--node-id", "1", "--voters", "a"],
            "does not have the form 1@host",
        ),
        (
            ["storage", "format", "--data-dir", "/tmp/x", "--node-id", "1", "--voters", "1@host"],
            "does not have the form 1@host",
        ),
    ],
)
def test_wrong_use_is_told_with_status_2(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit | None)
    assert said in done.stderr

"""The help of the command line fits a screen, and its examples are commands that exist."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from odradek.cli.main import (
    COMMANDS_BY_TASK,
    EXAMPLES,
    PARSE_ALL_ARGUMENTS,
    QUORUM_PROCESS_OPTIONS,
    app,
)
from odradek_demo import __main__ as demo

ROOT = Path(__file__).parents[3]
SCREEN_LINES = 40


def help_of(*words: str) -> str:
    """Return the help of a command on a terminal of 80 columns."""
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_demo_has_the_short_help_option_of_the_other_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", "-h"])
    with pytest.raises(SystemExit, match=r"^0$"):
        demo.main()
    assert "-h, --help" in capsys.readouterr().out


def test_the_help_of_the_program_fits_a_screen_and_has_all_commands() -> None:
    lines = help_of().splitlines()
    assert len(lines) <= SCREEN_LINES
    listed = [name for names in COMMANDS_BY_TASK.values() for name in names]
    assert sorted(listed) == sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in listed)


@pytest.mark.parametrize("names", COMMANDS_BY_TASK.values(), ids=list(COMMANDS_BY_TASK))
def test_the_line_of_a_command_in_the_help_of_the_program_is_what_it_says_of_itself(
    names: dict[str, tuple[str, str]],
) -> None:
    """The program's help must not import every command, so the line stands in a table."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, (_, summary) in names.items():
        assert commands[name].get_short_help_str(100).rstrip(".") == summary.rstrip(".")


def test_a_command_is_imported_only_when_it_is_used() -> None:
    script = "import sys; from odradek.cli.main import app; app(['--help'], standalone_mode=False);"
    script += "print(*sorted(m for m in sys.modules if m.startswith('odradek.cli.')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.splitlines()[-1].split())
    assert imported == {f"odradek.cli.{name}" for name in ("connection", "main", "output")}


def test_the_list_of_make_targets_fits_a_screen() -> None:
    done = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) <= SCREEN_LINES


@pytest.mark.parametrize("command", sorted(EXAMPLES))
def test_the_help_of_a_command_has_examples_and_whole_sentences(command: str) -> None:
    text = help_of(command)
    assert "Examples:" in text
    assert all(example in text for example in EXAMPLES[command])
    commands = text.partition("\nCommands:\n")[2].partition("\n\n")[0]
    assert not [line for line in commands.splitlines() if line.endswith("...")]


def test_every_command_that_prints_its_own_help_is_known() -> None:
    listed = {name for names in COMMANDS_BY_TASK.values() for name in names}
    assert listed - EXAMPLES.keys() == PARSE_ALL_ARGUMENTS


@pytest.mark.parametrize("example", [e for examples in EXAMPLES.values() for e in examples])
def test_the_options_of_an_example_exist(example: str) -> None:
    words = shlex.split(example.rpartition("| ")[2], comments=True)
    assert words.pop(0) == "odradek"
    if words[0] == "quorum" and words[1] in QUORUM_PROCESS_OPTIONS:
        return
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("example", words)  # raises for an option that does not exist


def test_a_service_whose_help_is_not_read_to_its_end_ends_without_a_traceback() -> None:
    command = [sys.executable, "-m", "odradek_metadata_quorum", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0

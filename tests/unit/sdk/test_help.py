"""The help of the command line fits a screen, and its examples are commands that exist."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from odradek.cli.main import COMMANDS_BY_TASK, EXAMPLES, QUORUM_PROCESS_OPTIONS, app

ROOT = Path(__file__).parents[3]
SCREEN_LINES = 40
PASSED_ON = {"broker", "gateway", "demo", "pipeline"}  # programs that print help of their own


def help_of(*words: str) -> str:
    """Return the help of a command on a terminal of 80 columns."""
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_help_of_the_program_fits_a_screen_and_has_all_commands() -> None:
    lines = help_of().splitlines()
    assert len(lines) <= SCREEN_LINES
    listed = [name for names in COMMANDS_BY_TASK.values() for name in names]
    assert sorted(listed) == sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in listed)


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
    assert listed - EXAMPLES.keys() == PASSED_ON


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

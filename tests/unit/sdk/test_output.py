"""Names that clients chose are printed safely: none acts as markup or as an escape sequence, and none causes an
error.
"""

from __future__ import annotations

import io
import itertools
import json
import sys
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from odradek.cli.main import app
from odradek.cli.output import (
    OutputFormat,
    Progress,
    binary_output,
    confirm,
    counted,
    fail,
    open_closed_streams,
    print_facts,
    print_rows,
    printable,
    say,
    table_of,
)

HOSTILE = ["[/x]", "[bold]", "\x1b[2J\x1b]0;owned\x07", "a\nb", "\x9b31m", "tab\there", "\ud800"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_printed_and_does_nothing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_rows([{"group": name, "members": 1}], OutputFormat.TABLE, empty="none")
    print_facts({name: name, "list": [name]}, OutputFormat.TABLE)
    with pytest.raises(SystemExit):
        fail(f"no such group {name}")
    captured = capsys.readouterr()
    for line in (captured.out + captured.err).splitlines():
        assert line.isprintable(), repr(line)
    if name.isprintable():
        assert name in captured.out
        assert name in captured.err


@pytest.mark.parametrize("name", HOSTILE)
def test_a_line_that_quotes_a_hostile_name_does_nothing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say(f"{name} is at level 1\nand on the next line: {name}")
    say(name, is_error=True)
    captured = capsys.readouterr()
    assert all(line.isprintable() for line in (captured.out + captured.err).split("\n"))
    assert captured.out.count("\n") == 2 + 2 * name.count("\n")


@pytest.mark.parametrize("words", [["topic", "list", "--\x1b[2J"], ["topic", "list", "\x1b[2J"]])
def test_a_usage_error_quotes_arguments_escaped(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr
    assert "\\x1b[2J" in result.stderr


@pytest.mark.parametrize("name", HOSTILE[:-1])
def test_json_keeps_names_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"group": name}], OutputFormat.JSON, empty="none")
    assert json.loads(capsys.readouterr().out) == [{"group": name}]


def test_other_alphabets_are_printed_as_they_are() -> None:
    assert printable("größe-数据") == "größe-数据"


def test_streams_that_are_closed_discard_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """`odradek topic list >&-` succeeds without output; Python has None in the place of closed streams."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    open_closed_streams()
    with sys.stdout, sys.stderr:
        print_rows([{"topic": "orders"}], OutputFormat.TABLE, empty="none")
        print_rows([], OutputFormat.TABLE, empty="none")
        binary_output().write(b"a record")
        with Progress("records", is_seen=False) as progress:
            progress.add(1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_count_is_shown_at_a_terminal_unless_each_thing_is(
    monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    """Standard output is a terminal, too: `odradek produce` prints nothing there."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    clock_s = itertools.count(0, 2)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock_s))
    progress = Progress("line", is_seen=is_seen)
    progress.add(1_000)
    assert ("1,000 lines in" in terminal.getvalue()) is not is_seen
    progress.say("waiting")
    assert terminal.getvalue().endswith("waiting\n" if is_seen else "\r\033[Kwaiting\n")


@pytest.mark.parametrize(("count", "text"), [(0, "0 lines"), (1, "1 line"), (2_000, "2,000 lines")])
def test_one_thing_is_not_counted_in_the_plural(count: int, text: str) -> None:
    assert counted(count, "line") == text


def test_a_narrow_table_is_folded_between_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    addresses = [f"KAFKA://127.0.0.{number}:9092" for number in range(3)]
    table = table_of([{"broker": 1, "isr": [1, 2, 3], "listeners": addresses}])
    Console(width=40).print(table)
    lines = capsys.readouterr().out.splitlines()
    assert "1,2,3" in lines[1]
    for line, address in zip(lines[1:], addresses, strict=True):
        assert address in line


def test_nobody_is_asked_where_standard_input_is_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    confirm("delete the topic?", is_confirmed=False)
    assert capsys.readouterr().err == ""

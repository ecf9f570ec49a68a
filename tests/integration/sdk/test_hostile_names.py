"""Every command prints names that clients chose: nothing reaches the terminal unescaped, and no
command ends with a traceback.
"""

from __future__ import annotations

import io
import itertools
import sys

import pytest

from odradek.cli.main import main

NAMES = {
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "one-byte escape": "\x9b31m",
    "lines": "a\nodradek: all is well\rb\tc",
    "right to left": "abc\u202egpj.exe\u2066",
    "long": "x" * 65_536,
    "surrogate": "\udc80\ud800",
    "markup": "[/x][bold]",
    "combining": "z" + "\u0300" * 500,
    "null": "a\0b",
    "tags": "\U000e0001\ufeff\u200b",
}
COMMANDS = [
    ["topic", "describe", "{}"],
    ["topic", "create", "{}"],
    ["topic", "delete", "{}"],
    ["topic", "alter-config", "{}", "--set", "{}={}"],
    ["group", "describe", "{}"],
    ["group", "delete", "{}"],
    ["consume", "{}", "--exit-at-end", "--from-beginning"],
    ["produce", "{}"],
    ["acl", "add", "--principal", "User:{}", "--operation", "read", "--topic", "{}"],
    ["acl", "add", "--principal", "User:{}", "--operation", "{}", "--topic", "t"],
    ["acl", "list", "--topic", "{}"],
    ["feature", "set", "{}", "1"],
    ["user", "delete", "{}"],
    ["cluster", "config", "--set", "{}={}"],
    ["{}"],
    ["topic", "{}"],
    ["topic", "list", "--{}"],
    ["topic", "list", "{}"],
]


class Terminal:
    """Runs commands as a shell does, and checks what they print."""

    def __init__(
        self, bootstrap: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._patch = monkeypatch
        self._capsys = capsys
        monkeypatch.setenv("ODRADEK_BOOTSTRAP", bootstrap)

    def run(self, words: list[str]) -> int:
        """Run a command, and return its exit status. All of its output must be harmless to a terminal."""
        self._patch.setattr(sys, "argv", ["odradek", *words])
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"value\n")))
        what = [word[:40] for word in words]
        try:
            main()
            status: object = 0
        except SystemExit as end:
            status = end.code or 0
        assert status in (0, 1, 2, 3), what
        printed = self._capsys.readouterr()
        for line in (printed.out + printed.err).split("\n"):
            assert line.isprintable(), (what, line[:200])
            assert len(line) < 100_000, what
        return int(str(status))


@pytest.fixture
def terminal(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    return Terminal(bootstrap, monkeypatch, capsys)


@pytest.mark.parametrize("kind", NAMES)
def test_a_hostile_name_is_an_argument_like_any_other(kind: str, terminal: Terminal) -> None:
    for command in COMMANDS:
        words = [word.replace("{}", NAMES[kind]) for word in command]
        terminal.run(words)


def test_what_others_named_is_listed(terminal: Terminal) -> None:
    assert terminal.run(["topic", "create", "listed"]) == 0
    kept = [name for kind, name in NAMES.items() if kind not in ("long", "surrogate", "null")]
    for name in kept:
        terminal.run(["consume", "listed", "--group", name, "--exit-at-end", "--from-beginning"])
        acl = ["acl", "add", "--principal", f"User:{name}", "--operation", "read", "--topic", "t"]
        assert terminal.run(acl) == 0
    for command, output in itertools.product(("group", "acl", "topic"), ("table", "json")):
        assert terminal.run([command, "list", "-o", output]) == 0
    for name in kept:
        assert terminal.run(["group", "describe", name]) in (0, 1)

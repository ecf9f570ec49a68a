"""Texts that people read (log messages, docstrings, help) avoid the forms that readers did not understand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.tidy.test_code_base import ROOT, sources

_LEVELS = frozenset({"debug", "info", "warning", "error", "exception"})
# Events that one word names clearly. Every process logs them.
_ONE_WORD = frozenset({"Serving", "Stopping", "Stopped"})
_PLACEHOLDER = re.compile(r"%[-\d.]*[a-z]")
# A string literal that ends a line with a word, and one that begins the next line with a word.
_WORD_AT_END = re.compile(r"""(?<!\\)[A-Za-z}]["']$(?<!""["'])""")
_WORD_AT_BEGIN = re.compile(r"""\s*[fr]?["'][A-Za-z{]""")
_SPLICE = re.compile(r", (it|this|that|he|the \w+|its \w+) (is|was|has|had|cannot|does|did)\b")


def log_messages(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each log call whose message is a constant."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr not in _LEVELS or "log" not in ast.unparse(node.func.value).lower():
            continue
        if (
            node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            yield f"{path.relative_to(ROOT)}:{node.lineno}", node.args[0].value


def log_message_fault(message: str) -> str:
    """Return what is wrong with the form of a log message, or ""."""
    if message in _ONE_WORD:
        return ""
    if len(re.findall(r"[A-Za-z]{2,}", _PLACEHOLDER.sub("", message))) < 2:
        return "names no event: an operator can neither search for it nor understand it"
    if not message[0].isupper() and not message.startswith(("%", "gRPC")):
        return "does not begin with a capital letter"
    if message.endswith("."):
        return "ends with a full stop"
    if _SPLICE.search(message):
        return "joins two sentences with a comma: say `because`, `which` or use a semicolon"
    return ""


def test_a_log_message_names_an_event_in_words() -> None:
    messages = [entry for path in sources() for entry in log_messages(path)]
    assert len(messages) > 100, "the log calls changed their form, and this test looks at nothing"
    faults = {
        f"{place} {message!r}": fault
        for place, message in messages
        if (fault := log_message_fault(message))
    }
    assert not faults


def test_the_faults_of_log_messages_are_recognized() -> None:
    assert log_message_fault("%s: %s")
    assert log_message_fault("Failed")
    assert log_message_fault("a callback raised an exception")
    assert log_message_fault("Snapshot not stored, the disk is full")
    assert log_message_fault("Snapshot refused, it is above the limit")
    assert not log_message_fault("Serving")
    assert not log_message_fault("Snapshot not stored because the disk is full; the log grows")
    assert not log_message_fault("Commit of group %s failed: %s")


def words_run_together(text: str) -> list[int]:
    """Return the lines of source code whose string ends in a word that the string on the next line continues."""
    lines = text.splitlines()
    return [
        number
        for number, (line, following) in enumerate(pairwise(lines), 1)
        if _WORD_AT_END.search(line) and _WORD_AT_BEGIN.match(following)
    ]


def test_the_parts_of_a_text_have_a_space_between_them() -> None:
    paths = [*sources(), *(ROOT / "tests/sim").rglob("*.py")]
    assert not [
        f"{path.relative_to(ROOT)}:{line}"
        for path in paths
        for line in words_run_together(path.read_text())
    ]


def test_words_that_run_together_are_recognized() -> None:
    assert words_run_together('(f"broker {broker_id}"\n f"has no log")') == [1]
    assert words_run_together('("the log of"\n "the broker")') == [1]
    assert not words_run_together('(f"broker {broker_id} "\n f"has no log")')
    assert not words_run_together('("the log of"\n " the broker")')
    assert not words_run_together('["the log",\n "the broker"]')
    assert not words_run_together('"""A docstring"""\n"begins"')

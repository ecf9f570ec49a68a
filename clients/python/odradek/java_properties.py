"""Parses Java properties, such as Kafka's server.properties, as java.util.Properties does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_BLANKS: Final = " \t\f"
# A name, a separator and a value in a line of Java properties. A name may have escaped separators.
_ENTRY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)([ \t\f]*[=:][ \t\f]*|[ \t\f]*)(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_java_properties(text: str) -> dict[str, str]:
    """Return the values by name. If a name occurs several times, the last value is used, as in Java.

    Raises:
        ValueError: a line has no separator, which Java would read as a name with an empty value, or has an invalid
            escape. The message begins with the number of the line.
    """
    entries: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = _ENTRY.fullmatch(line)
        assert match is not None, line
        if not match[1] or not match[2]:
            raise ValueError(f"{number}: the line {line!r} does not have the form name=value")
        try:
            # Kafka removes blanks at the ends of a value, also those that are escaped.
            entries[_unescaped(match[1])] = _unescaped(match[3]).strip()
        except ValueError:
            raise ValueError(f"{number}: the line {line!r} has an invalid \\uXXXX") from None
    return entries


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each logical line of Java properties with the number of its first line, without comments and blank lines.

    A line that ends in an odd number of backslashes continues on the next line, whose leading blanks are dropped. The
    backslashes at the end of a comment have no meaning.
    """
    pending: str | None = None
    first_number = 0
    for number, natural in enumerate(re.split("\r\n|\r|\n", text), 1):
        line = natural.lstrip(_BLANKS)
        if pending is None:
            if not line or line[0] in "#!":
                continue
            pending, first_number = "", number
        pending += line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        if pending:
            yield first_number, pending
        pending = None
    if pending:
        yield first_number, pending


def _unescaped(text: str) -> str:
    """Return a name or value of Java properties without its escapes. Raises ValueError for an invalid \\uXXXX."""

    def character(match: re.Match[str]) -> str:
        if match[2] == "u":
            raise ValueError(match[0])
        return chr(int(match[1], 16)) if match[1] else _ESCAPED.get(match[2], match[2])

    unescaped = _ESCAPE.sub(character, text)
    # Java's strings are UTF-16, so a character outside the basic plane is written as two escapes.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16")

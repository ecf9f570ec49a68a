"""The output of commands: tables for people, JSON for programs, and errors on stderr with an exit status."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, NoReturn, Self

import typer

from odradek.cluster.endpoints import DEFAULT_BOOTSTRAP
from odradek.spelling import did_you_mean

if TYPE_CHECKING:
    from odradek.errors import OdradekError

__all__ = [
    "DEFAULT_BOOTSTRAP",
    "EXIT_ERROR",
    "EXIT_TERMINATED",
    "EXIT_UNHEALTHY",
    "EXIT_USAGE",
    "Bootstrap",
    "DryRun",
    "Output",
    "OutputFormat",
    "Progress",
    "Yes",
    "binary_output",
    "canonical",
    "confirm",
    "console",
    "counted",
    "fail",
    "fail_on_errors",
    "one_line_errors",
    "open_closed_streams",
    "print_facts",
    "print_rows",
    "printable",
    "readable_bytes",
    "say",
    "table_of",
]

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_UNHEALTHY = 3
EXIT_INTERRUPTED = 128 + 2  # what shells report for SIGINT
EXIT_TERMINATED = 128 + 15  # what shells report for SIGTERM


class OutputFormat(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    JSON = "json"


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        envvar="ODRADEK_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help="gRPC addresses of brokers. The command uses the first one that responds.",
        show_default=True,
    ),
]
ERRORS_MAX: Final = 20
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what the command would change, without changing it.")
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]
Output = Annotated[
    OutputFormat, typer.Option("-o", "--output", help="Print a table, or JSON for programs.")
]


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an error of Odradek or of the operating system as one line on stderr, and exit. Any other exception is
    raised with its traceback.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except UnicodeEncodeError as error:
        fail(f"the text {error.object!r} is not valid UTF-8", status=EXIT_USAGE)
    except OSError as error:
        fail(f"{error.strerror}: {error.filename}" if error.filename else str(error) or repr(error))
    except Exception as error:
        if type(error).__module__.startswith("odradek"):
            fail(error)
        raise


def open_closed_streams() -> None:
    """Replace a standard stream that was closed when the command started (`>&-`) by one that discards its output.

    Python sets such a stream to None, so a print would fail.
    """
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def binary_output() -> BinaryIO:
    """Return a stream that writes bytes to standard output, with a buffer even under PYTHONUNBUFFERED.

    Without a buffer, a write may write only some of its bytes and raise no error, for example when the reader of a
    pipe has exited. The command would not notice.
    """
    stream = sys.stdout.buffer
    if isinstance(stream, io.RawIOBase):
        return open(stream.fileno(), "wb", closefd=False)
    return stream


def print_rows(rows: Sequence[Mapping[str, Any]], output: OutputFormat, *, empty: str) -> None:
    """Print rows as a JSON array or a table. All rows must have the same columns. If there are no rows, `empty` is
    printed on stderr.
    """
    if output is OutputFormat.JSON:
        print(json.dumps([_snake_case(row) for row in rows], default=_plain))
        return
    if not rows:
        print(empty, file=sys.stderr)
        return
    console().print(table_of(rows))


def table_of(rows: Sequence[Mapping[str, Any]], *, is_folded: bool = True) -> Any:
    """Return a rich table of rows, which must have the same columns.

    With `is_folded`, a text that is too wide is folded. Without it, each row takes one line, column headers may take
    two, and only texts in the first column are shortened.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(rows[0]):
        # A missing value must not make a column of numbers left-aligned.
        numeric = all(row[column] is None or isinstance(row[column], (int, float)) for row in rows)
        table.add_column(
            column if is_folded else Text(column.replace(" ", "\n", 1)),
            justify="right" if numeric else "left",
            overflow="fold" if is_folded else "ellipsis",
            # If the table is too wide, rich narrows only the columns that may wrap.
            no_wrap=not is_folded and number > 0,
        )
    for row in rows:
        table.add_row(*(Text(_text(row[column]), no_wrap=not is_folded) for column in rows[0]))
    return table


def print_facts(facts: Mapping[str, Any], output: OutputFormat) -> None:
    """Print named facts as a JSON object, or one per line."""
    if output is OutputFormat.JSON:
        print(json.dumps(_snake_case(facts), default=_plain))
        return
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        print(f"{printable(name):<{width}}  {_text(value)}")


def console(*, stderr: bool = False) -> Any:
    """Return a rich console. If the stream is not a terminal, the console is 200 columns wide and has no colour."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    is_terminal = stream.isatty()
    return Console(
        stderr=stderr,
        width=None if is_terminal else 200,
        no_color=not is_terminal or "NO_COLOR" in os.environ,
        highlight=False,
        soft_wrap=not is_terminal,
    )


def fail(error: object, *, status: int = EXIT_ERROR) -> NoReturn:
    """Print the error, with its hint if it has one, and exit with this status."""
    say(f"odradek: {error}", is_error=True)
    hint = getattr(error, "hint", None)
    if hint and hint not in str(error):
        say(f"         {hint}", is_error=True)
    sys.exit(status)


def canonical(option: str, value: str, allowed: Sequence[str]) -> str:
    """Return the item of `allowed` that `value` names, whatever the case of its letters. Any other value ends the
    command with an error that names the option, the allowed values, and the most similar one.
    """
    for name in allowed:
        if name.lower() == value.lower():
            return name
    fail(
        f"{option} {value} is not valid: it must be one of {', '.join(allowed)}{did_you_mean(value, allowed)}",
        status=EXIT_USAGE,
    )


def say(text: str, *, is_error: bool = False) -> None:
    """Print lines for a person to read. Control characters are escaped."""
    for line in text.split("\n"):
        print(printable(line), file=sys.stderr if is_error else sys.stdout)


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask a user at a terminal to confirm a change that cannot be undone. Any answer but yes ends the command.

    Nothing is asked if `is_confirmed` is set or standard input is no terminal: a script can check with --dry-run first.
    """
    if is_confirmed or sys.stdin is None or not sys.stdin.isatty():
        return
    print(printable(f"{question} [y/N] "), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        fail("not confirmed: nothing was changed")


def fail_on_errors(errors_or_none: Iterable[OdradekError | None]) -> None:
    """End the command with an error if any of the values is an error. At most ERRORS_MAX errors are printed.

    `errors_or_none` has one value for each partition or group that the command changes: its error, or None if the
    change succeeded.
    """
    errors = [error for error in errors_or_none if error is not None]
    for error in errors[1:ERRORS_MAX]:
        say(f"odradek: {error}", is_error=True)
    if len(errors) > ERRORS_MAX:
        say(f"odradek: and {len(errors) - ERRORS_MAX} more errors", is_error=True)
    if errors:
        fail(errors[0])


def readable_bytes(count: float) -> str:
    """Return a number of bytes with one decimal in the largest unit that fits (B to TiB), such as 1.5 GiB."""
    if count < 1024:
        return f"{count:.0f} B"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log(count, 1024)), len(units))
    return f"{count / 1024**power:.1f} {units[power - 1]}"


def counted(count: int, what: str) -> str:
    """Return a number followed by a noun, such as 1 line or 2,000 lines. `what` is the singular of the noun."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


class Progress:
    """Shows a user at a terminal how many things were counted: a line on stderr once a second, and a summary at the
    end.

    If the user sees each thing on the terminal, because it is printed or typed there, only the summary is printed.
    """

    def __init__(self, what: str, *, is_seen: bool) -> None:
        """`what` is the singular of what is counted, such as record; its plural must end with an s. `is_seen`: the
        user sees each thing on the terminal.
        """
        self.count = 0
        self._what = what
        self.is_watched = sys.stderr.isatty()
        """Whether stderr is a terminal, so that a user sees what is printed on stderr."""
        self._has_line = self.is_watched and not is_seen
        self._started_s = self._shown_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._has_line:
            print("\r\033[K", end="", file=sys.stderr)
        if self.is_watched:
            say(self._text(), is_error=True)

    def add(self, count: int) -> None:
        """Add to the count."""
        self.count += count
        if self._has_line and time.monotonic() - self._shown_s >= 1:
            self._shown_s = time.monotonic()
            print(f"\r\033[K{self._text()}", end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a message on stderr, in place of the line that shows the count."""
        if self._has_line:
            print("\r\033[K", end="", file=sys.stderr)
        say(text, is_error=True)

    def _text(self) -> str:
        elapsed_s = time.monotonic() - self._started_s
        return f"{counted(self.count, self._what)} in {elapsed_s:.1f} s"


def _snake_case(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with names for JSON: `log end` becomes `log_end`.

    Rows in lists are renamed, too. A mapping as a value keeps its keys, because these are names of configs.
    """

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [_snake_case(row) if isinstance(row, Mapping) else row for row in value]
        return value

    return {
        name.replace(" ", "_").replace("-", "_"): renamed(value) for name, value in facts.items()
    }


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        # A space after each comma lets a narrow table fold between long items instead of inside one.
        separator = ", " if any(len(str(item)) > 8 for item in value) else ","
        return printable(separator.join(str(item) for item in value))
    return printable(str(value))


def printable(text: str) -> str:
    """Escape control characters. Clients choose names freely, and a terminal would execute escape sequences in them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
r"""Characters by the letter that follows the backslash. A letter that is missing here stands for itself."""


def unescaped(text: str) -> str:
    r"""Return the text with each escape sequence (`\t`, `\n`, `\0`, ...) replaced by its character."""
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)

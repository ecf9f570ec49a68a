"""Arguments of pipelines: those that all take, and types that refuse what makes no sense before Spark starts."""

from __future__ import annotations

import math
import os
from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, datetime

from odradek.cluster.endpoints import BOOTSTRAP_VARIABLE, parse_bootstrap
from odradek.errors import InvalidConfig


def addresses(text: str) -> str:
    """HOST:PORT,... of brokers."""
    try:
        return ",".join(parse_bootstrap(text))
    except InvalidConfig as problem:
        raise ArgumentTypeError(str(problem)) from None


def named_value(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def duration(text: str) -> float:
    """A number from 0, of hours or seconds."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ArgumentTypeError(f"{text!r} is no number from 0")
    return number


def instant(text: str) -> datetime:
    """`2013-06-01T00:00`, UTC unless it says otherwise."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no time like 2013-06-01T00:00") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def add_common_arguments(parser: ArgumentParser) -> None:
    """Arguments that every pipeline takes."""
    known = os.environ.get(BOOTSTRAP_VARIABLE)
    parser.add_argument(
        "--bootstrap",
        type=addresses,
        default=known,
        required=not known,
        help=f"HOST:PORT,... of brokers' gRPC listeners; default: {BOOTSTRAP_VARIABLE}",
    )
    parser.add_argument("--from", dest="source", default="flights", help="topic to read")
    parser.add_argument("--to", dest="target", default=None, help="topic, or directory, to write")
    parser.add_argument("--checkpoint", default=None, help="directory of the query's checkpoint")
    parser.add_argument(
        "--starting", default="earliest", help="earliest, latest, or offsets as JSON"
    )
    parser.add_argument(
        "--available-now", action="store_true", help="read what is there now, then end"
    )
    parser.add_argument(
        "--trigger-s", type=duration, default=1.0, help="seconds between triggers; default: 1"
    )
    parser.add_argument("--batch-offsets-max", type=count, default=None, help="offsets per trigger")
    parser.add_argument("--master", default=None, help="Spark's master; default: local[*]")
    for name, meaning in (
        ("--spark", "a setting of Spark"),
        ("--option", "an option of the source"),
    ):
        parser.add_argument(
            name, type=named_value, action="append", default=[], metavar="NAME=VALUE", help=meaning
        )

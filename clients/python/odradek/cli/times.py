"""Parsers for times, durations and sizes in options of commands."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

from odradek.cli.output import EXIT_USAGE, fail

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d{1,11})(ms|s|m|h|d)")
_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
FORMS_OF_TIMES: Final = (
    "10m (10 minutes ago), 2026-11-22T10:00 (local time; with a Z at the end UTC), or milliseconds"
    " since the epoch"
)


def duration_ms(text: str, *, option: str) -> int:
    """Return a duration such as 90s, 10m or 2d in milliseconds. A text of another form ends the command with an
    error.
    """
    matched = _DURATION.fullmatch(text)
    if matched is None:
        fail(
            f"{option} {text} is not a duration: write a number followed by ms, s, m, h or d, such as 10m",
            status=EXIT_USAGE,
        )
    return int(matched[1]) * _UNITS_MS[matched[2]]


def size_bytes(text: str, *, option: str) -> int:
    """Return a size such as 500, 10MB or 1.5GiB in bytes, at least 1. A text of another form ends the command with an
    error.
    """
    matched = _SIZE.fullmatch(text)
    size = 0
    if matched is not None:
        power = " kmgt".index((matched[2] or " ").lower())
        size = int(float(matched[1]) * (1024 if matched[3] else 1000) ** power)
    if size < 1:
        fail(
            f"{option} {text} is not a size: write a number of bytes such as 500, 10MB or 1.5GiB",
            status=EXIT_USAGE,
        )
    return size


def time_ms(text: str, *, option: str) -> int:
    """Return a time in milliseconds since the epoch. A text of none of the forms in `FORMS_OF_TIMES` ends the command
    with an error. A date and time without a time zone is in the zone of this machine.
    """
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    if _DURATION.fullmatch(text):
        return max(0, int(time.time() * 1000) - duration_ms(text, option=option))
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        fail(f"{option} {text} is not a time: write {FORMS_OF_TIMES}", status=EXIT_USAGE)

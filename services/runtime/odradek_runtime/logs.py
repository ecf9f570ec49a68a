"""Log events: a fixed message with fields, written as one JSON object per line or as one line of text.

This module uses the standard library's logging, so that the log lines of libraries have the same form. structlog was
not used because its import takes 0.12 s (measured), while a process should start in half a second.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson

_FIELDS: Final = "odradek_fields"
LOG_FORMATS: Final = ("auto", "json", "text")


class EventLog:
    """A logger of events. The fields in `bound` are added to every event."""

    __slots__ = ("_bound", "_logger")

    def __init__(self, name: str, bound: Mapping[str, object] | None = None) -> None:
        self._logger = logging.getLogger(name)
        self._bound = dict(bound or {})

    def bind(self, **fields: object) -> EventLog:
        """Return a logger like this one that adds more fields to every event."""
        return EventLog(self._logger.name, {**self._bound, **fields})

    def debug(self, message: str, **fields: object) -> None:
        """Log details for debugging."""
        self._emit(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        """Log an event that an operator may want to know."""
        self._emit(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        """Log an event after which the service is degraded."""
        self._emit(logging.WARNING, message, fields)

    def error(self, message: str, *, exc: BaseException | None = None, **fields: object) -> None:
        """Log an event on which an operator must act; `exc` adds its traceback."""
        self._emit(logging.ERROR, message, fields, exc)

    def _emit(
        self,
        level: int,
        message: str,
        fields: Mapping[str, object],
        exc: BaseException | None = None,
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {_FIELDS: {**self._bound, **fields}}
            self._logger.log(level, "%s", message, extra=extra, exc_info=exc)


def event_log(name: str) -> EventLog:
    """Return the event logger with this name, which is usually the module's name."""
    return EventLog(name)


def configure_logs(
    *,
    level: str = "INFO",
    log_format: str = "auto",
    stream: TextIO | None = None,
    bound: Mapping[str, object] | None = None,
) -> None:
    """Configure the logs of the process: its events, and the log lines of libraries, go to `stream` (default: stderr).

    `log_format` is one of LOG_FORMATS; auto means text on a terminal and JSON elsewhere. The fields in `bound` are
    added to every event.
    """
    assert log_format in LOG_FORMATS, log_format
    out = sys.stderr if stream is None else stream
    is_text = log_format == "text" or (log_format == "auto" and out.isatty())
    handler = logging.StreamHandler(out)
    handler.setFormatter((_TextFormatter if is_text else _JsonFormatter)(dict(bound or {})))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("asyncio", "grpc", "grpc._cython.cygrpc", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _JsonFormatter(logging.Formatter):
    def __init__(self, bound: dict[str, object]) -> None:
        super().__init__()
        self._bound = bound

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "source": record.name,
            **self._bound,
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(event, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


class _TextFormatter(logging.Formatter):
    """Writes an event as `2026-01-31 12:00:00.000Z INFO    Event  name=value ...`, followed by its indented traceback
    if it has one.
    """

    def __init__(self, bound: dict[str, object]) -> None:
        super().__init__()
        self._bound = bound

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {**getattr(record, _FIELDS, {}), **self._bound}
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        text = " ".join(f"{name}={_visible(_plain(value))}" for name, value in fields.items())
        # The trace is indented, because a line that begins with a time is an event.
        trace = "\n".join(f"    {_visible(line)}" for line in trace.rstrip().split("\n"))
        time, event = _timestamp(record).replace("T", " "), _visible(record.getMessage())
        line = f"{time} {record.levelname:<7} {event}  {text}".rstrip()
        return f"{line}\n{trace}" if trace.strip() else line


def _visible(text: str) -> str:
    """Return the text on one line. Line breaks, and control characters that a terminal would obey, become escapes."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> str:
    return bytes(value).hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)

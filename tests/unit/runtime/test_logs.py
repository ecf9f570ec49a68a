"""A log event is one JSON object or one line of text, whatever its fields contain."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from odradek_runtime.logs import configure_logs, event_log


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    out = io.StringIO()
    configure_logs(stream=out, bound={"broker_id": 3})
    yield out
    root.handlers[:], level = before[0], before[1]
    root.setLevel(level)


def test_an_event_has_its_fields_and_those_of_the_process(stream: io.StringIO) -> None:
    event_log("a.b").bind(topic="t").info("Something happened", offset=7, blob=b"\x01\xff")
    event = json.loads(stream.getvalue())
    assert event["event"] == "Something happened"
    assert (event["level"], event["source"]) == ("info", "a.b")
    assert (event["broker_id"], event["topic"], event["offset"]) == (3, "t", 7)
    assert event["blob"] == "01ff"


def test_debug_events_are_left_out_by_default(stream: io.StringIO) -> None:
    event_log("a").debug("Noise")
    assert stream.getvalue() == ""


def test_an_error_brings_its_traceback(stream: io.StringIO) -> None:
    try:
        raise ValueError("so wrong")
    except ValueError as error:
        event_log("a").error("It broke", exc=error)
    event = json.loads(stream.getvalue())
    assert "so wrong" in event["exception"]


def test_what_libraries_log_has_the_same_shape(stream: io.StringIO) -> None:
    logging.getLogger("library").warning("odd: %s", 1)
    assert json.loads(stream.getvalue())["event"] == "odd: 1"


def test_requests_that_a_gateway_passes_on_are_no_events(stream: io.StringIO) -> None:
    logging.getLogger("httpx").info("HTTP Request: GET http://host/consumers/g/instances/i/records")
    assert stream.getvalue() == ""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_of_plain_text_whatever_a_client_is_called(
    stream: io.StringIO,
) -> None:
    terminal = _Terminal()
    configure_logs(stream=terminal)
    event_log("a").warning("Login failed", user="eve\n12:00:00 INFO All is well\x1b[2J", host="ü")
    lines = terminal.getvalue().splitlines()
    assert len(lines) == 1
    assert "\x1b" not in lines[0]
    assert "eve\\n12:00:00" in lines[0]
    assert "host=ü" in lines[0]
    assert stream.getvalue() == ""


def test_the_setting_chooses_the_format_whatever_the_stream_is(stream: io.StringIO) -> None:
    text, terminal = io.StringIO(), _Terminal()
    configure_logs(stream=text, log_format="text", bound={"broker_id": 3})
    event_log("a").info("Serving", port=9092)
    assert text.getvalue()[10:].endswith("Z INFO    Serving  port=9092 broker_id=3\n")
    configure_logs(stream=terminal, log_format="json", bound={"broker_id": 3})
    event_log("a").info("Serving", port=9092)
    assert json.loads(terminal.getvalue())["port"] == 9092


def test_the_lines_of_a_traceback_in_text_cannot_be_taken_for_events(stream: io.StringIO) -> None:
    text = io.StringIO()
    configure_logs(stream=text, log_format="text")
    try:
        raise ValueError("\n2026-01-01 12:00:00.000Z INFO    All is well")
    except ValueError as error:
        event_log("a").error("It broke", exc=error)
    first, *trace = text.getvalue().splitlines()
    assert first.endswith("ERROR   It broke")
    assert len(trace) > 2
    assert all(line.startswith("    ") for line in trace)

"""The progress of the demo: nothing is silent for long, whether a terminal shows it or a file keeps it."""

from __future__ import annotations

import io
import queue
from typing import Any

import pytest
from rich.console import Console

from odradek.cli import processes
from odradek_demo.report import SILENCE_S_MAX, Bars


def test_a_stage_that_takes_long_is_told_again_where_there_is_no_terminal() -> None:
    now_s, out = [100.0], io.StringIO()
    bars = Bars(Console(file=out, width=100), clock_s=lambda: now_s[0])
    bars.break_silence()
    assert out.getvalue() == "", "nothing has begun"
    bars.update("produce", 0, 40_000)
    now_s[0] += SILENCE_S_MAX / 2
    bars.update("produce", 12_000, 40_000)
    bars.break_silence()
    assert out.getvalue() == "produce\n", "a line was printed a moment ago"
    now_s[0] += SILENCE_S_MAX / 2
    bars.break_silence()
    bars.break_silence()
    assert out.getvalue() == "produce\nproduce: 12,000 of 40,000 after 2 s\n"


def test_the_latest_stage_is_told_and_the_thread_ends_with_the_block() -> None:
    out = io.StringIO()
    with Bars(Console(file=out, width=100)) as bars:
        bars.say("starting")
        bars.update("consume", 0, 10)
        bars.update("compare replicas", 1, 6)
    assert out.getvalue() == "starting\nconsume\ncompare replicas\n"
    bars.break_silence()
    assert out.getvalue().count("compare replicas") == 1


def test_a_terminal_shows_bars_and_no_lines() -> None:
    out = io.StringIO()
    with Bars(Console(file=out, width=100, force_terminal=True)) as bars:
        bars.update("produce", 3, 4)
    assert "3/4" in out.getvalue()
    assert "3 of 4" not in out.getvalue()


def test_the_processes_that_the_demo_waits_for_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Starting:
        def starting(self) -> list[str]:
            return ["controller-1", "broker-2"]

    monkeypatch.setattr(processes, "PATIENCE_S", 0.01)
    cluster: Any = Starting()
    lines: queue.Queue[str] = queue.Queue()
    with processes.explained(cluster, tell=lines.put):
        assert lines.get(timeout=30) == "waiting for controller-1, broker-2"

"""A pipeline for flights fails with a message if it has read only other records."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from odradek_pipelines.pipeline import FLIGHTS, _follow


@dataclass
class Progress:
    """The progress of one batch, as Spark reports it."""

    batchId: int
    observedMetrics: dict[str, Any]
    numInputRows: int = 3
    processedRowsPerSecond: float = 0.0
    durationMs: dict[str, int] = field(default_factory=dict)
    eventTime: dict[str, str] = field(default_factory=dict)
    stateOperators: tuple[Any, ...] = ()
    sources: tuple[Any, ...] = ()


class Query:
    """A query that runs until it is stopped, or, if `is_done`, has ended when the runner first looks."""

    name = "parquet-archive"
    id = runId = "1"
    lastProgress = None

    def __init__(self, batches: Sequence[Progress], *, is_done: bool) -> None:
        self.isActive = not is_done
        self.recentProgress = list(batches)

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> None:
        return None


def batches(*parsed: int, read: int = 2_000) -> list[Progress]:
    return [
        Progress(number, {FLIGHTS: {"records": read, "parsed": count}})
        for number, count in enumerate(parsed)
    ]


@pytest.mark.parametrize("is_done", [False, True])
def test_a_pipeline_that_read_no_flight_fails(
    is_done: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    query: Any = Query(batches(0), is_done=is_done)
    assert _follow([query], threading.Event()) == 1
    told = capsys.readouterr()
    assert told.err.startswith(
        "parquet-archive failed: none of the 2,000 records that were read is a flight. The records must be"
    )
    assert json.loads(told.out.splitlines()[-1]) == {"event": "failed"}
    assert not query.isActive


@pytest.mark.parametrize(
    "seen",
    [batches(5, 0), batches(0, read=0), [Progress(0, {})]],
    ids=["later batch", "no records", "not observed"],
)
def test_other_pipelines_are_done(seen: list[Progress], capsys: pytest.CaptureFixture[str]) -> None:
    query: Any = Query(seen, is_done=True)
    assert _follow([query], threading.Event()) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert json.loads(told.out.splitlines()[-1]) == {"event": "done"}

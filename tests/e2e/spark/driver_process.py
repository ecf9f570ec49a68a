"""Runs a Spark driver in a separate process, so that it can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PIPELINES = "odradek_pipelines"
_LOOK_S = 0.1


class DriverProcess:
    """A process `python -m MODULE ...` that runs pipelines, and what it prints.

    It is a context manager that ends the process on exit.
    """

    def __init__(
        self,
        log: Path,
        *arguments: str,
        module: str = PIPELINES,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._is_over = False
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # so that the driver's JVM and workers can be killed with it
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | dict(environment or {}),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> DriverProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self.kill()
        self._reader.join(30)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def wait_for_batches(self, count: int, *, timeout_s: float = 240) -> None:
        """Wait until the driver has reported this many batches with rows."""
        self.wait_until(lambda: self.batches() >= count, timeout_s=timeout_s)

    def wait_until(self, condition: Callable[[], bool], *, timeout_s: float = 240) -> None:
        """Wait until `condition` holds, checking it often and at each line; fail if the driver ends first."""
        deadline_s = time.monotonic() + timeout_s
        holds = False
        while not holds and not self._is_over and time.monotonic() < deadline_s:
            with self._news:
                self._news.wait_for(lambda: self._is_over, _LOOK_S)
            holds = condition()
        if not holds and not condition():
            status = self._process.poll()
            how = "it runs" if status is None else f"it ended with status {status}"
            raise AssertionError(
                f"not so within {timeout_s} s, {how}; its last lines: {self.lines[-10:]};"
                f" its log ends: {self.log()}"
            )

    def batches(self) -> int:
        """Return the number of batches with rows so far."""
        return sum(1 for event in self._progress() if event["rows"])

    def milestones(self) -> list[str]:
        """Return the events that the driver printed, except those of progress."""
        return [event["event"] for event in self.events if event["event"] != "progress"]

    def rows(self) -> int:
        """Return the number of rows read so far."""
        return sum(event["rows"] for event in self._progress())

    def dropped(self) -> int:
        """Return the number of rows that were too late for the watermark."""
        return sum(event["dropped_by_watermark"] for event in self._progress())

    def kill(self) -> None:
        """Kill the driver, its JVM and its workers at once (kill -9)."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        self._reader.join(30)

    def terminate(self) -> None:
        """Send SIGTERM to the driver only."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 300) -> int:
        """Wait for the end of the driver, and return its exit status."""
        status = self._process.wait(timeout_s)
        self._reader.join(30)
        return status

    def log(self) -> str:
        """Return the end of its standard error output."""
        return Path(self._log.name).read_text(errors="replace")[-3000:]

    def _progress(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == "progress"]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                if line.startswith("{"):
                    self.events.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()

"""One process of an embedded cluster: started, awaited, killed, started again.

A child prints one line of JSON on its standard output when it serves, `{"event": "ready", ...}`;
all else it says goes to its log file. Its standard input is a pipe that this process holds: when
this process dies, however it dies, the child reads end of file and stops.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LOG_TAIL_LINES = 15


class ChildProcessFailed(RuntimeError):
    """A child ended before it served, or did not serve in time; the message has the end of its log."""


class ChildProcess:
    """A `python -m MODULE` and its log file; may be started again after it ended."""

    def __init__(self, *, name: str, module: str, arguments: Sequence[str], log_path: Path) -> None:
        self.name = name
        self.module = module
        self.arguments = list(arguments)
        self.log_path = log_path
        self.environment: dict[str, str] = {}  # variables that the next start has besides ours
        self.ready_line: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start_bytes = 0
        self._ready = threading.Event()

    @property
    def command(self) -> list[str]:
        """What starts it by hand: then it does not end with this process."""
        return [sys.executable, "-m", self.module, *self.arguments]

    @property
    def pid(self) -> int:
        """Of the running process, or of the last one."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def resident_bytes(self) -> int:
        """Memory of the running process (RSS); 0 where /proc does not tell."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0
        found = next((line for line in status.splitlines() if line.startswith("VmRSS:")), "")
        return int(found.split()[1]) * 1024 if found else 0

    def start(self) -> None:
        """Start it; does not wait until it serves."""
        assert not self.is_running, f"{self.name} runs already, as pid {self.pid}"
        self._ready = threading.Event()
        with self.log_path.open("ab") as log:
            self._log_start_bytes = log.tell()
            self._process = subprocess.Popen(
                [*self.command, "--exit-with-parent"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | self.environment,
                start_new_session=True,  # Ctrl-C is ours to hand on, in order
            )
        threading.Thread(
            target=self._read_output, args=(self._process, self._ready), daemon=True
        ).start()

    def _read_output(self, process: subprocess.Popen[bytes], ready: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout, self.log_path.open("ab") as log:
            for line in process.stdout:
                if not ready.is_set() and line.startswith(b"{"):
                    try:
                        told = json.loads(line)
                    except ValueError:
                        told = {}
                    if told.get("event") == "ready":
                        self.ready_line = told
                        ready.set()
                        continue
                log.write(line)
                log.flush()

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """What it said when it began to serve.

        Raises:
            ChildProcessFailed: it ended first, or did not serve within `timeout_s`.
        """
        waited_s, step_s = 0.0, 0.02
        while not self._ready.wait(step_s):
            waited_s += step_s
            if not self.is_running:
                raise ChildProcessFailed(
                    f"{self.name} {self.describe_exit()} before it served; "
                    f"the end of {self.log_path}:\n{self.log_tail()}"
                )
            if waited_s >= timeout_s:
                raise ChildProcessFailed(
                    f"{self.name} (pid {self.pid}) does not serve after {timeout_s:.0f} s; "
                    f"the end of {self.log_path}:\n{self.log_tail()}"
                )
        return self.ready_line

    def log_tail(self) -> str:
        """The last lines of its log, as far as they are of the last process."""
        if not self.log_path.exists():
            return ""
        told = self.log_path.read_bytes()[self._log_start_bytes :]
        lines = told.decode(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def exit_status(self) -> int | None:
        """Of the last process; None while it runs."""
        return None if self._process is None else self._process.poll()

    def describe_exit(self) -> str:
        """How the last process ended, in words."""
        status = self.exit_status()
        if status is None or status >= 0:
            return f"ended with status {status}"
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self.is_running and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait(10)

    def terminate(self, timeout_s: float) -> bool:
        """SIGTERM and wait; True if it went by itself, False if it had to be killed."""
        self.signal(signal.SIGTERM)
        if self.wait(timeout_s):
            return True
        self.kill()
        return False

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within `timeout_s`."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        if self._process.stdin is not None:
            self._process.stdin.close()
        return True

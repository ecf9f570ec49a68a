"""The supervisor of `odradek broker --processes N`: the brokers of one host, as child processes of one command.

A process runs one event loop on one core, so a host with several cores runs several brokers. The brokers' settings are
derived from one configuration by `python -m odradek_broker --processes N --plan`; this module starts them and keeps
them running:

- A process that ends is started again after a pause of 0.5 s, 1 s, 2 s, and so on, up to 30 s. After it has run for a
  minute, the pauses begin at 0.5 s again.
- A rolling restart (SIGHUP) restarts the processes one at a time. The next one is stopped only when all processes are
  ready. A broker is ready when its replicas are in sync (/readyz).
- A stop ends the processes one after another, the last one first. Each process moves its leaderships to brokers
  that are still running.
- When the supervisor is killed, every child reads the end of its standard input, moves its leaderships and stops. If a
  new supervisor starts at that time, the data directories are still locked, so its processes end and are started again
  until the directories are free.

The children write their logs to the supervisor's standard error. When all processes are ready for the first time, the
supervisor prints one line of JSON on standard output. If it is given a port, it serves /readyz and /livez for all
processes together.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from odradek.embedded import ChildProcess, ChildProcessFailed

PROGRAM: Final = "odradek_broker"
BACKOFF_S_MIN: Final = 0.5
BACKOFF_S_MAX: Final = 30.0
CALM_S: Final = 60.0
STOP_S_MAX: Final = 90.0  # A broker that stops may need 60 s to sync its logs.
EXIT_USAGE: Final = 2
_TURN_S: Final = 0.1
_PROBE_INTERVAL_S: Final = 0.5
_PROBE_TIMEOUT_S: Final = 2.0


def plan_host(processes: int, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Return the settings of each process of this host, as the broker's program computes them. `arguments` are the
    command line arguments for one broker.

    Raises:
        ChildProcessFailed: the program refused the settings; the error has its message.
    """
    command = [sys.executable, "-m", PROGRAM, *arguments, "--processes", str(processes), "--plan"]
    planned = subprocess.run(command, capture_output=True, text=True, check=False)
    if planned.returncode:
        raise ChildProcessFailed(planned.stderr.strip())
    plan: list[dict[str, Any]] = json.loads(planned.stdout)
    return plan


class SupervisedBroker:
    """One broker of the host, and the time of its next start."""

    def __init__(self, plan: dict[str, Any], arguments: Sequence[str]) -> None:
        """`plan` is one element of the result of `plan_host`, and `arguments` are the arguments of that call."""
        self.broker_id: int = plan["id"]
        derived = [f"{name}={value}" for name, value in plan["settings"].items()]
        self.child = ChildProcess(
            name=f"broker-{self.broker_id}",
            module=PROGRAM,
            arguments=[*arguments, *(word for each in derived for word in ("--set", each))],
            log_path=None,
        )
        self.start_at_s: float | None = 0.0  # None: the broker is running.
        self._failures = 0
        self._started_at_s = 0.0
        self._metrics_host: str = plan["metrics_host"]
        self._probed_at_s = 0.0
        self._was_ready = False

    def start(self, now_s: float) -> None:
        """Start the process, without waiting until it is ready."""
        self.start_at_s = None
        self._started_at_s, self._was_ready = now_s, False
        self.child.start()

    def plan_restart(self, now_s: float) -> float:
        """Schedule the next start after an unexpected end, and return the pause before it in seconds."""
        if now_s - self._started_at_s >= CALM_S:
            self._failures = 0
        pause_s: float = min(BACKOFF_S_MIN * 2.0**self._failures, BACKOFF_S_MAX)
        # 16 failures suffice for the longest pause, and 2**failures must not grow without limit.
        self._failures = min(self._failures + 1, 16)
        self.start_at_s = now_s + pause_s
        return pause_s

    def is_ready(self, now_s: float) -> bool:
        """Return whether the broker's /readyz reports ready. The result of a probe is reused for
        `_PROBE_INTERVAL_S`.
        """
        if self.start_at_s is not None or not self.child.is_ready:
            return False
        if now_s - self._probed_at_s >= _PROBE_INTERVAL_S:
            self._was_ready = self._probe()
            self._probed_at_s = now_s
        return self._was_ready

    def _probe(self) -> bool:
        port = self.child.ready_line.get("ports", {}).get("METRICS")
        host = self._metrics_host or "127.0.0.1"
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=_PROBE_TIMEOUT_S) as response:
                return bool(response.status == HTTPStatus.OK)
        except OSError:  # The errors of urllib are OSErrors.
            return False


class HostSupervisor:
    """Runs the brokers of a host until `stop` is set. Whenever `roll` is set, it restarts the brokers one after
    another.
    """

    def __init__(self, brokers: Sequence[SupervisedBroker], *, log_format: str = "json") -> None:
        """`log_format` is the setting log.format of the brokers. The supervisor writes its own events in this format,
        too.
        """
        self.stop = threading.Event()
        self.roll = threading.Event()
        self._brokers = list(brokers)
        # The brokers that the rolling restart has not restarted yet.
        self._waiting: deque[SupervisedBroker] = deque()
        self._rolled: SupervisedBroker | None = None
        self._kill_at_s: float | None = None
        self._is_announced = False
        self._unready_ids = tuple(broker.broker_id for broker in brokers)
        self._log_format = log_format

    @property
    def unready_ids(self) -> tuple[int, ...]:
        """The ids of the brokers that were not ready when `run` last checked them."""
        return self._unready_ids

    def run(self) -> int:
        """Run until `stop` is set or a broker refuses its settings, and return the exit status."""
        try:
            while not self.stop.wait(_TURN_S):
                if not self._turn(time.monotonic()):
                    return EXIT_USAGE
        finally:
            self._stop_all()
        return 0

    def _turn(self, now_s: float) -> bool:
        """Start the brokers that are due, probe all brokers, and continue a rolling restart.

        Return False if a broker refuses its settings, because another start would not help.
        """
        for broker in self._brokers:
            if broker.start_at_s is not None:
                if now_s >= broker.start_at_s:
                    self._start(broker, now_s)
            elif not broker.child.is_running:
                if broker is self._rolled and self._kill_at_s is not None:
                    self._kill_at_s = None
                    self._start(broker, now_s)
                elif broker.child.exit_status() == EXIT_USAGE and not self._is_announced:
                    return False
                else:
                    self._log(
                        "error",
                        "Broker process ended",
                        broker_id=broker.broker_id,
                        how=broker.child.describe_exit(),
                        starts_again_in_s=broker.plan_restart(now_s),
                    )
        self._unready_ids = tuple(b.broker_id for b in self._brokers if not b.is_ready(now_s))
        if not self._unready_ids and not self._is_announced:
            self._announce()
        self._roll_on(now_s)
        return True

    def _start(self, broker: SupervisedBroker, now_s: float) -> None:
        """Start a broker. If the system cannot create another process or file descriptor, schedule another attempt."""
        try:
            broker.start(now_s)
        except OSError as error:
            self._log(
                "error",
                "Failed to start broker process",
                broker_id=broker.broker_id,
                reason=str(error),
                starts_again_in_s=broker.plan_restart(now_s),
            )

    def _announce(self) -> None:
        self._is_announced = True
        brokers = [
            {"id": b.broker_id, "pid": b.child.pid, "ports": b.child.ready_line.get("ports", {})}
            for b in self._brokers
        ]
        print(json.dumps({"event": "ready", "brokers": brokers}), flush=True)

    def _roll_on(self, now_s: float) -> None:
        """Continue a rolling restart: if all brokers are ready, stop the next one. Kill a broker that takes too long to
        stop.
        """
        if self.roll.is_set():
            self.roll.clear()
            self._waiting = deque(self._brokers)
            self._log("info", "Beginning rolling restart", processes=len(self._brokers))
        rolled = self._rolled
        if rolled is not None and self._kill_at_s is not None:
            if now_s >= self._kill_at_s:
                self._log("error", "Broker did not stop in time", broker_id=rolled.broker_id)
                rolled.child.kill()
            return
        if self._unready_ids:
            return
        if rolled is not None:
            self._rolled = None
            self._log("info", "Restarted broker", broker_id=rolled.broker_id, pid=rolled.child.pid)
            if not self._waiting:
                self._log("info", "Completed rolling restart")
        if self._waiting:
            self._rolled = broker = self._waiting.popleft()
            self._kill_at_s = now_s + STOP_S_MAX
            self._log("info", "Restarting broker", broker_id=broker.broker_id)
            broker.child.signal(signal.SIGTERM)

    def _stop_all(self) -> None:
        for broker in reversed(self._brokers):
            if broker.child.is_running and not broker.child.terminate(STOP_S_MAX):
                self._log("error", "Broker did not stop in time", broker_id=broker.broker_id)

    def kill_all(self) -> None:
        """Kill all processes, for a user who does not want to wait for an orderly stop."""
        for broker in self._brokers:
            broker.child.signal(signal.SIGKILL)

    def _log(self, level: str, event: str, **fields: object) -> None:
        """Write an event to standard error, in the format of the brokers' own events."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        is_text = self._log_format == "text" or (self._log_format == "auto" and sys.stderr.isatty())
        if is_text:
            shown = " ".join(f"{name}={value}" for name, value in fields.items())
            line = f"{now.replace('T', ' ')} {level.upper()} {event} {shown}".rstrip()
        else:
            line = json.dumps({"time": now, "level": level, "event": event, **fields})
        # The supervisor must keep running if the disk of the log is full, or if the program that reads the log has
        # exited.
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def serve_probes(supervisor: HostSupervisor, host: str, port: int) -> int:
    """Serve /livez and /readyz of the host in a thread, and return the port.

    Raises:
        OSError: the port cannot be used.
    """

    class Probes(http.server.BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            unready_ids = supervisor.unready_ids
            if path not in ("/livez", "/readyz"):
                self._respond(HTTPStatus.NOT_FOUND, "try /livez or /readyz")
            elif path == "/readyz" and unready_ids:
                names = ", ".join(map(str, unready_ids))
                self._respond(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: brokers {names}")
            else:
                self._respond(HTTPStatus.OK, "ok")

        def _respond(self, status: HTTPStatus, text: str) -> None:
            body = f"{text}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing to the log, because probes arrive every few seconds."""

    # The server handles one request at a time, for at most 5 s. This is enough for health checks, and limits the cost
    # of many concurrent requests.
    server = http.server.HTTPServer((host, port), Probes)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return int(server.server_address[1])

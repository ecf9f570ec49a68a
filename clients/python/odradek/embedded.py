"""Runs the controllers, brokers and gateways of one cluster as child processes on loopback.

Ports are chosen before any process starts, and stay the same across restarts, so that a process that was killed returns
at the address that other processes and clients know (loopback_ports.py).

A child process prints one line of JSON on standard output when it is ready, `{"event": "ready", ...}`; all further
output goes to its log file. Its standard input is a pipe from this process. When this process dies, for any reason, the
child reads the end of its standard input and stops.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

from odradek.extras import what_is_missing
from odradek.loopback_ports import free_ports, hold_if_all_free
from odradek_protocol.process_settings import SETTINGS_OF, Process

_LOG_TAIL_LINES = 15
KILL_S_MAX = 2.0
"""How long a process may take to end after SIGKILL."""


class ChildProcessFailed(RuntimeError):
    """A child process ended before it was ready, or was not ready in time. The message has the end of its log."""


class ChildProcess:
    """A child process that runs `python -m MODULE`, with its log file. After it has ended, it can be started again."""

    def __init__(
        self, *, name: str, module: str, arguments: Sequence[str], log_path: Path | None
    ) -> None:
        """Prepare the process. Without `log_path`, its log goes to this program's standard error."""
        self.name = name
        self.module = module
        self.arguments = list(arguments)
        self.log_path = log_path
        # Additional environment variables for the next start.
        self.environment: dict[str, str] = {}
        self.ready_line: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start_bytes = 0
        self._ready = threading.Event()

    @property
    def command(self) -> list[str]:
        """The command line to start the same process by hand, in which case it does not end with this program."""
        return [sys.executable, "-m", self.module, *self.arguments]

    @property
    def pid(self) -> int:
        """The process id of the running process, or of the last one."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether the process is running and has reported that it is ready."""
        return self._ready.is_set() and self.is_running

    def user_pids(self) -> list[int]:
        """Return the ids of the processes that a user started with `command`. The list is empty while the child process
        of this program runs, because a second process cannot use the same data directory and ports.
        """
        if self._process is None or self.is_running:
            return []
        return [pid for pid in _pids_of(self.command) if pid != self.pid]

    def stop_user_process(self, pid: int, deadline_s: float) -> bool:
        """Wait until one of `user_pids`, which was asked to end, has ended. Kill it at `deadline_s`, a time of
        `time.monotonic`. Return False if it still runs KILL_S_MAX later, for example because another user owns it.
        """
        is_killed = False
        while pid in self.user_pids():
            if time.monotonic() >= deadline_s:
                if is_killed:
                    return False
                _signal(pid, signal.SIGKILL)
                is_killed, deadline_s = True, deadline_s + KILL_S_MAX
            time.sleep(0.05)
        return True

    @property
    def resident_bytes(self) -> int:
        """The resident memory of the running process; 0 on systems without /proc."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0
        line_of_rss = next((line for line in status.splitlines() if line.startswith("VmRSS:")), "")
        return int(line_of_rss.split()[1]) * 1024 if line_of_rss else 0

    def start(self) -> None:
        """Start the process, without waiting until it is ready.

        Raises:
            OSError: the system cannot create another process, thread or file descriptor.
        """
        assert not self.is_running, f"{self.name} is already running, as pid {self.pid}"
        self._ready = threading.Event()
        with self._open_log() as log:
            self._log_start_bytes = log.tell() if self.log_path is not None else 0
            self._process = subprocess.Popen(
                [*self.command, "--exit-with-parent"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | self.environment,
                start_new_session=True,  # So Ctrl-C reaches only this process, which stops its children.
            )
        reading = threading.Thread(
            target=self._read_output, args=(self._process, self._ready), daemon=True
        )
        try:
            reading.start()
        except RuntimeError as error:
            self.kill()
            raise OSError(errno.EAGAIN, str(error)) from None

    def _open_log(self) -> BinaryIO:
        if self.log_path is None:
            return os.fdopen(os.dup(sys.stderr.fileno()), "wb")
        return self.log_path.open("ab")

    def _read_output(self, process: subprocess.Popen[bytes], ready: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout, self._open_log() as log:
            for line in process.stdout:
                if not ready.is_set() and line.startswith(b"{"):
                    try:
                        message = json.loads(line)
                    except ValueError:
                        message = {}
                    if message.get("event") == "ready":
                        self.ready_line = message
                        ready.set()
                        continue
                log.write(line)
                log.flush()

    def wait_ready(self, timeout_s: float, stop: threading.Event | None = None) -> dict[str, Any]:
        """Wait until the process is ready, and return the JSON that it printed.

        Raises:
            ChildProcessFailed: the process ended first or was not ready within `timeout_s`, or `stop` was set.
        """
        waited_s, step_s = 0.0, 0.02
        while not self._ready.wait(step_s):
            waited_s += step_s
            if stop is not None and stop.is_set():
                raise ChildProcessFailed(f"stopped before {self.name} was ready")
            if not self.is_running:
                raise ChildProcessFailed(
                    f"{self.name} {self.describe_exit()} before it was ready; "
                    f"the end of {self.log_path}:\n{self.log_tail()}"
                )
            if waited_s >= timeout_s:
                raise ChildProcessFailed(
                    f"{self.name} (pid {self.pid}) is not ready after {timeout_s:.0f} s; "
                    f"the end of {self.log_path}:\n{self.log_tail()}"
                )
        return self.ready_line

    def log_tail(self) -> str:
        """Return the last lines of the log of the running process, or of the last one; "" without a log file."""
        if self.log_path is None or not self.log_path.exists():
            return ""
        output = self.log_path.read_bytes()[self._log_start_bytes :]
        lines = output.decode(errors="replace").splitlines()
        if not lines and shutil.disk_usage(self.log_path.parent).free < 1 << 16:
            return f"(empty, because the disk of {self.log_path.parent} is full)"
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def exit_status(self) -> int | None:
        """Return the exit status of the last process; None while it is running."""
        return None if self._process is None else self._process.poll()

    def describe_exit(self) -> str:
        """Return how the last process ended, as words that follow its name."""
        status = self.exit_status()
        if status is None or status >= 0:
            return f"ended with status {status}"
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"

    def signal(self, number: int) -> None:
        """Send a signal to the process if it is running."""
        if self.is_running and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self.signal(signal.SIGKILL)
        self.wait(10)

    def terminate(self, timeout_s: float) -> bool:
        """Send SIGTERM and wait up to `timeout_s`. If the process is still running then, kill it and return False."""
        self.signal(signal.SIGTERM)
        if self.wait(timeout_s):
            return True
        self.kill()
        return False

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process ends. Return False if it has not ended after `timeout_s`."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        if self._process.stdin is not None:
            self._process.stdin.close()
        return True


__all__ = ["ChildProcess", "ChildProcessFailed", "ClusterPlan", "EmbeddedCluster", "free_ports"]

READY_TIMEOUT_S = 60.0
UNLOCK_TIMEOUT_S = 10.0
_IN_USE: Final = re.compile("is locked by another process|is in use by the process")
STOP_TIMEOUT_S = 10.0
_EQUAL_IN_ALL = frozenset({"broker.session.timeout.ms", "log.format", "log.level"})
"""Settings that are passed to every process that has them. Other settings of brokers are passed only to brokers."""
_PORTS_A_CONTROLLER = 3  # Raft, controller service, metrics.
_PORTS_A_BROKER = 4  # Kafka, gRPC, replication, metrics.
_PORTS_HOLDER = 9089


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The number of processes of a cluster, and their settings."""

    brokers: int = 3
    controllers: int = 3
    gateways: int = 0
    data_dir: Path | None = None  # None: a temporary directory, deleted at the end.
    base_port: int = 0  # 0: any free ports.
    prefers_usual_ports: bool = False
    """Whether to use the default ports (9090, 9092, 8082, ...) if all of them are free."""
    # NAME=VALUE. `_processes_of` determines the processes that get each setting.
    settings: tuple[str, ...] = ()


class EmbeddedCluster:
    """Starts and stops the processes of a cluster, and gives access to each of them."""

    def __init__(self, plan: ClusterPlan) -> None:
        if missing := what_is_missing("a cluster", "server"):
            raise ChildProcessFailed(missing)
        self.plan = plan
        usual = _usual_ports(plan)
        self.has_usual_ports = plan.prefers_usual_ports and hold_if_all_free(usual, _PORTS_HOLDER)
        ports = iter(
            usual
            if self.has_usual_ports
            else free_ports(
                plan.controllers * _PORTS_A_CONTROLLER
                + plan.brokers * _PORTS_A_BROKER
                + plan.gateways,
                base_port=plan.base_port,
            )
        )
        self.on_user_process_stopped: Callable[[str, int, bool], object] = lambda *_: None
        """Called by `stop` for each process that a user had started: its name, its pid, and whether it has ended."""
        self.is_temporary = plan.data_dir is None
        self.data_dir = (
            Path(tempfile.mkdtemp(prefix="odradek-")) if plan.data_dir is None else plan.data_dir
        )
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.cluster_id = self._stored_cluster_id()
        self._controller_ports = {i: _take(ports, 3) for i in range(1, plan.controllers + 1)}
        self._broker_ports = {i: _take(ports, 4) for i in range(1, plan.brokers + 1)}
        self._gateway_ports = {i: next(ports) for i in range(1, plan.gateways + 1)}
        self.controllers = {i: self._controller(i) for i in self._controller_ports}
        self.brokers = {i: self._broker(i) for i in self._broker_ports}
        self.gateways = {i: self._gateway(i) for i in self._gateway_ports}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def children(self) -> list[ChildProcess]:
        """Return all processes, controllers first."""
        return [*self.controllers.values(), *self.brokers.values(), *self.gateways.values()]

    def locked_directories(self, of: Sequence[ChildProcess] = ()) -> list[Path]:
        """Return those data directories of the processes `of` (all if `of` is empty) that another process uses."""
        locks = {c: self.data_dir / c.name / "lock" for c in self.controllers.values()}
        locks |= {b: self.data_dir / b.name / ".lock" for b in self.brokers.values()}
        return [locks[child].parent for child in of or locks if _is_locked(locks[child])]

    def wait_unlocked(
        self, stop: threading.Event | None = None, of: Sequence[ChildProcess] = ()
    ) -> None:
        """Wait until `locked_directories` is empty or `stop` is set, for at most UNLOCK_TIMEOUT_S."""
        deadline = time.monotonic() + UNLOCK_TIMEOUT_S
        while self.locked_directories(of) and time.monotonic() < deadline:
            if (stop or threading.Event()).wait(0.1):
                return

    def start(self) -> None:
        """Start all processes, without waiting until they are ready."""
        self.start_brokers()
        self.start_gateways()

    def start_brokers(self) -> None:
        """Start the controllers and brokers, without waiting until they are ready."""
        for child in (*self.controllers.values(), *self.brokers.values()):
            child.start()

    def start_gateways(self) -> None:
        """Start the gateways, without waiting until they are ready."""
        for child in self.gateways.values():
            child.start()

    def wait_ready(
        self, timeout_s: float = READY_TIMEOUT_S, stop: threading.Event | None = None
    ) -> None:
        """Wait until all processes are ready.

        Raises:
            ChildProcessFailed: a process ended or was not ready in time, or `stop` was set.
        """
        self._wait_ready(self.children(), timeout_s, stop)

    def wait_brokers_ready(
        self, timeout_s: float = READY_TIMEOUT_S, stop: threading.Event | None = None
    ) -> None:
        """Wait until the controllers and brokers are ready. Raises the errors of `wait_ready`."""
        self._wait_ready([*self.controllers.values(), *self.brokers.values()], timeout_s, stop)

    def _wait_ready(
        self, children: list[ChildProcess], timeout_s: float, stop: threading.Event | None
    ) -> None:
        deadline = time.monotonic() + timeout_s
        for child in children:
            try:
                child.wait_ready(max(0.1, deadline - time.monotonic()), stop)
            except ChildProcessFailed:
                if child.is_running or not _IN_USE.search(child.log_tail()):
                    raise
                # The directory is locked by a process that was still starting when its cluster was killed. That process
                # will end soon.
                self.wait_unlocked(stop, of=(child,))
                child.start()
                child.wait_ready(max(0.1, deadline - time.monotonic()), stop)

    def starting(self) -> list[str]:
        """Return the names of the processes that are not ready yet."""
        return [child.name for child in self.children() if not child.is_ready]

    def stop(self) -> None:
        """Stop the gateways, then the brokers, then the controllers, and delete a temporary data directory.

        Processes that a user started with the command of a child that had ended are stopped, too.
        """
        for group in (self.gateways, self.brokers, self.controllers):
            user_processes = {pid: child for child in group.values() for pid in child.user_pids()}
            running = [child for child in group.values() if child.is_running]
            for child in running:
                child.signal(15)
            for pid in user_processes:
                _signal(pid, signal.SIGTERM)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            for child in running:
                if not child.wait(max(0.1, deadline - time.monotonic())):
                    child.kill()
            for pid, child in user_processes.items():
                self.on_user_process_stopped(
                    child.name, pid, child.stop_user_process(pid, deadline)
                )
        if self.is_temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def describe(self) -> dict[str, Any]:
        """Return the addresses and process ids of the cluster, for JSON. `gateway` is None without gateways."""
        return {
            "cluster_id": self.cluster_id,
            "kafka": self.kafka_bootstrap,
            "grpc": self.bootstrap,
            "replication": _addresses(self._broker_ports, 2),
            "controllers": _addresses(self._controller_ports, 1),
            "raft": _addresses(self._controller_ports, 0),
            "gateway": next(
                (f"http://127.0.0.1:{port}" for port in self._gateway_ports.values()), None
            ),
            "gateways": [f"http://127.0.0.1:{port}" for port in self._gateway_ports.values()],
            "metrics": {
                **{
                    f"controller-{i}": f"127.0.0.1:{p[2]}"
                    for i, p in self._controller_ports.items()
                },
                **{f"broker-{i}": f"127.0.0.1:{p[3]}" for i, p in self._broker_ports.items()},
            },
            "data_dir": str(self.data_dir),
            "pids": {child.name: child.pid for child in self.children()},
        }

    @property
    def bootstrap(self) -> str:
        """The gRPC addresses of all brokers, as HOST:PORT,..."""
        return _addresses(self._broker_ports, 1)

    @property
    def kafka_bootstrap(self) -> str:
        """The Kafka addresses of all brokers, as HOST:PORT,..."""
        return _addresses(self._broker_ports, 0)

    def broker_data_dir(self, broker_id: int) -> Path:
        """Return the data directory of a broker."""
        return self.data_dir / f"broker-{broker_id}"

    def _stored_cluster_id(self) -> str:
        path = self.data_dir / "cluster.id"
        stored = path.read_text().strip() if path.exists() else ""
        # The file may be empty, if the first start ended while the file was written.
        if not stored:
            stored = str(uuid.uuid4())
            begun = path.with_suffix(".begun")
            begun.write_text(f"{stored}\n")
            begun.replace(path)
        return stored

    def _controller(self, node_id: int) -> ChildProcess:
        raft, rpc, metrics = self._controller_ports[node_id]
        voters = ",".join(f"{i}@127.0.0.1:{p[0]}" for i, p in self._controller_ports.items())
        endpoints = ",".join(f"{i}@127.0.0.1:{p[1]}" for i, p in self._controller_ports.items())
        return self._child(
            f"controller-{node_id}",
            "odradek_metadata_quorum",
            {
                "node.id": node_id,
                "cluster.id": self.cluster_id,
                "log.dirs": self.data_dir / f"controller-{node_id}",
                "controller.quorum.voters": voters,
                "controller.rpc.endpoints": endpoints,
                "listeners": f"RAFT://127.0.0.1:{raft},CONTROLLER://127.0.0.1:{rpc}",
                "metrics.port": metrics,
                "storage.format.if.empty": "true",
            },
            *self._settings_of(Process.CONTROLLER),
        )

    def _broker(self, broker_id: int) -> ChildProcess:
        kafka, grpc, replication, metrics = self._broker_ports[broker_id]
        endpoints = ",".join(f"{i}@127.0.0.1:{p[1]}" for i, p in self._controller_ports.items())
        arguments = {
            "node.id": broker_id,
            "cluster.id": self.cluster_id,
            "log.dirs": self.broker_data_dir(broker_id),
            "controller.rpc.endpoints": endpoints,
            "listeners": (
                f"KAFKA://127.0.0.1:{kafka},GRPC://127.0.0.1:{grpc},"
                f"REPLICATION://127.0.0.1:{replication}"
            ),
            "metrics.port": metrics,
        }
        return self._child(
            f"broker-{broker_id}", "odradek_broker", arguments, *self._settings_of(Process.BROKER)
        )

    def _settings_of(self, process: Process) -> list[str]:
        return [s for s in self.plan.settings if process in _processes_of(s.partition("=")[0])]

    def _gateway(self, gateway_id: int) -> ChildProcess:
        return self._child(
            f"gateway-{gateway_id}",
            "odradek_gateway",
            {
                "bootstrap": self.bootstrap,
                "listen": f"127.0.0.1:{self._gateway_ports[gateway_id]}",
            },
            *self._settings_of(Process.GATEWAY),
        )

    def _child(self, name: str, module: str, settings: dict[str, Any], *more: str) -> ChildProcess:
        arguments = []
        for setting in (*(f"{key}={value}" for key, value in settings.items()), *more):
            arguments += ["--set", setting]
        log_path = self.data_dir / f"{name}.log"
        return ChildProcess(name=name, module=module, arguments=arguments, log_path=log_path)


def _pids_of(command: Sequence[str], proc: Path = Path("/proc")) -> list[int]:
    """Return the ids of processes that run this command line. The path of the program may differ, and further arguments
    may follow.

    The list is empty on systems that have neither /proc nor the program ps.
    """
    wanted = list(command[1:])
    pids = []
    if (proc / "self" / "cmdline").exists():
        for path in proc.glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # The process has ended.
                words = path.read_bytes().decode(errors="replace").split("\0")
                if words[1 : len(command)] == wanted:
                    pids.append(int(path.parent.name))
        return sorted(pids)
    with contextlib.suppress(OSError):
        listed = subprocess.run(
            ["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=False
        )
        for line in listed.stdout.splitlines():
            pid, _, line_of_command = line.strip().partition(" ")
            if f" {' '.join(wanted)} " in f"{line_of_command} ":
                pids.append(int(pid))
    return pids


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process that is not a child. Do nothing if it has ended or belongs to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _processes_of(name: str) -> list[Process]:
    """Return the processes that a setting is passed to. An unknown setting is passed to brokers, which refuse it."""
    processes = [process for process, names in SETTINGS_OF.items() if name in names]
    if name in _EQUAL_IN_ALL or (processes and Process.BROKER not in processes):
        return processes
    return [Process.BROKER]


def _usual_ports(plan: ClusterPlan) -> list[int]:
    """Return the default ports, in the order in which they are assigned to processes.

    The first broker and the first controller use the default ports of `odradek broker` and `odradek quorum`, and 9097
    and 9096 for their metrics.
    """
    controllers = [9090 + 10 * i + port for i in range(plan.controllers) for port in (5, 4, 6)]
    brokers = [9090 + 10 * i + port for i in range(plan.brokers) for port in (2, 0, 3, 7)]
    return controllers + brokers + [8082 + i for i in range(plan.gateways)]


def _addresses(ports: Mapping[int, tuple[int, ...]], which: int) -> str:
    """Return the addresses of one listener of each process, as HOST:PORT,... `which` is the index of its port."""
    return ",".join(f"127.0.0.1:{of_process[which]}" for of_process in ports.values())


def _take(ports: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(next(ports) for _ in range(count))

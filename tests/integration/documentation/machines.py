"""Machines without a hypervisor: each has an address, a host name, and an /etc, /opt and /var/lib
of its own.

They are network and mount namespaces on one bridge, which need root. On each machine, `odradek` is
in /opt/odradek/bin, and stand-ins for `ssh`, `scp`, `systemctl` and `journalctl` do what the
documentation uses of them. Everything else is real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.deployment.pod_sandbox import BIN, PodNetwork, capabilities

PROGRAMS = Path(__file__).parent / "programs"
PATH_ON_A_MACHINE = f"{PROGRAMS}:/opt/odradek/bin:{BIN}:/usr/sbin:/usr/bin:/sbin:/bin"
RUN_S_MAX = 600
NOBODY = 65_534
_START_S_MAX = 60
# What a machine changes: the rest of the file system is that of the machine below.
_OWN_TREES = ("/etc", "/opt", "/var/lib")


class Machine:
    """One machine, from its start until it is closed."""

    def __init__(self, name: str, address: str, network: PodNetwork, scratch: Path) -> None:
        self.name = name
        self.address = address
        self.folder = scratch / name
        self.folder.mkdir()
        self._network = network
        self._namespace = network.join(address)
        self._scratch = scratch
        self._holder: subprocess.Popen[bytes] | None = None
        self._begun: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        """Set up the machine's file system.

        The names of all machines must be in the file `hosts` before.
        """
        script = self.folder / "setup.sh"
        script.write_text(self._setup())
        self._holder = subprocess.Popen(
            [
                *("nsenter", f"--net=/run/netns/{self._namespace}"),
                *(
                    "unshare",
                    "--mount",
                    "--uts",
                    "--propagation",
                    "private",
                    "sh",
                    "-e",
                    str(script),
                ),
            ],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n", f"{self.name} did not start"
        (self._scratch / "pids" / self.name).write_text(str(self._holder.pid))

    def run(self, script: str, *, status: int | None = 0, timeout_s: float = RUN_S_MAX) -> str:
        """Run a shell script as root in its home directory on the machine; return its standard
        output and standard error.

        Raises:
            AssertionError: its exit status differs from `status`; None allows any.
        """
        with self.begin(script) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                raise AssertionError(
                    f"{script}\nnot done in {timeout_s:.0f} s:\n{output}"
                ) from None
        assert status in (None, process.returncode), f"{script}\n{process.returncode}: {output}"
        return output

    def begin(self, script: str, *, user: str = "root") -> subprocess.Popen[str]:
        """Start a shell script; its standard output and standard error are one pipe.

        It ends with the machine at the latest.
        """
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        as_user = [] if user == "root" else [*as_user, *capabilities(NOBODY)]
        process = subprocess.Popen(
            [*self._inside(), *as_user, "sh", "-ec", f"cd; {script}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._begun.append(process)
        return process

    def log(self, unit: str) -> str:
        """Return what a unit wrote, as `journalctl` shows it."""
        path = self.folder / f"{unit}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill_all(self) -> None:
        """Kill every process of the machine, as a power loss does; its disks stay."""
        done = subprocess.run(
            ["ip", "netns", "pids", self._namespace], capture_output=True, text=True, check=True
        )
        holder = 0 if self._holder is None else self._holder.pid
        for pid in map(int, done.stdout.split()):
            if pid != holder:
                _kill(pid)

    def close(self) -> None:
        """Kill everything that runs on the machine, and remove it."""
        self.kill_all()
        for process in self._begun:
            process.wait(_START_S_MAX)
            if process.stdout is not None:
                process.stdout.close()
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait(_START_S_MAX)
            if self._holder.stdout is not None:
                self._holder.stdout.close()
        self._network.leave(self._namespace)

    def _inside(self) -> list[str]:
        assert self._holder is not None, f"{self.name} was not started"
        return [
            *("nsenter", "--target", str(self._holder.pid), "--net", "--mount", "--uts", "--"),
            *("env", "-i", f"PATH={PATH_ON_A_MACHINE}", f"HOME={self.folder}/root", "LANG=C.UTF-8"),
            *(f"MACHINES={self._scratch}", f"CAPABILITIES={' '.join(capabilities(NOBODY))}"),
        ]

    def _setup(self) -> str:
        own = self.folder
        lines = [
            f"hostname {self.name}",
            f"mkdir {own}/layers",
            f"mount -t tmpfs tmpfs {own}/layers",
        ]
        for number, tree in enumerate(_OWN_TREES):
            layer = f"{own}/layers/{number}"
            lines += [
                f"mkdir -p {layer}/upper {layer}/work",
                f"mount -t overlay overlay -o lowerdir={tree},upperdir={layer}/upper,workdir={layer}/work {tree}",
            ]
        lines += [
            f"mount --bind {self._scratch}/hosts /etc/hosts",
            # Names that are not in the file of hosts do not exist: without this, gRPC waits for an answer about IPv6.
            "rm -f /etc/resolv.conf && echo nameserver 127.0.0.1 > /etc/resolv.conf",
            f"mkdir {own}/root",
            "mkdir -p /opt/odradek/bin",
            f"ln -s {PROGRAMS}/odradek /opt/odradek/bin/odradek",
            "echo ready",
            "exec sleep infinity",
        ]
        return "\n".join(lines) + "\n"


class Machines:
    """Machines that reach each other by name."""

    def __init__(self, scratch: Path, names: Sequence[str]) -> None:
        scratch.mkdir(exist_ok=True)
        scratch.chmod(0o755)
        for parent in scratch.parents:  # pytest closes its directories to other users
            if parent.owner() == "root" and parent != Path("/tmp") and "pytest" in parent.name:
                parent.chmod(0o755)
        (scratch / "pids").mkdir()
        (scratch / "python").write_text(sys.executable)
        self._network = PodNetwork(scratch)
        self._machines = {
            name: Machine(name, self._network.new_address(), self._network, scratch)
            for name in names
        }
        lines = [f"{machine.address} {name}\n" for name, machine in self._machines.items()]
        (scratch / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))

    def __enter__(self) -> Self:
        try:
            for machine in self._machines.values():
                machine.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def __getitem__(self, name: str) -> Machine:
        return self._machines[name]

    def _close(self) -> None:
        for machine in self._machines.values():
            machine.close()
        self._network.close()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

"""A pod's sandbox without a container runtime: network and mount namespaces on one bridge.

Each pod has its own address on the bridge, its volumes at their mount paths, a read-only root
if the manifest says so, the manifest's user, no capabilities and no way to get any, and the
cluster's DNS. The sandbox needs root and iproute2. Outside of the namespaces only the bridge is
created, and it is removed with the sandbox.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from tests.integration.deployment.pod_plan import Mount, PodPlan
from tests.unit.kubernetes.rendered import ROOT

BIN = Path(sys.executable).parent
_BRIDGE_MAC = "02:00:0a:00:00:01"
_KILLED_S_MAX = 30.0
_NUMBERS = itertools.count()


@functools.cache
class PodNetwork:
    """A bridge with one network namespace for each pod. Addresses are never used twice."""

    def __init__(self, scratch: Path) -> None:
        # Fixtures of several files may have a network at the same time in one process.
        number = next(_NUMBERS)
        self._tag = f"{os.getpid() % 100_000:05d}{number % 100:02d}"
        self._bridge = f"odr{self._tag}"
        self.resolver_path = scratch / "resolv.conf"
        subnet = ipaddress.ip_network(
            f"10.{200 + os.getpid() % 50}.{(os.getpid() // 50 + 97 * number) % 256}.0/24"
        )
        self._free = list(map(str, subnet.hosts()))
        self.gateway = self._free.pop(0)
        # An address of its own: by default it takes its ports' lowest one, which changes with the pods.
        _ip("link", "add", self._bridge, "address", _BRIDGE_MAC, "type", "bridge")
        _ip("addr", "add", f"{self.gateway}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        self._namespaces: list[str] = []
        self._count = 0

    def new_address(self) -> str:
        """Return an address that no pod had before."""
        return self._free.pop(0)

    def join(self, address: str) -> str:
        """Create a network namespace on the bridge, and return its name."""
        self._count += 1
        name, cable = f"{self._bridge}-{self._count}", f"v{self._tag}n{self._count}"
        _ip("netns", "add", name)
        self._namespaces.append(name)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", cable, "master", self._bridge, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", self.gateway),
        ):
            _ip("-n", name, *words)
        return name

    def leave(self, namespace: str) -> None:
        """Remove the namespace and its link at once."""
        self._namespaces.remove(namespace)
        _ip("netns", "del", namespace)

    def close(self) -> None:
        """Remove everything from the machine."""
        for name in list(self._namespaces):
            self.leave(name)
        _ip("link", "del", self._bridge)


class PodProcess:
    """The container of one pod, from start to end; its output goes to a file."""

    def __init__(
        self, plan: PodPlan, network: PodNetwork, *, address: str, volumes: Path, log_path: Path
    ) -> None:
        self.plan = plan
        self.address = address
        self.log_path = log_path
        self._network = network
        self.namespace = network.join(address)
        self._own = volumes / f"{plan.name}-{address}"
        self._own.mkdir(parents=True)
        self._volumes = volumes
        with log_path.open("ab") as log:
            self._sidecars = [self._launched(sidecar, log) for sidecar in plan.sidecars]
            self.process = self._launched(plan, log)

    def _launched(self, plan: PodPlan, log: BinaryIO) -> subprocess.Popen[bytes]:
        own = self._own / plan.name
        own.mkdir()
        script = own / "start.sh"
        script.write_text(self._script(plan, own))
        return subprocess.Popen(
            [
                "nsenter",
                f"--net=/run/netns/{self.namespace}",
                *("unshare", "--mount", "--propagation", "private"),
                *("sh", "-e", str(script)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if plan.labels.get("simulation") == "client" else log,
            stderr=log,
            env={"PATH": os.environ["PATH"]},
            start_new_session=True,
        )

    def terminate(self, timeout_s: float) -> bool:
        """Send SIGTERM, and SIGKILL after `timeout_s`; return whether SIGTERM was enough."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        for sidecar in self._sidecars:  # as the kubelet does: when the container has ended
            sidecar.send_signal(signal.SIGTERM)
            assert sidecar.wait(_KILLED_S_MAX) == 0, self.log_tail()
        return True

    def kill(self) -> None:
        """Send SIGKILL, and wait."""
        for process in (self.process, *self._sidecars):
            process.kill()
            process.wait(_KILLED_S_MAX)

    def remove(self) -> None:
        """Remove the pod's address from the network; its process must have ended."""
        assert self.process.poll() is not None, f"{self.plan.name} still runs"
        for process in (self.process, *self._sidecars):
            if process.poll() is None:  # a sidecar outlived a container that ended by itself
                process.kill()
                process.wait(_KILLED_S_MAX)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._network.leave(self.namespace)

    def connections(self) -> list[tuple[str, int]]:
        """Return (address, port) of the other end of every open TCP connection of the pod."""
        done = subprocess.run(
            ["nsenter", f"--net=/run/netns/{self.namespace}", "ss", "-tnH", "state", "established"],
            capture_output=True,
            text=True,
            check=True,
        )
        found = []
        for line in done.stdout.splitlines():
            address, _, port = line.split()[3].rpartition(":")
            found.append((address.strip("[]").removeprefix("::ffff:"), int(port)))
        return found

    def log_tail(self, lines: int = 12) -> str:
        """Return the last lines of the pod's output."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _script(self, plan: PodPlan, own: Path) -> str:
        (own / "layers").mkdir()
        lines = [f"mount -t tmpfs tmpfs {own}/layers"]
        places = [mount.path for mount in plan.mounts]
        for number, ancestor in enumerate(_ancestors_to_extend(places)):
            layer = f"{own}/layers/{number}"
            lines += [
                f"mkdir -p {layer}/upper {layer}/work",
                f"mount -t overlay overlay -o lowerdir={ancestor},upperdir={layer}/upper,"
                f"workdir={layer}/work {ancestor}",
            ]
        lines += plan.preparations  # of the image: they change what the pod sees alone
        lines += [f"mkdir -p {shlex.quote(place)}" for place in places]
        lines.append(f"mount --bind {self._network.resolver_path} /etc/resolv.conf")
        read_only = ["/"] if plan.read_only_root else []
        if plan.read_only_root:
            read_only += _ancestors_to_extend(places)
        for number, mount in enumerate(sorted(plan.mounts, key=lambda m: m.path == "/tmp")):
            source = self._volume(own / f"volume-{number}", mount)
            for tree in _trees_below(mount.path):  # what runs must not be hidden by the volume
                within = source / tree.relative_to(mount.path)
                lines += [f"mkdir -p {within}", f"mount --bind {tree} {within}"]
            lines.append(f"mount --rbind {source} {shlex.quote(mount.path)}")
            if mount.read_only:
                read_only.append(mount.path)
        lines += [f"mount -o remount,bind,ro {place}" for place in read_only]
        for probe in plan.starts_when:
            lines.append(f"until {shlex.join(probe)}; do sleep 0.1; done")
        words = [
            "exec",
            "setpriv",
            f"--reuid={plan.user}",
            f"--regid={plan.group}",
            f"--groups={plan.group}",
            "--no-new-privs",
            *capabilities(plan.user),
            *("env", "-i", f"PATH={BIN}:/usr/local/bin:/usr/bin:/bin", "HOME=/tmp"),
            *(f"{name}={value}" for name, value in plan.environment.items()),
            *plan.command,
        ]
        return "\n".join([*lines, "cd /", shlex.join(words)]) + "\n"

    def _volume(self, place: Path, mount: Mount) -> Path:
        if mount.claim is not None:
            place = self._volumes / mount.claim
        elif mount.shared is not None:
            place = self._own / f"empty-{mount.shared}"
        place.mkdir(exist_ok=True)
        for name, content in (mount.files or {}).items():
            file = place / name
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
            file.chmod(0o440)
            os.chown(file, 0, self.plan.group)
        place.chmod(0o770)
        os.chown(place, 0, self.plan.group)  # as fsGroup does
        return place


def _trees_below(place: str) -> list[Path]:
    """Return the directories below `place` that have this repository and its Python."""
    trees = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    found = sorted(tree for tree in trees if tree.is_relative_to(place))
    return [tree for tree in found if not any(tree.is_relative_to(o) for o in found if o != tree)]


def _ancestors_to_extend(places: Sequence[str]) -> list[str]:
    """Return the directories of the machine that a pod sees as copies, in which mount points can be
    created.

    /etc is always one of them, because lines of the Containerfile change it.
    """
    found = ["/etc"]
    for place in places:
        ancestor = Path(place)
        if ancestor.exists():
            continue
        while not ancestor.exists():
            ancestor = ancestor.parent
        real = str(ancestor.resolve())
        assert real != "/", f"{place}: mount points are made below an existing directory"
        if real not in found:
            found.append(real)
    return found


@functools.cache
def capabilities(user: int) -> tuple[str, ...]:
    """Return options of setpriv that drop all capabilities, except the right to read the tests' own
    files if other users may not read them.
    """
    none = ("--bounding-set=-all", "--inh-caps=-all")
    done = subprocess.run(
        [
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *none),
            *("env", sys.executable, "-c", "import odradek"),
        ],
        cwd="/",
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        return none
    right = "+dac_read_search"
    return (
        f"--inh-caps=-all,{right}",
        f"--ambient-caps=-all,{right}",
        f"--bounding-set=-all,{right}",
    )


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)

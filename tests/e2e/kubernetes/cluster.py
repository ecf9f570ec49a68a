"""A Kubernetes cluster of real programs on this machine: etcd, the API server, kubelets with
containerd, CoreDNS.

Each kubelet is a node in a separate zone. Nodes share the machine's network namespace and one
bridge; the pods of node N have the addresses 10.244.N.x. The cluster needs root. When it is closed,
only the given folder remains.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

from tests.e2e.kubernetes.image import save_program
from tests.e2e.kubernetes.manifests import (
    ADMIN_TOKEN,
    container_settings,
    kubeconfig,
    kubelet_settings,
    network_settings,
    proxy_settings,
    volumes,
)
from tests.e2e.kubernetes.programs import KUBERNETES

HERE = Path(__file__).parent
BRIDGE = "odrkube"
SOCKETS = Path("/run/odradek-kubernetes")  # a Unix socket's path must be short
API = "https://10.244.0.1:6443"
START_S_MAX = 120.0
KERNEL_SETTINGS = (
    "net/ipv4/ip_forward",
    "net/bridge/bridge-nf-call-iptables",
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
)
MODULES = {"broker": "odradek_broker", "quorum": "odradek_metadata_quorum"}
PROGRAMS = ("etcd", "containerd", "ctr", "runc", "iptables", "nft", "conntrack", "openssl", "ip")


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = START_S_MAX) -> None:
    """Check every 100 ms until the condition holds.

    Raises:
        TimeoutError: it did not hold in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {timeout_s:.0f} s until {what}")
        time.sleep(0.1)


class Cluster:
    """The cluster from start to end; it is a context manager."""

    def __init__(
        self,
        folder: Path,
        programs: Path,
        images: Sequence[Path],
        *,
        nodes: int = 3,
        node_memory_bytes: int | None = None,
    ) -> None:
        """`node_memory_bytes` limits the memory of all pods of a node together, for the kernel and
        for the scheduler.
        """
        self.folder, self.nodes = folder, nodes
        self.kubeconfig = folder / "admin.kubeconfig"
        self._programs, self._images = programs, images
        self._node_memory_bytes = node_memory_bytes
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._settings: dict[str, str] = {}
        self._lost: set[int] = set()

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as the cluster's administrator, and return what it printed."""
        done = subprocess.run(
            self.command(*words), input=stdin, capture_output=True, text=True, check=False
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}")
        return done.stdout

    def command(self, *words: str) -> list[str]:
        return [str(self._programs / "kubectl"), f"--kubeconfig={self.kubeconfig}", *words]

    def objects(self, kind: str, *words: str) -> list[dict[str, Any]]:
        """Return the objects of a kind in the namespace `odradek`, or where `words` say."""
        where = words or ("--namespace=odradek",)
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *where, "-o", "json"))[
            "items"
        ]
        return items

    def processes_of(self, namespace: str, pod: str) -> list[int]:
        """Return the ids of the pod's processes, those of its sidecars included."""
        (found,) = self.objects(
            "pods", f"--namespace={namespace}", f"--field-selector=metadata.name={pod}"
        )
        uid = found["metadata"]["uid"]
        ids: list[int] = []
        # Control groups of other containers are removed during the walk; os.walk skips them.
        for folder, _, names in os.walk("/sys/fs/cgroup"):
            if f"/pod{uid}" in folder and "cgroup.procs" in names:
                with contextlib.suppress(OSError):
                    ids += map(int, Path(folder, "cgroup.procs").read_text().split())
        return sorted(set(ids))

    def kill_pod(self, pod: str) -> None:
        """Send SIGKILL to the process of the pod's main container."""
        self.kill_program(pod, f"\0-m\0{MODULES[pod.split('-')[0]]}\0")

    def kill_program(self, pod: str, part: str) -> None:
        """Send SIGKILL to the only process of the pod that has the text in its command line."""
        (process,) = [
            process
            for process in self.processes_of("odradek", pod)
            if part.encode() in _command_line(process)
        ]
        os.kill(process, signal.SIGKILL)

    @contextlib.contextmanager
    def lost_node(self, number: int) -> Iterator[None]:
        """Within the block, all packets of the node are dropped, and all its processes are dead. Afterwards the node's
        kubelet starts again with the same disks.
        """
        self._lost.add(number)
        cut = f"table ip lost{number} {{ chain cut {{ type filter hook prerouting priority -300; "
        for direction in ("saddr", "daddr"):
            cut += f"ip {direction} 10.244.{number}.2-10.244.{number}.254 drop; "
        _run("nft", cut + "}; }")
        try:
            self._kill(f"kubelet-{number}")
            for pod in self.objects(
                "pods", "--all-namespaces", f"--field-selector=spec.nodeName=node-{number}"
            ):
                namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
                for process in self.processes_of(namespace, name):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            yield
        finally:
            _run("nft", f"delete table ip lost{number}")
            self._lost.discard(number)
            self._start_kubelet(number)

    def _start(self) -> None:
        for name in ("pki", "img", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        SOCKETS.mkdir(exist_ok=True)
        for name in KERNEL_SETTINGS:
            if (file := Path("/proc/sys", name)).exists():
                self._settings[name] = file.read_text()
        _prepare_namespaces()
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "link", "set", BRIDGE, "up")
        for number in range(1, self.nodes + 1):
            _run("ip", "addr", "add", f"10.244.0.{number}/16", "dev", BRIDGE)
        for name in KERNEL_SETTINGS[:2]:
            Path("/proc/sys", name).write_text("1")
        self._make_certificates()
        self._start_control_plane()
        self._start_nodes()

    def _make_certificates(self) -> None:
        pki = self.folder / "pki"
        names = "IP:10.96.0.1,IP:10.244.0.1,IP:127.0.0.1,DNS:kubernetes.default.svc"
        key = ("-newkey", "rsa:2048", "-nodes", "-days", "30")
        _run("openssl", "genrsa", "-out", f"{pki}/sa.key", "2048")
        _run(
            "openssl",
            "req",
            "-x509",
            *key,
            "-subj",
            "/CN=tests",
            "-keyout",
            f"{pki}/ca.key",
            "-out",
            f"{pki}/ca.crt",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        )
        _run(
            "openssl",
            "req",
            "-x509",
            *key,
            "-subj",
            "/CN=kube-apiserver",
            "-CA",
            f"{pki}/ca.crt",
            "-CAkey",
            f"{pki}/ca.key",
            "-keyout",
            f"{pki}/api.key",
            "-out",
            f"{pki}/api.crt",
            "-addext",
            f"subjectAltName={names}",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-addext",
            "keyUsage=critical,digitalSignature,keyEncipherment",
        )
        (pki / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,admin,"system:masters"\n')
        self.kubeconfig.write_text(kubeconfig(API, pki / "ca.crt"))

    def _start_control_plane(self) -> None:
        pki, store = self.folder / "pki", "http://127.0.0.1:2379"
        self._spawn(
            "etcd",
            "etcd",
            f"--data-dir={self.folder}/etcd",
            "--unsafe-no-fsync",
            "--initial-cluster=default=http://127.0.0.1:2380",
            f"--listen-client-urls={store}",
            f"--advertise-client-urls={store}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        )
        wait_until(lambda: _answers(f"{store}/health"), "etcd serves")
        self._spawn(
            "apiserver",
            "kube-apiserver",
            f"--etcd-servers={store}",
            "--advertise-address=10.244.0.1",
            "--secure-port=6443",
            f"--cert-dir={pki}",
            f"--tls-cert-file={pki}/api.crt",
            f"--tls-private-key-file={pki}/api.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.key",
            f"--service-account-signing-key-file={pki}/sa.key",
            f"--token-auth-file={pki}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            *_gates(),
        )
        wait_until(lambda: _answers(f"{API}/readyz", pki / "ca.crt"), "the API server serves")
        account = [
            f"--{name}kubeconfig={self.kubeconfig}"
            for name in ("", "authentication-", "authorization-")
        ]
        account += ["--leader-elect=false", "--bind-address=127.0.0.1", f"--cert-dir={pki}"]
        self._spawn(
            "controllers",
            "kube-controller-manager",
            *account,
            "--secure-port=16257",
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
        )
        self._spawn("scheduler", "kube-scheduler", *account, "--secure-port=16259")
        settings = self.folder / "proxy.yaml"
        settings.write_text(proxy_settings(self.kubeconfig))
        self._spawn("proxy", "kube-proxy", f"--config={settings}")

    def _start_nodes(self) -> None:
        own = []
        for name in ("pause", "coredns"):
            own.append(self.folder / "img" / f"{name}.tar")
            save_program(self._programs / name, f"localhost/{name}:1", own[-1])
        for number in range(1, self.nodes + 1):
            self._start_containerd(number)
        with ThreadPoolExecutor() as pool:
            list(
                pool.map(self._start_node, range(1, self.nodes + 1), repeat([*own, *self._images]))
            )
        self.kubectl("apply", "-f", "-", stdin=volumes(self.folder / "volumes", self.nodes))
        self.kubectl("apply", "-f", str(HERE / "coredns.yaml"))
        wait_until(
            lambda: self.kubectl("get", "nodes").count(" Ready") == self.nodes,
            "all nodes are ready",
        )
        self.kubectl(
            "--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s"
        )

    def _start_node(self, number: int, images: Sequence[Path]) -> None:
        """Import the images into the containerd of a node, then start its kubelet."""
        address = ("-a", str(SOCKETS / f"{number}.sock"))
        wait_until(lambda: _succeeds("ctr", *address, "version"), "containerd serves")
        for image in images:
            _run("ctr", *address, "-n", "k8s.io", "images", "import", str(image))
        self._start_kubelet(number)

    def _start_containerd(self, number: int) -> None:
        folder = self.folder / f"node-{number}"
        (folder / "cni").mkdir(parents=True)
        for hierarchy in filter(Path.is_dir, Path("/sys/fs/cgroup").iterdir()):
            with contextlib.suppress(OSError):
                (hierarchy / f"odr{number}").mkdir(exist_ok=True)
        processors = Path("/sys/fs/cgroup/cpuset")
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (processors / name).exists():
                (processors / f"odr{number}" / name).write_text((processors / name).read_text())
        limit = Path(f"/sys/fs/cgroup/memory/odr{number}/memory.limit_in_bytes")
        if self._node_memory_bytes is not None and limit.exists():
            limit.write_text(str(self._node_memory_bytes))
        settings = container_settings(folder, SOCKETS, number)
        (folder / "containerd.toml").write_text(settings)
        (folder / "cni" / "10-bridge.conflist").write_text(network_settings(folder, BRIDGE, number))
        self._spawn(f"containerd-{number}", "containerd", "-c", str(folder / "containerd.toml"))

    def _start_kubelet(self, number: int) -> None:
        folder = self.folder / f"node-{number}"
        reserved = 0
        if self._node_memory_bytes is not None:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            reserved = max(0, total - self._node_memory_bytes)
        settings = kubelet_settings(folder, SOCKETS, number, reserved_bytes=reserved)
        (folder / "kubelet.yaml").write_text(settings)
        self._spawn(
            f"kubelet-{number}",
            "kubelet",
            f"--config={folder}/kubelet.yaml",
            f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override=node-{number}",
            f"--node-ip=10.244.0.{number}",
            f"--root-dir={folder}/kubelet",
            f"--cert-dir={folder}/kubelet/pki",
            f"--node-labels=topology.kubernetes.io/zone=zone-{number}",
        )

    def _spawn(self, name: str, program: str, *words: str) -> None:
        own = self._programs / program
        with (self.folder / "log" / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(own if own.exists() else program), *words],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PATH": f"{self._programs}:{os.environ['PATH']}"},
            )

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End everything that was started, and remove it from the machine."""
        for name in [name for name in self._processes if not name.startswith("containerd")]:
            self._kill(name)
        for number in range(1, self.nodes + 1):
            self._end_containers(number)
            _run("nft", f"delete table ip lost{number}", check=False)
            _kill_processes_of_node(number)
        _run(str(self._programs / "kube-proxy"), "--cleanup", check=False)
        _remove_kubelet_rules()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            place = line.split()[1]
            if place.startswith((f"{self.folder}/", f"{SOCKETS}/")):
                _run("umount", "-l", place, check=False)
        for namespace in _output("ip", "netns", "list").split():
            if namespace.startswith("cni-"):
                _run("ip", "netns", "del", namespace, check=False)
        _run("ip", "link", "del", BRIDGE, check=False)
        for name, value in self._settings.items():
            Path("/proc/sys", name).write_text(value)
        for place in sorted(Path("/sys/fs/cgroup").glob("*/odr[0-9]*/**/"), reverse=True):
            with contextlib.suppress(OSError):
                place.rmdir()
        shutil.rmtree(SOCKETS, ignore_errors=True)

    def _end_containers(self, number: int) -> None:
        socket = str(SOCKETS / f"{number}.sock")
        ctr = ("ctr", "-a", socket, "-n", "k8s.io", "task")
        if f"containerd-{number}" not in self._processes:
            return
        for words in (("kill", "-s", "9"), ("delete", "-f")):
            for task in _output(*ctr, "ls", "-q").split():
                _run(*ctr, *words, task, check=False)
        self._kill(f"containerd-{number}")
        for process in _processes_with(f"{SOCKETS}/{number}.sock"):
            os.kill(process, signal.SIGKILL)


def _prepare_namespaces() -> None:
    """Let `ip` prepare the folder of network namespaces before pods have any.

    The first `ip netns add` on a machine mounts the folder over itself. Namespaces in it would be mounted twice, and
    containerd could not remove them.
    """
    _run("ip", "netns", "add", BRIDGE)
    _run("ip", "netns", "del", BRIDGE)


def _gates() -> list[str]:
    """Return the feature gate that gives pods their node's zone. It is on from Kubernetes 1.35, and unknown before
    1.33.
    """
    if KUBERNETES.startswith(("v1.33.", "v1.34.")):
        return ["--feature-gates=PodTopologyLabelsAdmission=true"]
    return []


def _kill_processes_of_node(number: int) -> None:
    """End the processes that still run in pods, because a killed containerd cannot end its containers."""
    for tasks in Path("/sys/fs/cgroup").glob(f"*/odr{number}/**/cgroup.procs"):
        with contextlib.suppress(OSError):
            for process in map(int, tasks.read_text().split()):
                os.kill(process, signal.SIGKILL)


def _remove_kubelet_rules() -> None:
    for program in ("iptables", "ip6tables"):
        for chain in ("INPUT", "OUTPUT"):
            _run(program, "-D", chain, "-j", "KUBE-FIREWALL", check=False)
        for table in ("filter", "nat", "mangle"):
            for chain in ("KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"):
                for action in ("-F", "-X"):
                    _run(program, "-t", table, action, chain, check=False)


def _processes_with(text: str) -> Iterable[int]:
    """Yield the shim processes of a containerd, whose command lines name its socket."""
    for place in Path("/proc").glob("[0-9]*"):
        line = _command_line(int(place.name))
        if b"containerd-shim" in line and text.encode() in line:
            yield int(place.name)


def _command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def _answers(url: str, authority: Path | None = None) -> bool:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
    context = None if authority is None else ssl.create_default_context(cafile=str(authority))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(request, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _succeeds(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def _run(*words: str, check: bool = True) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}{done.stdout}")

"""Finds the tools on this machine that some tests need beyond Python; without them, these tests are
skipped and counted.

A test calls `need("kcat")`. If the tool is missing, the test is skipped, and a table at the end of
the run lists the missing tools, how many tests were skipped, and how to install each. With
ODRADEK_TESTS_LEAVE_OUT_NOTHING=1, as in CI, such a run fails.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import pytest

ROOT: Final = Path(__file__).parents[1]
LEAVE_OUT_NOTHING: Final = "ODRADEK_TESTS_LEAVE_OUT_NOTHING"
_PREFIX: Final = "left out: needs "


class Tool(NamedTuple):
    """A tool that tests need: a check whether it is on this machine, and how to install it."""

    is_here: Callable[[], bool]
    bring: str


def _command(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name) is not None


def c_compiler() -> str | None:
    """Return the C compiler that Python's own build names, else `cc` or `gcc`; None if there is
    none.
    """
    configured = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return next(filter(None, map(shutil.which, (configured, "cc", "gcc"))), None)


def clang_with_libfuzzer() -> tuple[str, str] | None:
    """Return a clang that has libFuzzer, and the path of its library; the newest release if there
    are several.
    """
    library = f"libclang_rt.fuzzer_no_main-{platform.machine()}.a"
    for name in ("clang", *(f"clang-{release}" for release in range(30, 13, -1))):
        if (compiler := shutil.which(name)) is None:
            continue
        command = [compiler, f"-print-file-name={library}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0 and Path(done.stdout.strip()).is_file():
            return compiler, done.stdout.strip()
    return None


def _spark_works() -> bool:
    from pyspark_odradek.spark_session import missing

    return missing() is None


def _has_terminals() -> bool:
    try:
        descriptors = os.openpty()
    except OSError:
        return False
    for descriptor in descriptors:
        os.close(descriptor)
    return True


def _has_namespaces() -> bool:
    """Return whether this user may create network and mount namespaces."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "setpriv", "nsenter"))):
        return False
    command = ["unshare", "--net", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _has_cluster_programs() -> bool:
    """Return whether this user may start nodes, and the Debian packages that tests/e2e/kubernetes
    needs are installed.
    """
    programs = ("etcd", "containerd", "runc", "ip", "iptables", "nft", "conntrack", "openssl")
    folders = (Path("/usr/lib/cni"), Path("/proc/sys/net/bridge"))
    return (
        os.geteuid() == 0
        and sys.base_prefix != "/usr"
        and all(map(shutil.which, (*programs, "debootstrap")))
        and all(folder.is_dir() for folder in folders)
    )


TOOLS: Final[dict[str, Tool]] = {
    "kcat": Tool(_command("kcat"), "apt-get install kcat"),
    "a C compiler": Tool(lambda: c_compiler() is not None, "apt-get install gcc libc6-dev"),
    "clang with libFuzzer": Tool(
        lambda: clang_with_libfuzzer() is not None, "apt-get install clang-19 libclang-rt-19-dev"
    ),
    "Java 17 or 21": Tool(_spark_works, "apt-get install openjdk-17-jre-headless"),
    "Maven and a JDK": Tool(
        lambda: all(map(shutil.which, ("mvn", "java", "javac"))),
        "apt-get install maven openjdk-17-jdk-headless",
    ),
    "kubectl": Tool(
        _command("kubectl"),
        "python3 deploy/k8s/install_kubectl.py DIRECTORY, and add DIRECTORY to PATH",
    ),
    "helm": Tool(
        _command("helm"), "go install helm.sh/helm/v3/cmd/helm@v3.18.6, and add Go's bin to PATH"
    ),
    "network namespaces": Tool(_has_namespaces, "apt-get install iproute2, and run as root"),
    "ps": Tool(_command("ps"), "apt-get install procps"),
    "pseudo-terminals": Tool(_has_terminals, "mount -t devpts devpts /dev/pts"),
    "mounts": Tool(lambda: os.geteuid() == 0, "run as root"),
    "systemd": Tool(_command("systemd-analyze"), "apt-get install systemd"),
    "Go": Tool(_command("go"), "apt-get install golang-go"),
    "real Kubernetes": Tool(
        _has_cluster_programs,
        "run as root, with a Python outside /usr, and apt-get install etcd-server containerd runc "
        "containernetworking-plugins iproute2 iptables nftables conntrack openssl debootstrap",
    ),
    "Rust": Tool(_command("cargo"), "Rust 1.70 or later, with cargo, by rustup"),
    "a C++ compiler and RapidJSON": Tool(
        lambda: all(map(shutil.which, ("g++", "make"))) and Path("/usr/include/rapidjson").is_dir(),
        "apt-get install g++ make rapidjson-dev",
    ),
    "npm": Tool(_command("npm"), "apt-get install npm"),
    "a git checkout": Tool(
        lambda: (ROOT / ".git").exists() and shutil.which("git") is not None,
        "apt-get install git, and git clone",
    ),
}


def need(*names: str) -> None:
    """Skip and count the calling test or fixture unless all of these tools are on this machine.

    Raises:
        KeyError: a name that is not in TOOLS.
    """
    for name in names:
        if not TOOLS[name].is_here():
            pytest.skip(f"{_PREFIX}{name}")


def leave_out_module(name: str) -> NoReturn:
    """Skip and count all tests of the module that is being imported, because this tool is missing.

    Raises:
        KeyError: a name that is not in TOOLS.
    """
    assert TOOLS[name].bring
    pytest.skip(f"{_PREFIX}{name}", allow_module_level=True)


def tool_of(reason: str) -> str | None:
    """Return the tool that the reason of a skip names; None for a skip for another reason."""
    _, found, name = reason.partition(_PREFIX)
    return name if found else None


def table(reasons: Iterable[str]) -> list[str]:
    """Return a line for each tool for which tests were skipped; the tool that most tests need comes
    first.
    """
    counts = Counter(name for reason in reasons if (name := tool_of(reason)) is not None)
    return [
        f"{count:5} tests  need {name}: {TOOLS[name].bring}" for name, count in counts.most_common()
    ]

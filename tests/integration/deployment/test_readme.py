"""Runs the README's `sh` blocks unchanged, with a kubectl that acts on the simulated pods."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.deployment.conftest import load_on
from tests.integration.deployment.simulated_kubernetes import SimulatedKubernetes
from tests.unit.kubernetes.rendered import K8S

KUBECTL = r"""#!/bin/sh
# As much of kubectl as the README's sh blocks use.
set -e
[ "$1 $2" = "-n odradek" ]; shift 2
verb=$1; shift
case "$verb" in
  get) name=$2; template=$4; file=${template#*\"}; base64 -w0 < "SECRETS/$name/${file%\"*}" ;;
  exec) shift; pid=$(cat "PIDS/${1#job/}"); shift 2
    exec nsenter --target "$pid" --net --mount -- env -i $(tr '\0' '\n' < /proc/$pid/environ) "$@" ;;
  port-forward) ;;
  set | rollout) echo "$verb" "$@" ;;
  *) echo "kubectl $verb: the simulation does not know it" >&2; exit 1 ;;
esac
"""
LEAVE = "odradek cluster spread --over 1,2,3\n"
SCALE = "kubectl -n odradek scale statefulset broker --replicas=4\n"


def blocks(section: str) -> str:
    """Return the `sh` blocks of a section, in order."""
    text = (K8S / "README.md").read_text()
    (found,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return "".join(re.findall(r"^```sh\n(.*?)^```", found, re.MULTILINE | re.DOTALL))


def command_line() -> str:
    """Return the README's definition of the shell function `odradek`."""
    return (
        "odradek() {" + blocks("Verify").partition("odradek() {")[2].partition("\n}\n")[0] + "\n}\n"
    )


class Shell:
    """Runs a script in a folder of its own; `127.0.0.1`, the forwarded port's address, is replaced
    by a gateway's address.
    """

    def __init__(self, cluster: SimulatedKubernetes, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        program = folder / "bin" / "kubectl"
        program.parent.mkdir()
        text = KUBECTL.replace("SECRETS", str(folder / "secrets"))
        program.write_text(text.replace("PIDS", str(folder / "pids")))
        program.chmod(0o755)
        for name, files in cluster.api.secrets.items():
            (folder / "secrets" / name).mkdir(parents=True)
            for file, content in files.items():
                (folder / "secrets" / name / file).write_bytes(content)

    def run(self, script: str) -> str:
        """Return the script's standard output and standard error.

        Raises AssertionError if a command failed.
        """
        pids = self._folder / "pids"
        pids.mkdir(exist_ok=True)
        for name, pod in self._cluster.pods.items():
            (pids / name).write_text(str(pod.process.pid))
        gateway = self._cluster.pods_of("gateway")[0].address
        path = self._folder / "script.sh"
        path.write_text(f"set -e\n{script.replace('127.0.0.1', gateway)}")
        done = subprocess.run(
            ["sh", str(path)],
            cwd=self._folder,
            env={**os.environ, "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def shell(cluster: SimulatedKubernetes, tmp_path: Path) -> Shell:
    if "admin" not in cluster.pods:
        cluster.start_job("admin")
    return Shell(cluster, tmp_path)


@pytest.mark.timeout(300)
def test_verify_produces_and_consumes(shell: Shell) -> None:
    told = shell.run(blocks("Verify"))
    assert '"offset":0' in told.replace(" ", "")
    assert '"answer":42' in told.replace(" ", "")
    assert re.search(r"healthy +yes", told, re.IGNORECASE), told


@pytest.mark.timeout(300)
def test_a_topic_is_backed_up_and_restored(shell: Shell) -> None:
    tab = "-k \"$(printf '\\t')\""
    made = f"odradek topic create kept\nprintf 'a\\t1\\nb\\t2\\n' | odradek produce kept {tab}\n"
    backup, restore = [
        block.replace("hello", "kept")
        for block in re.split(r"(?=odradek topic create)", blocks("Back up and restore"))
    ]
    shell.run(command_line() + made + backup + "odradek topic delete kept\n" + restore)
    read = "odradek consume kept --from-beginning --exit-at-end -f '%k=%v\\n'\n"
    assert sorted(shell.run(command_line() + read).split()) == ["a=1", "b=2"]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_new_broker_gets_its_share_under_load(cluster: SimulatedKubernetes, shell: Shell) -> None:
    up, _, down = blocks("Scale brokers").partition(LEAVE)
    before, _, after = up.partition(SCALE)
    assert not before
    functions = command_line()
    with load_on(cluster):
        cluster.start("broker-4")
        cluster.wait_ready("broker-4")
        told = shell.run(functions + after.replace("odradek cluster health\n", ""))
        assert re.search(r"\b4\b", told), "something moves to broker 4"
        dry = functions + "odradek cluster spread --over 1,2,3,4 --dry-run\n"
        cluster.wait_until(
            lambda: "the replicas are balanced" in shell.run(dry), "broker 4 has its share"
        )
    look, _, forget = down.partition(SCALE.replace("4", "3"))
    shell.run(functions + LEAVE)
    cluster.wait_until(
        lambda: "the replicas are balanced" in shell.run(functions + look), "broker 4 is left"
    )
    cluster.stop("broker-4")
    told = shell.run(functions + forget)
    assert "broker 4 is no longer registered" in told
    assert re.search(r"healthy +yes", told, re.IGNORECASE), told


def test_an_upgrade_rolls_controllers_then_brokers_then_gateways(shell: Shell) -> None:
    assert shell.run(blocks("Upgrade")).splitlines() == [
        line
        for workload in ("statefulset/quorum", "statefulset/broker", "deployment/gateway")
        for line in (
            f"set image {workload} *=odradek:0.2.0",
            f"rollout status {workload}",
        )
    ]

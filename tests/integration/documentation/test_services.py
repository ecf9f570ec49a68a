"""The systemd units in deploy/systemd are valid and confined, and run a cluster that is set up as
in docs/cluster.md.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.deployment.pod_sandbox import BIN
from tests.integration.documentation.conftest import DataCentre
from tests.integration.documentation.machines import PROGRAMS, Machine
from tests.integration.documentation.pages import ROOT, script
from tests.tools import need

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
EXPOSURE_MAX = 20  # tenths; a service without any restriction has 96


def test_systemd_accepts_the_units(machine: Machine) -> None:
    need("systemd")
    assert len(UNITS) == 3
    assert machine.run(f"systemd-analyze verify {ROOT}/deploy/systemd/*.service") == ""


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_service_is_confined(path: Path) -> None:
    need("systemd")
    subprocess.run(
        [
            *("systemd-analyze", "security", "--offline=yes", "--no-pager"),
            *(f"--threshold={EXPOSURE_MAX}", str(path)),
        ],
        check=True,
        capture_output=True,
    )


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_units_run_a_cluster_as_the_page_sets_it_up(data_centre: DataCentre) -> None:
    output = data_centre.output
    assert "healthy" in output
    assert "User:alice" in output
    for host, unit in (("host1", "controller"), ("host2", "broker"), ("host4", "gateway")):
        data_centre.run(f"ssh {host} 'systemctl is-active odradek-{unit}'")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_wheel_is_installed_as_the_page_says() -> None:
    """The files that it writes into /opt and into the checkout are removed afterwards; packages
    come from the package index.
    """
    need("mounts", "a C compiler")
    layers = [
        f"mkdir -p /mnt/{number}/upper /mnt/{number}/work && mount -t overlay overlay"
        f" -o lowerdir={tree},upperdir=/mnt/{number}/upper,workdir=/mnt/{number}/work {tree}\n"
        for number, tree in enumerate(("/opt", ROOT))
    ]
    setup = (
        f"mount -t tmpfs tmpfs /mnt\n{''.join(layers)}cd /; cd {ROOT}\n"
        f"export PATH={PROGRAMS}:{BIN}:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1\n"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", setup + script("docs/installing.md")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "odradek 0." in done.stdout

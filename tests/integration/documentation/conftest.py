"""Fixtures: the machines on which the pages about operating a cluster are tested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.documentation.machines import Machine, Machines
from tests.integration.documentation.pages import ROOT, script
from tests.tools import need

HOSTS = ("host1", "host2", "host3", "host4", "host5")


class DataCentre:
    """An administrator's machine with a checkout, and hosts with a cluster set up as in
    docs/cluster.md.
    """

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.admin = machines["admin"]
        (self.admin.folder / "root" / "deploy").symlink_to(ROOT / "deploy")
        self.output = self.run(script("docs/cluster.md"))

    def run(self, commands: str) -> str:
        """Run commands on the administrator's machine; a failure shows the end of each service's log."""
        try:
            return self.admin.run(commands)
        except AssertionError as failure:
            logs = [
                f"{host} {unit}: {self.machines[host].log(f'odradek-{unit}')[-2000:]}"
                for host in HOSTS
                for unit in ("controller", "broker", "gateway")
            ]
            raise AssertionError(f"{failure}\n" + "\n".join(logs)) from None


@pytest.fixture(scope="package")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Yield one empty machine."""
    need("network namespaces")
    with Machines(tmp_path_factory.mktemp("machine"), ["laptop"]) as machines:
        yield machines["laptop"]


@pytest.fixture(scope="package")
def data_centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataCentre]:
    need("network namespaces")
    with Machines(tmp_path_factory.mktemp("machines"), ["admin", *HOSTS]) as machines:
        yield DataCentre(machines)

"""A fixture with a secure cluster (TLS, users, certificates, ACLs), and the option that writes the
table in docs/errors.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.embedded import ClusterPlan
from tests.e2e.secure_cluster import SecureCluster


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-errors", action="store_true", help="write the table of docs/errors.md"
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    directory: Path = tmp_path_factory.mktemp("secure")
    plan = ClusterPlan(brokers=2, controllers=1, gateways=2)
    with SecureCluster(directory, plan) as running:
        running.start()
        running.wait_ready()
        yield running

"""Fixtures: clusters that tests may kill, and reports of the figures that tests measure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from odradek.embedded import ClusterPlan, EmbeddedCluster

Report = Callable[..., None]


@pytest.fixture(scope="package")
def cluster() -> Iterator[EmbeddedCluster]:
    """Yield a cluster of three controllers and three brokers; every test leaves all of them
    running.
    """
    with EmbeddedCluster(ClusterPlan(brokers=3, controllers=3)) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.fixture
def report(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Report:
    """Return a function `report(gap_s=..., bar_s=...)` that prints one line of JSON, even if pytest
    captures output.
    """

    def write(**figures: object) -> None:
        with capfd.disabled():
            print("\n" + json.dumps({"test": request.node.name, **figures}), flush=True)

    return write

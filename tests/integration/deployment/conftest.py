"""Fixtures: one simulated namespace with the dev overlay for all tests here, and load on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.integration.deployment.pod_sandbox import PodProcess
from tests.integration.deployment.simulated_kubernetes import SimulatedKubernetes
from tests.tools import need

ANSWER_S_MAX = 90.0
RATE = 600  # records/s, one at a time: every gap shows


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedKubernetes]:
    """Yield the pods of `kubectl apply -k deploy/k8s`. Every test leaves all of them ready."""
    need("kubectl", "network namespaces")
    scratch = tmp_path_factory.mktemp("kubernetes")
    with SimulatedKubernetes(".", scratch, beside=["jobs", "admin"]) as found:
        found.apply()
        yield found


class LoadPod:
    """A client pod that keeps producing with acks=all (`load_client`)."""

    def __init__(self, pod: PodProcess) -> None:
        self._pod = pod
        self.topic: str = self._told()["topic"]

    def gap_s(self) -> float:
        """Return the longest pause of a partition since the last call; a pause that has not ended
        is waited for.
        """
        assert self._pod.process.stdin is not None
        self._pod.process.stdin.write(b"gap\n")
        self._pod.process.stdin.flush()
        return float(self._told()["gap_s"])

    def verdict(self) -> dict[str, Any]:
        """End the load, read all records back, and return the faults."""
        assert self._pod.process.stdin is not None
        self._pod.process.stdin.close()
        told = self._told()
        assert self._pod.process.wait(ANSWER_S_MAX) == 0, self._pod.log_tail()
        return told

    def _told(self) -> dict[str, Any]:
        assert self._pod.process.stdout is not None
        line = self._pod.process.stdout.readline()
        assert line, f"the load client ended:\n{self._pod.log_tail()}"
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def load_on(cluster: SimulatedKubernetes) -> Iterator[LoadPod]:
    """Produce for the length of the `with` block.

    Every record must be acknowledged, and be read once and in order.
    """
    pod = cluster.start_client(
        "load",
        "tests.integration.deployment.load_client",
        "odradek-admin-tls",  # it makes topics
        f"bootstrap.{cluster.namespace}.svc:9090",
        str(RATE),
    )
    try:
        load = LoadPod(pod)
        yield load
        told = load.verdict()
        assert told["failures"] == []
        assert told["faults"] == []
        assert told["acknowledged"] == told["sent"] > 0
    finally:
        if pod.process.poll() is None:
            pod.kill()
        cluster.pods.pop("load").remove()


@pytest.fixture
def report(
    request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> Callable[..., None]:
    """Return a function `report(gap_s=..., bar_s=...)` that prints one line of JSON, even if pytest
    captures output.
    """

    def write(**figures: object) -> None:
        with capfd.disabled():
            print("\n" + json.dumps({"test": request.node.name, **figures}), flush=True)

    return write

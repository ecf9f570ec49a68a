"""Spark jobs in the cluster: with certificates and network policies, and exactly once although pods are killed."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes import policy_rules
from tests.e2e.kubernetes.cluster import Cluster, wait_until
from tests.e2e.kubernetes.conftest import Report
from tests.e2e.kubernetes.installation import Installation
from tests.unit.kubernetes.rendered import K8S

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(1_800)]
RECORDS = 20_000
RECORDS_A_BATCH = 1_000
KEYS = 50
SPARK_S_MAX = 300.0


def overlay(folder: Path) -> Path:
    """Write an overlay of the jobs in which the copy takes many batches, and does not start by itself."""
    patch = [
        {"op": "add", "path": "/spec/suspend", "value": True},
        *(
            {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": word}
            for word in ("--records-max", str(RECORDS_A_BATCH))
        ),
    ]
    kustomization = {
        "resources": [os.path.relpath(K8S / "jobs", folder.resolve())],
        "patches": [
            {"target": {"kind": "Job", "name": "copy-records"}, "patch": json.dumps(patch)}
        ],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return folder


@pytest.fixture(scope="module")
def jobs(
    built_programs: Path,
    image: Path,
    spark_image: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installation]:
    """Yield a cluster with records in the topic `hello`, to which the jobs were applied."""
    folder = tmp_path_factory.mktemp("kubernetes")
    with Cluster(folder, built_programs, [image, spark_image], nodes=2) as cluster:
        installation = Installation(cluster)
        installation.apply(str(K8S))
        installation.wait_installed()
        readme = (K8S / "README.md").read_text()
        for words in re.findall(r"^odradek (topic create hello-\S+ .+)$", readme, re.MULTILINE):
            installation.odradek(*words.split())
        lines = "".join(f"k{number % KEYS}:{number}\n" for number in range(RECORDS))
        installation.odradek("produce", "hello", "--key-separator", ":", stdin=lines)
        cluster.kubectl("apply", "-k", str(overlay(tmp_path_factory.mktemp("overlay"))))
        yield installation
        policy_rules.stop()


def pod_of(installation: Installation, job: str) -> dict[str, Any]:
    """Wait until the pod of a job has an address, let it connect as the policies allow, and return it."""
    found: list[dict[str, Any]] = []

    def has_address() -> bool:
        selector = f"--selector=app.kubernetes.io/name={job}"
        pods = installation.cluster.objects("pods", "--namespace=odradek", selector)
        found[:] = [pod for pod in pods if pod["status"].get("podIP")]
        return bool(found)

    wait_until(has_address, f"the pod of {job} has an address")
    policy_rules.enforce(installation.cluster)
    (pod,) = found
    return pod


def wait_complete(installation: Installation, job: str) -> None:
    """Wait until the job is complete. Raises AssertionError, with the pod's output, if it is not in time."""
    words = ("wait", "--for=condition=Complete", f"job/{job}", f"--timeout={SPARK_S_MAX:.0f}s")
    try:
        installation.kubectl(*words)
    except RuntimeError as error:
        said = installation.kubectl("logs", f"job/{job}", "--tail=40")
        raise AssertionError(f"{job} is not complete: {error}\n{said}") from error


def committed(installation: Installation, topic: str) -> list[dict[str, Any]]:
    """Return the values of the topic's committed records, which are JSON."""
    words = ("--from-beginning", "--exit-at-end", "--read-committed", "-f", "%v\\n")
    return [
        json.loads(line) for line in installation.odradek("consume", topic, *words).splitlines()
    ]


def test_a_job_counts_the_records_of_a_topic(jobs: Installation) -> None:
    pod_of(jobs, "count-by-key")
    wait_complete(jobs, "count-by-key")
    counts = committed(jobs, "hello-counts")
    assert sorted((one["key"], one["records"]) for one in counts) == sorted(
        (f"k{number}", RECORDS // KEYS) for number in range(KEYS)
    )


def test_a_job_copies_each_record_once_although_its_pod_and_a_broker_are_killed(
    jobs: Installation, report: Report
) -> None:
    resume = json.dumps({"spec": {"suspend": False}})
    jobs.kubectl("patch", "job", "copy-records", "--patch", resume)
    pod = pod_of(jobs, "copy-records")["metadata"]["name"]
    copied = 0

    def more_is_copied() -> bool:
        nonlocal copied
        before, copied = copied, len(committed(jobs, "hello-copies"))
        return copied > before

    wait_until(more_is_copied, "the first batches are copied", SPARK_S_MAX)
    jobs.cluster.kill_program(pod, "copy_records.py")
    copied = len(committed(jobs, "hello-copies"))  # Spark takes longer than this to start again
    at_kills = [copied]
    wait_until(lambda: jobs.restarts().get(pod, 0) > 0, "the job's pod is restarted")
    wait_until(more_is_copied, "the restarted job copies", SPARK_S_MAX)
    at_kills.append(copied)
    jobs.kill("broker-2")
    wait_complete(jobs, "copy-records")
    copies = committed(jobs, "hello-copies")
    report(records=RECORDS, copied_at_kills=at_kills, copies=len(copies))
    assert max(at_kills) < RECORDS
    places = Counter((one["partition"], one["offset"]) for one in copies)
    assert max(places.values()) == 1
    assert {int(one["value"]) for one in copies} == set(range(RECORDS))
    assert len(copies) == RECORDS

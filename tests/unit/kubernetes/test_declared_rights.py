"""The format of `access.toml`, and the rights that it declares."""

from __future__ import annotations

import importlib.util
import tomllib
from types import ModuleType
from typing import Any

import pytest

from odradek.admin.access import AclOperation, PatternType, ResourceType
from odradek.admin.descriptions import BrokerDescription, ClusterDescription
from tests.unit.kubernetes.rendered import K8S

TOPICS = K8S / "components" / "topics"


@pytest.fixture(scope="module")
def job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("apply_topics", TOPICS / "apply_topics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_star_at_the_end_is_a_prefix_and_alone_it_is_every_name(job: ModuleType) -> None:
    declared = {"principal": "User:CN=x", "operations": ["READ"], "topics": ["a", "b*", "*"]}
    assert [(e.resource_name, e.pattern_type) for e in job.rights({"allow": [declared]})] == [
        ("a", PatternType.LITERAL),
        ("b", PatternType.PREFIXED),
        ("*", PatternType.LITERAL),
    ]


def test_each_operation_on_each_resource_is_an_entry(job: ModuleType) -> None:
    declared = {
        "principal": "User:CN=x",
        "operations": ["READ", "DESCRIBE"],
        "topics": ["t"],
        "groups": ["g"],
        "transactional_ids": ["i"],
        "cluster": True,
    }
    entries = job.rights({"allow": [declared]})
    assert {(e.resource_type, e.operation) for e in entries} == {
        (kind, operation)
        for kind in (
            ResourceType.TOPIC,
            ResourceType.GROUP,
            ResourceType.TRANSACTIONAL_ID,
            ResourceType.CLUSTER,
        )
        for operation in (AclOperation.READ, AclOperation.DESCRIBE)
    }


@pytest.mark.parametrize(
    "declared",
    [
        {"deny": []},
        {"allow": [{"principal": "User:x", "operations": ["READ"], "topic": ["t"]}]},
        {"allow": [{"principal": "User:x", "operations": ["READ"]}]},
        {"allow": [{"principal": "x", "operations": ["READ"], "topics": ["t"]}]},
        {"allow": [{"principal": "User:x", "operations": ["LOOK"], "topics": ["t"]}]},
        {"allow": [{"operations": ["READ"], "topics": ["t"]}]},
    ],
)
def test_what_cannot_be_meant_is_refused(job: ModuleType, declared: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        job.rights(declared)


def test_clients_of_the_examples_may_not_administer(job: ModuleType) -> None:
    """Only gateways write to the topic with the registry of consumer instances."""
    entries = job.rights(tomllib.loads((TOPICS / "access.toml").read_text()))
    writes = (AclOperation.WRITE, AclOperation.ALL)
    registry = [
        e for e in entries if e.operation in writes and e.resource_name == "__rest_consumers"
    ]
    assert {e.principal for e in registry} == {"User:CN=gateway"}
    for entry in entries:
        if entry.principal != "User:CN=gateway":
            assert entry.operation != AclOperation.ALL
            assert entry.resource_name != "*"
        if entry.resource_type is ResourceType.CLUSTER:
            assert entry.operation is AclOperation.DESCRIBE


class Growing:
    """A cluster whose brokers register one after the other; one more is fenced until it has started."""

    def __init__(self, *active: int) -> None:
        self.active = list(active)
        self.admin = self

    async def describe_cluster(self) -> ClusterDescription:
        active = self.active.pop(0) if len(self.active) > 1 else self.active[0]
        return ClusterDescription(
            cluster_id="c",
            active_controller_id=1,
            controller_epoch=1,
            controller_endpoints=(),
            brokers=tuple(
                BrokerDescription(
                    broker_id=number,
                    broker_epoch=1,
                    listeners=(),
                    rack="",
                    is_fenced=number == active,
                    is_in_shutdown=False,
                    leader_count=0,
                )
                for number in range(active + 1)
            ),
        )


async def test_topics_wait_for_as_many_brokers_as_they_have_replicas(
    job: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "POLL_S", 0)
    cluster = Growing(0, 1, 2, 3, 4)
    await job.wait_for_brokers(cluster, 3)
    assert cluster.active == [4]


async def test_topics_do_not_wait_forever(job: ModuleType) -> None:
    await job.wait_for_brokers(Growing(1), 3, timeout_s=0.01)

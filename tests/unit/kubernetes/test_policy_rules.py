"""The rules that stand in for a network plugin say what the manifests' policies say."""

from __future__ import annotations

from tests.e2e.kubernetes.policy_rules import rules
from tests.unit.kubernetes.rendered import Object, objects

NAMESPACES = [
    {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}
    for name in ("odradek", "apps", "kube-system", "monitoring")
]


def pod(name: str, address: str, labels: Object, namespace: str = "odradek") -> Object:
    ports = {"broker": {"grpc": 9090, "kafka": 9092, "replication": 9093, "metrics": 9404}}
    named = ports.get(labels.get("app.kubernetes.io/name"), {})
    opened = [{"name": key, "containerPort": number} for key, number in named.items()]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"ports": opened}]},
        "status": {"podIP": address},
    }


def chain(text: str, name: str) -> list[str]:
    return text.split(f"chain {name} {{\n")[1].split("\n}")[0].splitlines()


def test_a_broker_is_reached_by_its_clients_on_their_ports_and_by_nothing_else() -> None:
    policies = [one for one in objects(".") if one["kind"] == "NetworkPolicy"]
    broker = pod("broker-1", "10.0.0.1", {"app.kubernetes.io/name": "broker"})
    client = pod("client", "10.0.0.2", {"odradek.io/client": "true"}, "apps")
    stranger = pod("stranger", "10.0.0.3", {}, "apps")
    text = rules(policies, [broker, client, stranger], NAMESPACES)
    assert "ip daddr 10.0.0.1 jump ingress_0" in chain(text, "forward")
    entering = chain(text, "ingress_0")
    assert "ip saddr 10.0.0.2 tcp dport 9090 return" in entering
    assert "ip saddr 10.0.0.2 tcp dport 9092 return" in entering
    assert not any("10.0.0.3" in line or "9404" in line for line in entering)
    assert [line for line in entering if "10.0.0.2" in line and "9093" in line] == []
    assert entering[-1] == "drop"


def test_a_pod_leaves_its_namespace_only_for_names_and_what_it_needs() -> None:
    policies = [one for one in objects(".") if one["kind"] == "NetworkPolicy"]
    labels = {"app.kubernetes.io/name": "broker"}
    dns = pod("coredns", "10.0.0.9", {}, "kube-system")
    text = rules(policies, [pod("broker-1", "10.0.0.1", labels), dns], NAMESPACES)
    leaving = chain(text, "egress_0")
    assert "ip daddr 10.0.0.9 udp dport 53 return" in leaving
    assert {line for line in leaving if line.startswith("tcp")} == set()
    assert leaving[-1] == "drop"
    assert "egress_1" not in text, "no policy selects a pod of kube-system"

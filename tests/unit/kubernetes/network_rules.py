"""Compares the connections that the NetworkPolicies allow between pods with those that are
needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.unit.kubernetes.rendered import Object

NAME = "app.kubernetes.io/name"
MONITORING = "monitoring namespace"
CLIENTS = "client pods"
ANYBODY = "anybody"
INGRESS = {  # pod: {port: who reaches it}
    "quorum": {
        "raft": {"quorum"},
        "controller": {"quorum", "broker"},
        "metrics": {MONITORING},
    },
    "broker": {
        "replication": {"broker"},
        "grpc": {"broker", "gateway", CLIENTS},
        "kafka": {CLIENTS},
        "metrics": {MONITORING},
    },
    "gateway": {"http": {ANYBODY}},
}
EGRESS = {  # pod: {port: whom it reaches}
    "quorum": {9094: {"quorum"}, 9095: {"quorum"}},
    "broker": {9090: {"broker"}, 9093: {"broker"}, 9094: {"quorum"}},
    "gateway": {9090: {"broker"}, 8082: {"gateway"}},
}


def network_violations(found: list[Object]) -> Iterator[str]:
    """Return the connections that are allowed but not needed, and those that are needed but not
    allowed.
    """
    policies = {
        one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "NetworkPolicy"
    }
    for pod, wanted in INGRESS.items():
        open_to: dict[object, set[str]] = {}
        for rule in policies.get(pod, {}).get("ingress", ()):
            for port in rule.get("ports", ()):
                open_to.setdefault(port["port"], set()).update(map(_peer, rule.get("from", ({},))))
        if open_to != wanted:
            yield f"{pod} is open to {open_to}"
    for pod, reaches in EGRESS.items():
        allowed: dict[object, set[str]] = {}
        for rule in policies.get(pod, {}).get("egress", ()):
            for port in rule.get("ports", ()):
                allowed.setdefault(port["port"], set()).update(map(_peer, rule.get("to", ({},))))
        if allowed != reaches:
            yield f"{pod} reaches {allowed}"
    dns = {
        port["port"]
        for rule in policies.get("dns", {}).get("egress", ())
        for port in rule.get("ports", ())
    }
    if dns != {53} or policies.get("dns", {}).get("podSelector") != {}:
        yield "not every pod can ask the DNS"
    for pod in INGRESS:
        if policies.get(pod, {}).get("podSelector") != {"matchLabels": {NAME: pod}}:
            yield f"the policy {pod} is for other pods"
        if set(policies.get(pod, {}).get("policyTypes", ())) != {"Ingress", "Egress"}:
            yield f"the policy {pod} leaves a direction open"
    if policies.get("dns", {}).get("policyTypes") != ["Egress"]:
        yield "the policy dns is about more than asking"
    for name, spec in policies.items():
        if not spec.get("policyTypes"):
            yield f"the policy {name} does not say its directions"


def _peer(peer: Object) -> str:
    labels = peer.get("podSelector", {}).get("matchLabels", {})
    space = peer.get("namespaceSelector", {}).get("matchLabels", {})
    if NAME in labels:
        return str(labels[NAME])
    if labels.get("odradek.io/client") == "true":
        return CLIENTS
    if space.get("kubernetes.io/metadata.name") == "monitoring":
        return MONITORING
    return ANYBODY

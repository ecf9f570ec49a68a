"""Converts NetworkPolicies to nftables rules, instead of a network plugin that enforces the policies.

A pod that a policy selects for a direction may have only the connections of that direction that a policy allows. The
node's own connections to its pods, such as probes, are not filtered.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

from tests.e2e.kubernetes.cluster import Cluster

TABLE = "odradek_policies"
Object = dict[str, Any]


def enforce(cluster: Cluster) -> None:
    """Load the rules for the pods and policies that there are now. Later pods are not restricted."""
    everywhere = "--all-namespaces"
    found = [
        cluster.objects(kind, everywhere) for kind in ("networkpolicies", "pods", "namespaces")
    ]
    script = f"table inet {TABLE}\ndelete table inet {TABLE}\n{rules(*found)}"
    done = subprocess.run(
        ["nft", "-f", "-"], input=script, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stderr}\n{script}"


def stop() -> None:
    """Allow everything again."""
    subprocess.run(["nft", f"delete table inet {TABLE}"], capture_output=True, check=False)


def rules(policies: list[Object], pods: list[Object], namespaces: list[Object]) -> str:
    """Return the table. A connection must be allowed where it leaves a pod, and where it enters one."""
    labels = {one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in namespaces}
    running = [
        pod for pod in pods if pod["status"].get("podIP") and not pod["spec"].get("hostNetwork")
    ]
    jumps, chains = {"Egress": [], "Ingress": []}, []  # type: dict[str, list[str]], list[str]
    for number, pod in enumerate(running):
        address = pod["status"]["podIP"]
        for direction, side in (("Egress", "saddr"), ("Ingress", "daddr")):
            chosen = [one for one in policies if _selects(one, pod, direction)]
            if not chosen:
                continue
            name = f"{direction.lower()}_{number}"
            jumps[direction].append(f"ip {side} {address} jump {name}")
            allowed = [
                rule for one in chosen for rule in _allowed(one, pod, direction, running, labels)
            ]
            chains.append(_chain(name, [*allowed, "drop"]))
    known = "ct state established,related accept"
    hook = "type filter hook {} priority -10; policy accept;"
    forward = [hook.format("forward"), known, *jumps["Egress"], *jumps["Ingress"]]
    to_the_node = [hook.format("input"), known, *jumps["Egress"]]
    chains += [_chain("forward", forward), _chain("input", to_the_node)]
    return f"table inet {TABLE} {{\n" + "\n".join(chains) + "\n}\n"


def _chain(name: str, lines: Iterable[str]) -> str:
    return f"chain {name} {{\n" + "\n".join(lines) + "\n}"


def _selects(policy: Object, pod: Object, direction: str) -> bool:
    return (
        policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and direction in policy["spec"]["policyTypes"]
        and _matches(policy["spec"]["podSelector"], pod["metadata"].get("labels", {}))
    )


def _matches(selector: Object, labels: Object) -> bool:
    assert set(selector) <= {"matchLabels"}, f"{selector} is not known here"
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _allowed(
    policy: Object, pod: Object, direction: str, pods: list[Object], namespaces: Object
) -> Iterator[str]:
    """Yield the rules that let a connection pass. Named ports are those of the pod that is connected to."""
    side, peers = ("saddr", "from") if direction == "Ingress" else ("daddr", "to")
    for rule in policy["spec"].get(direction.lower(), ()):
        for place in _places(rule.get(peers), policy["metadata"]["namespace"], pods, namespaces):
            peer = "" if place == "" else f"ip {side} {place} "
            for port in rule.get("ports", ({},)):
                yield f"{peer}{_port(port, pod)}return"


def _places(
    peers: list[Object] | None, own: str, pods: list[Object], namespaces: Object
) -> Iterator[str]:
    if not peers:
        yield ""
    for peer in peers or ():
        if "ipBlock" in peer:
            yield peer["ipBlock"]["cidr"]
            continue
        for pod in pods:
            space = pod["metadata"]["namespace"]
            selector = peer.get("namespaceSelector")
            is_there = space == own if selector is None else _matches(selector, namespaces[space])
            if is_there and _matches(
                peer.get("podSelector", {}), pod["metadata"].get("labels", {})
            ):
                yield pod["status"]["podIP"]


def _port(port: Object, pod: Object) -> str:
    if "port" not in port:
        return ""
    number = port["port"]
    if isinstance(number, str):
        (number,) = {
            one["containerPort"]
            for container in pod["spec"]["containers"]
            for one in container.get("ports", ())
            if one.get("name") == number
        }
    return f"{port.get('protocol', 'TCP').lower()} dport {number} "

"""Every metric and label in alerts and dashboards exists in a scrape of a live cluster."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import promql_parser
import pytest
import yaml
from aiokafka.client import AIOKafkaClient
from prometheus_client.parser import text_string_to_metric_families

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.unit.kubernetes.rendered import K8S

MONITORING = K8S / "components" / "monitoring"
OF_CERTIFICATES = {  # the cluster here has none; tests/unit/runtime/test_certificate_expiry.py has the labels
    f"{prefix}certificate_expiry_timestamp_seconds": {"setting"}
    for prefix in ("odradek_broker_", "odradek_metadata_quorum_", "odradek_gateway_")
}
OF_TARGETS = {"job", "instance"}  # what Prometheus adds
GRAFANA = {"$__rate_interval": "5m", "$__range": "1h"}
SEEN_S_MAX = 60.0
Scrape = dict[str, set[str]]
"""Labels by sample name."""


def alert_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["spec"]["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def panels() -> Iterator[tuple[str, str, str]]:
    """Yield (title, expression, legend) of every line of every panel."""
    for path in sorted((MONITORING / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']}", target["expr"], target["legendFormat"]


def parsed(expr: str) -> Any:
    for variable, value in GRAFANA.items():
        expr = expr.replace(variable, value)
    return promql_parser.parse(expr)  # raises ValueError for bad syntax


def nodes(node: Any) -> Iterator[Any]:
    """Yield a PromQL expression and all expressions in it."""
    yield node
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        child = getattr(node, name, None)
        if child is not None:
            yield from nodes(child)
    for child in getattr(node, "args", None) or ():
        yield from nodes(child)


def selectors(node: Any) -> list[Any]:
    return [one for one in nodes(node) if isinstance(one, promql_parser.VectorSelector)]


def missing(expr: str, scrape: Scrape) -> list[str]:
    """Return the metrics and labels that are in the expression and not in the scrape."""
    wrong = []
    tree = parsed(expr)
    for one in selectors(tree):
        if one.name not in scrape:
            wrong.append(f"metric {one.name}")
            continue
        known = scrape[one.name] | OF_TARGETS
        wrong += [
            f"label {m.name} of {one.name}" for m in one.matchers.matchers if m.name not in known
        ]
    for one in nodes(tree):
        grouping = getattr(one, "modifier", None)
        grouping = getattr(grouping, "matching", grouping)
        for label in getattr(grouping, "labels", None) or ():
            for below in selectors(one):
                if label not in scrape.get(below.name, set()) | OF_TARGETS:
                    wrong.append(f"label {label} of {below.name}")
    return wrong


def shown(expr: str, scrape: Scrape) -> set[str]:
    """Return the labels of the expression's result, for legends and annotations."""
    tree = parsed(expr)
    for one in nodes(tree):
        if isinstance(one, promql_parser.AggregateExpr):
            return set(one.modifier.labels) if one.modifier is not None else set()
    return OF_TARGETS.union(*(scrape.get(one.name, set()) for one in selectors(tree)))


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(ClusterPlan(brokers=2, controllers=3, gateways=1)) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def scrape(cluster: EmbeddedCluster) -> Scrape:
    """Scrape every process, after a group has read a topic, while a transaction is open."""
    return asyncio.run(_used(cluster))


async def _used(cluster: EmbeddedCluster) -> Scrape:
    foreign = AIOKafkaClient(bootstrap_servers=cluster.kafka_bootstrap)
    await foreign.bootstrap()
    await foreign.close()
    async with Client(cluster.bootstrap) as client:
        await client.admin.create_topic("seen", partitions=1, replication_factor=2)
        async with client.producer(acks="all") as producer:
            await producer.send_and_wait("seen", b"record")
        consumer = client.consumer("seen", group="readers", auto_offset_reset="earliest")
        async with consumer:
            assert await consumer.getmany(timeout_ms=30_000)
            await consumer.commit()
            writer = client.producer(acks="all", transactional_id="open")
            async with writer, writer.transaction():
                await writer.send_and_wait("seen", b"record")
                return await asyncio.to_thread(_scrape, cluster)


def _scrape(cluster: EmbeddedCluster) -> Scrape:
    told = cluster.describe()
    urls = [f"http://{address}/metrics" for address in told["metrics"].values()]
    urls.append(f"{told['gateway']}/metrics")
    httpx.get(f"{told['gateway']}/topics").raise_for_status()
    deadline_s = time.monotonic() + SEEN_S_MAX
    while True:
        found: Scrape = {"up": set(), "ALERTS": {"alertname"}, **OF_CERTIFICATES}
        for url in urls:
            text = httpx.get(url, timeout=30).raise_for_status().text
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    found.setdefault(sample.name, set()).update(sample.labels)
        # The lag is told once the commit is, the followers' once the leader has heard of them.
        if found.keys() >= {
            "kafka_consumergroup_lag",
            "odradek_broker_stable_lag_records",
            "odradek_metadata_quorum_peer_lag_entries",
        }:
            return found
        assert time.monotonic() < deadline_s, sorted(found)
        time.sleep(0.2)


def test_what_is_written_is_what_the_code_generates() -> None:
    done = subprocess.run(
        [sys.executable, str(MONITORING / "generate.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_panels_are_complete() -> None:
    names = [rule["alert"] for rule in alert_rules()]
    assert len(names) == len(set(names)) > 10
    for rule in alert_rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    assert len(list(panels())) > 40


@pytest.mark.timeout(240)
def test_every_alert_reads_what_is_there(scrape: Scrape) -> None:
    for rule in alert_rules():
        assert missing(rule["expr"], scrape) == [], rule["alert"]
        texts = rule["annotations"]["summary"] + rule["annotations"]["description"]
        used = set(re.findall(r"\$labels\.(\w+)", texts))
        assert used <= shown(rule["expr"], scrape) | {"job"}, rule["alert"]


@pytest.mark.timeout(240)
def test_every_panel_reads_what_is_there(scrape: Scrape) -> None:
    for title, expr, legend in panels():
        assert missing(expr, scrape) == [], title
        assert set(re.findall(r"{{(\w+)}}", legend)) <= shown(expr, scrape), title


def counted_again(node: Any, nearest: str = "") -> list[str]:
    """Return metrics that all gateways report with equal values, where the nearest aggregation is
    not `max`.
    """
    if isinstance(node, promql_parser.VectorSelector):
        name = str(node.name)
        return [name] if name.startswith("kafka_") and nearest != "max" else []
    if isinstance(node, promql_parser.AggregateExpr):
        nearest = str(node.op)
    below = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "vector_selector")]
    below += getattr(node, "args", None) or ()
    return [name for one in below if one is not None for name in counted_again(one, nearest)]


def test_what_each_gateway_tells_counts_once() -> None:
    """With two gateways there are two time series of each metric."""
    told = [*((title, expr) for title, expr, _ in panels())]
    told += [(rule["alert"], rule["expr"]) for rule in alert_rules()]
    assert sum("kafka_consumergroup" in expr for _, expr in told) > 4
    for title, expr in told:
        assert counted_again(parsed(expr)) == [], title
    assert counted_again(parsed("sum by (a) (rate(kafka_x[5m]))")) == ["kafka_x"]
    assert counted_again(parsed("max by (a) (kafka_x) > 1 and deriv(kafka_y[5m]) > 0")) == [
        "kafka_y"
    ]


def test_what_is_not_there_is_noticed() -> None:
    scrape: Scrape = {"known": {"topic"}}
    assert missing("sum by (topic) (rate(known[5m]))", scrape) == []
    assert missing("rate(unknown[5m])", scrape) == ["metric unknown"]
    assert missing('known{group="g"}', scrape) == ["label group of known"]
    assert missing("sum by (partition) (known)", scrape) == ["label partition of known"]
    assert missing("known and on (peer) (known == 1)", scrape) == ["label peer of known"] * 2
    with pytest.raises(ValueError, match=r".+"):
        parsed("sum by (topic (known)")

"""A live scrape of the gateway's /metrics has kafka_exporter's names, labels and values, which its
dashboards read.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.gateway.conftest import Gateway

V2 = {"content-type": "application/vnd.kafka.v2+json"}
BINARY = {"content-type": "application/vnd.kafka.binary.v2+json"}
NAMES = {  # name: labels, of danielqsj/kafka_exporter
    "kafka_brokers": set(),
    "kafka_broker_info": {"id", "address"},
    "kafka_topic_partitions": {"topic"},
    "kafka_topic_partition_current_offset": {"topic", "partition"},
    "kafka_topic_partition_oldest_offset": {"topic", "partition"},
    "kafka_topic_partition_leader": {"topic", "partition"},
    "kafka_topic_partition_leader_is_preferred": {"topic", "partition"},
    "kafka_topic_partition_replicas": {"topic", "partition"},
    "kafka_topic_partition_in_sync_replica": {"topic", "partition"},
    "kafka_topic_partition_under_replicated_partition": {"topic", "partition"},
    "kafka_consumergroup_members": {"consumergroup"},
    "kafka_consumergroup_current_offset": {"consumergroup", "topic", "partition"},
    "kafka_consumergroup_current_offset_sum": {"consumergroup", "topic"},
    "kafka_consumergroup_lag": {"consumergroup", "topic", "partition"},
    "kafka_consumergroup_lag_sum": {"consumergroup", "topic"},
}
Sample = tuple[str, frozenset[tuple[str, str]]]


def scrape(gateway: Gateway) -> dict[Sample, float]:
    told = gateway.http.get("/metrics")
    assert told.status_code == 200
    assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(told.text)
        for sample in family.samples
    }


def at(name: str, **labels: str) -> Sample:
    return name, frozenset(labels.items())


def test_a_scrape_has_kafka_exporters_names_labels_and_values(gateway: Gateway) -> None:
    topic = gateway.topic("metrics")
    for partition, count in ((0, 7), (1, 5)):
        records = {"records": [{"value": "aGk=", "partition": partition}] * count}
        told = gateway.http.post(f"/topics/{topic}", json=records, headers=BINARY)
        assert told.status_code == 200
    config = {"name": "m", "auto.offset.reset": "earliest", "auto.commit.enable": "false"}
    made = gateway.http.post("/consumers/g-metrics", json=config, headers=V2)
    assert made.status_code == 200
    base = "/consumers/g-metrics/instances/m"
    topics = {"topics": [topic]}
    assert gateway.http.post(f"{base}/subscription", json=topics, headers=V2).status_code == 204
    read = 0
    for _ in range(40):
        accept = {"accept": "application/vnd.kafka.binary.v2+json"}
        read += len(gateway.http.get(f"{base}/records?timeout=1000", headers=accept).json())
        if read == 12:
            break
    assert read == 12
    last = [
        {"topic": topic, "partition": 0, "offset": 3},
        {"topic": topic, "partition": 1, "offset": 4},
    ]
    told = gateway.http.post(f"{base}/offsets", json={"offsets": last}, headers=V2)
    assert told.status_code == 200

    found = scrape(gateway)
    for name, labels in NAMES.items():
        samples = [set(dict(sample[1])) for sample in found if sample[0] == name]
        assert samples, f"{name} is missing"
        assert all(one == labels for one in samples), f"{name} has other labels: {samples[0]}"
    group = {"consumergroup": "g-metrics"}
    zero, one = {"topic": topic, "partition": "0"}, {"topic": topic, "partition": "1"}
    expected = {
        at("kafka_brokers"): 1,
        at("kafka_topic_partitions", topic=topic): 2,
        at("kafka_topic_partition_current_offset", **zero): 7,
        at("kafka_topic_partition_current_offset", **one): 5,
        at("kafka_topic_partition_oldest_offset", **zero): 0,
        at("kafka_topic_partition_leader", **zero): 1,
        at("kafka_topic_partition_leader_is_preferred", **zero): 1,
        at("kafka_topic_partition_replicas", **zero): 1,
        at("kafka_topic_partition_in_sync_replica", **zero): 1,
        at("kafka_topic_partition_under_replicated_partition", **zero): 0,
        at("kafka_consumergroup_members", **group): 1,
        at("kafka_consumergroup_current_offset", **group, **zero): 4,
        at("kafka_consumergroup_current_offset", **group, **one): 5,
        at("kafka_consumergroup_current_offset_sum", **group, topic=topic): 9,
        at("kafka_consumergroup_lag", **group, **zero): 3,
        at("kafka_consumergroup_lag", **group, **one): 0,
        at("kafka_consumergroup_lag_sum", **group, topic=topic): 3,
        at("odradek_gateway_consumer_instances"): 1,
        at("odradek_gateway_scrape_failed", part="groups"): 0,
        at("odradek_gateway_scrape_failed", part="offsets"): 0,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert found[at("odradek_gateway_requests_total", method="POST", status="200")] >= 4


def test_scrapes_at_once_share_an_answer_and_all_get_it(gateway: Gateway) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: scrape(gateway), range(16)))
    assert all(one[at("kafka_brokers")] == 1 for one in found)

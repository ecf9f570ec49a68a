"""A Kafka client in a pod: it writes records with acks=all, and reads them back in a group.

The image has no Kafka client, so the pod borrows librdkafka from the environment that runs the tests.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

import confluent_kafka

from tests.e2e.kubernetes.installation import Installation, client_pod

NAMESPACE = "borrowing"  # this namespace does not enforce the restricted level, which forbids hostPath volumes
RECORDS = 1_000
_PACKAGES = ("confluent_kafka", "confluent_kafka.libs")
_ROUND_TRIP = """
import sys
from confluent_kafka import Consumer, Producer
bootstrap, name, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
tls = "/etc/odradek-tls/"
options = {
    "bootstrap.servers": bootstrap, "security.protocol": "ssl", "ssl.ca.location": tls + "ca.crt",
    "ssl.certificate.location": tls + "tls.crt", "ssl.key.location": tls + "tls.key",
}
producer = Producer(options | {"acks": "all"})
errors = []
sent = {f"{name}-{number}".encode() for number in range(records)}
for value in sent:
    producer.produce("hello", value, on_delivery=lambda error, _: error and errors.append(str(error)))
assert producer.flush(60) == 0 and not errors, errors[:3]
consumer = Consumer(options | {"group.id": "verify-" + name, "auto.offset.reset": "earliest"})
consumer.subscribe(["hello"])
while sent:
    messages = consumer.consume(500, 60)
    assert messages, f"{len(sent)} records were not read"
    for message in messages:
        assert message.error() is None, message.error()
        sent.discard(message.value())
consumer.close()
print("wrote and read", records)
"""


def start(
    installation: Installation, *, hosts: Mapping[str, str] | None = None, memory: str = "512Mi"
) -> None:
    """Start the pod `kafka` with the certificate of `odradek-client-tls`. `hosts` are addresses by name."""
    cluster = installation.cluster
    cluster.kubectl("create", "namespace", NAMESPACE)
    secret = json.loads(installation.kubectl("get", "secret", "odradek-client-tls", "-o", "json"))
    secret["metadata"] = {"name": "tls", "namespace": NAMESPACE}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(secret))
    packages = Path(confluent_kafka.__file__).parents[1]
    pod = client_pod(
        "kafka",
        ["sleep", "infinity"],
        namespace=NAMESPACE,
        volumes={f"/borrowed/{name}": _folder(packages / name) for name in _PACKAGES},
        environment={"PYTHONPATH": "/borrowed"},
        hosts=hosts,
        memory=memory,
    )
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    ready = ("wait", "--for=condition=Ready", "pod/kafka", "--timeout=120s")
    cluster.kubectl(f"--namespace={NAMESPACE}", *ready)


def round_trip(installation: Installation, bootstrap: str) -> None:
    """Write records to the topic `hello` and read them back. Raises RuntimeError if the client fails."""
    words = ("python", "-c", _ROUND_TRIP, bootstrap, uuid.uuid4().hex[:8], str(RECORDS))
    said = installation.cluster.kubectl(f"--namespace={NAMESPACE}", "exec", "kafka", "--", *words)
    assert said == f"wrote and read {RECORDS}\n", said


def _folder(place: Path) -> dict[str, object]:
    return {"hostPath": {"path": str(place), "type": "Directory"}}

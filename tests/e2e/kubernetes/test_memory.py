"""Under the largest load that clients can bring, no pod exceeds its memory limit: nothing is killed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes import kafka_client
from tests.e2e.kubernetes.conftest import Report
from tests.e2e.kubernetes.installation import Installation

LOAD_S = 90
WORKLOADS = ("broker", "quorum", "gateway")
# Producers and consumers without pause, with the largest batches and fetches, and bodies as large as a gateway takes.
PRESSURE = """
import base64, http.client, json, ssl, sys, threading, time
from confluent_kafka import Consumer, Producer
tls = "/etc/odradek-tls/"
options = {
    "bootstrap.servers": "bootstrap.odradek.svc:9092", "security.protocol": "ssl", "ssl.ca.location": tls + "ca.crt",
    "ssl.certificate.location": tls + "tls.crt", "ssl.key.location": tls + "tls.key",
}
end_s = time.monotonic() + float(sys.argv[1])
done = {"produced": 0, "failed": 0, "consumed_mb": 0, "posted": 0, "refused": 0}
lock = threading.Lock()
def count(name, number=1):
    with lock:
        done[name] += number
def produce():
    producer = Producer(options | {
        "acks": "all", "message.max.bytes": 1000000, "queue.buffering.max.kbytes": 24000, "linger.ms": 20,
        "batch.size": 1000000, "compression.type": "none",
    })
    value = bytes(240_000)
    while time.monotonic() < end_s:
        try:
            producer.produce("hello", value, on_delivery=lambda error, _: count("failed" if error else "produced"))
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    producer.flush(60)
def consume(number):
    consumer = Consumer(options | {
        "group.id": f"verify-memory-{number}", "auto.offset.reset": "earliest", "fetch.max.bytes": 52428800,
        "fetch.message.max.bytes": 52428800, "queued.max.messages.kbytes": 32000, "enable.auto.commit": False,
    })
    consumer.subscribe(["hello"])
    while time.monotonic() < end_s:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            count("consumed_mb", len(message.value()) / 1e6)
    consumer.close()
def post():
    context = ssl.create_default_context(cafile=tls + "ca.crt")
    context.load_cert_chain(tls + "tls.crt", tls + "tls.key")
    value = base64.b64encode(bytes(600_000)).decode()
    body = json.dumps({"records": [{"value": value} for _ in range(int(sys.argv[2]) // len(value))]})
    while time.monotonic() < end_s:
        try:
            connection = http.client.HTTPSConnection("gateway.odradek.svc", 8082, context=context, timeout=60)
            connection.request("POST", "/topics/hello", body, {"Content-Type": "application/vnd.kafka.binary.v2+json"})
            count("posted" if connection.getresponse().status == 200 else "refused")
        except OSError:
            count("refused")
        finally:
            connection.close()
work = [threading.Thread(target=produce) for _ in range(4)]
work += [threading.Thread(target=consume, args=(number,)) for number in range(8)]
work += [threading.Thread(target=post) for _ in range(6)]
for one in work:
    one.start()
for one in work:
    one.join()
print(json.dumps(done))
"""
GROUPS = Path("/sys/fs/cgroup/memory")
BODY_BYTES = 30 << 20  # a gateway of the dev overlay takes 32 MiB
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


def memory_of(installation: Installation) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each pod of a workload, the bytes of its main container's anonymous memory, and how often the
    kernel killed a process of that container for lack of memory.
    """
    for pod in installation.cluster.objects("pods"):
        name = pod["metadata"]["labels"].get("app.kubernetes.io/name")
        if name not in WORKLOADS:
            continue
        for status in pod["status"].get("containerStatuses", ()):
            if "containerID" not in status:  # the container has not started
                continue
            container = status["containerID"].rpartition("/")[2]
            for file in GROUPS.glob(f"*/kubepods/*/*/{container}/memory.stat"):
                yield (
                    pod["metadata"]["name"],
                    _number(file, "total_rss"),
                    _number(file.with_name("memory.oom_control"), "oom_kill"),
                )


def _number(file: Path, name: str) -> int:
    """Return a number from a file of lines with a name and a number. The number is 0 if the control group was removed
    meanwhile.
    """
    try:
        return int(dict(line.split() for line in file.read_text().splitlines())[name])
    except OSError:
        return 0


def test_no_pod_is_killed_under_the_largest_load(
    installation: Installation, report: Report
) -> None:
    kafka_client.start(installation, memory="2Gi")
    words = ("exec", "kafka", "--", "python", "-c", PRESSURE, str(LOAD_S), str(BODY_BYTES))
    command = installation.cluster.command(f"--namespace={kafka_client.NAMESPACE}", *words)
    peaks: dict[str, int] = {}
    kills: dict[str, int] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        while load.poll() is None:
            for pod, held_bytes, killed in memory_of(installation):
                peaks[pod] = max(peaks.get(pod, 0), held_bytes)
                kills[pod] = max(kills.get(pod, 0), killed)
        assert load.stdout is not None
        done = json.loads(load.stdout.read())
    report(done=done, peaks_mib={pod: held >> 20 for pod, held in sorted(peaks.items())})
    assert done["produced"] > 0
    assert done["consumed_mb"] > 0
    assert done["posted"] > 0
    assert done["failed"] == 0
    assert len(peaks) >= 8
    assert set(kills.values()) == {0}
    assert installation.restarts() == {}

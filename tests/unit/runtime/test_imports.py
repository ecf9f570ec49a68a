"""What a process does not import before it serves: packages that few processes need and that take long to import."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("odradek_broker.process", {"kafka.admin", "kafka.consumer", "scramp", "jwt", "fastapi"}),
        ("odradek_metadata_quorum.process", {"kafka", "scramp", "jwt", "fastapi"}),
        ("odradek_gateway.process", {"kafka", "httpx", "jwt", "scramp"}),
    ],
)
def test_a_process_does_not_import_what_it_rarely_needs(module: str, unwanted: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert unwanted & set(done.stdout.split()) == set()


def test_clients_of_kafka_python_work_beside_the_messages() -> None:
    code = (
        "import odradek_protocol.kafka.messages, kafka, kafka.errors as errors\n"
        "from kafka import KafkaConsumer, KafkaProducer, protocol\n"
        "assert kafka.errors is errors and kafka.protocol is protocol\n"
        "assert kafka.admin.KafkaAdminClient is kafka.KafkaAdminClient"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""librdkafka's own tests of transactions against Odradek: unmodified, and while brokers are killed.

They are 0098 (what a consumer sees of transactions of the Java client and of librdkafka), 0103 (the
transactional producer) and 0129 (fetches in which everything was aborted).
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from odradek.embedded import EmbeddedCluster
from tests.e2e.kafka.test_java_tools import jars
from tests.e2e.transactions.broker_kills import killing
from tests.e2e.transactions.rust_programs import TOLERANT, librdkafka_tests

__all__ = ["jars", "librdkafka_tests"]  # fixtures
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(1_800)]
RUN_S_MAX = 400.0
RUN_CLASS = """#!/bin/sh
exec java -Xmx256M -XX:TieredStopAtLevel=1 -cp "$CLASSPATH:$KAFKA_PATH/libs/*" "$@"
"""


@pytest.fixture
def kafka_release(jars: Path, tmp_path: Path) -> Path:
    """Return a folder with the two parts of a release of Kafka that the Java half of 0098 uses."""
    folder = tmp_path / "kafka"
    (folder / "bin").mkdir(parents=True)
    (folder / "libs").symlink_to(jars)
    run_class = folder / "bin" / "kafka-run-class.sh"
    run_class.write_text(RUN_CLASS)
    run_class.chmod(0o755)
    return folder


# librdkafka's tests create topics with three replicas.
@pytest.mark.parametrize("cluster", [3], indirect=True, ids=["three brokers"])
@pytest.mark.parametrize("kills", [False, True], ids=["", "while brokers are killed"])
@pytest.mark.parametrize("number", ["0098", "0103", "0129"])
def test_librdkafkas_test_passes(
    cluster: EmbeddedCluster,
    librdkafka_tests: Path,
    kafka_release: Path,
    tmp_path: Path,
    number: str,
    kills: bool,
) -> None:
    config = tmp_path / "test.conf"
    config.write_text(f"bootstrap.servers={cluster.kafka_bootstrap}\n")
    source = librdkafka_tests.parent
    environment = os.environ | {
        "TESTS": number,
        "RDKAFKA_TEST_CONF": str(config),
        "KAFKA_PATH": str(kafka_release),
        "TEST_KAFKA_VERSION": "4.0.0",
        "LD_LIBRARY_PATH": f"{source / 'src'}:{source / 'src-cpp'}",
    }
    runs = 0
    with killing(cluster) if kills else nullcontext() as brokers:
        while runs == 0 or (brokers is not None and brokers.is_short):
            ran = subprocess.run(
                [f"./{TOLERANT if kills else 'test-runner'}", "-p1"],
                cwd=librdkafka_tests,
                env=environment,
                capture_output=True,
                text=True,
                timeout=RUN_S_MAX,
                check=False,
            )
            output = ran.stdout + ran.stderr
            assert ran.returncode == 0, output[-5_000:]
            # A test is skipped, without a failure, if its build lacks something or its broker is too old.
            assert set(re.findall(rf"{number}_\w+ +\| +(\w+) \|", output)) == {"PASSED"}, output
            runs += 1
    print(f"{runs} runs passed, {brokers.count if brokers else 0} brokers killed")

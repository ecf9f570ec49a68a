"""Kafka's DumpLogSegments, run by a JVM, decodes our records of `__transaction_state`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from odradek_broker.transactions.transaction import (
    EndedBy,
    Ledger,
    Outcome,
    Staged,
    TransactionRecord,
    TransactionStatus,
)
from odradek_broker.transactions.transaction_codec import encode
from odradek_protocol.identity import ProducerEpoch
from odradek_protocol.records import BatchBuilder
from tests.tools import need
from tests.unit.transactions.coordinator import ORDERS, identity
from tests.unit.transactions.test_transaction_codec import EMPTY, PREPARED

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]
POM = Path(__file__).parents[1] / "log" / "kafka_tools" / "pom.xml"


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    need("Maven and a JDK")
    jars = tmp_path_factory.mktemp("jars")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(POM), *goal], check=True)
    return f"{jars}{os.sep}*"


def test_every_field_of_kafka_is_read_and_ours_are_skipped(class_path: str, tmp_path: Path) -> None:
    ours = replace(
        PREPARED,
        last_epoch=ProducerEpoch(32_766),
        ended_by=EndedBy.OPERATOR,
        last_outcome=Outcome(identity(4_000, 32_766), is_commit=True),
        staged=Staged(step=3, member="m", prepared_ms=4),
        ledger=Ledger(last_step=2, members=8),
    )
    completed = replace(EMPTY, status=TransactionStatus.COMPLETE_ABORT)
    builder = BatchBuilder(1 << 20)
    for state in (EMPTY, ours, completed, None):
        key, value = encode(TransactionRecord(ORDERS, state))
        builder.append(key, value, None, 1_700_000_000_000)
    directory = tmp_path / "__transaction_state-0"
    directory.mkdir()
    (directory / f"{0:020}.log").write_bytes(builder.build(leader_epoch=0))
    tool = "org.apache.kafka.tools.DumpLogSegments"
    words = ["--transaction-log-decoder", "--files", str(directory / f"{0:020}.log")]
    done = subprocess.run(
        ["java", "-cp", class_path, tool, *words], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "payload" in line]
    assert len(lines) == 4, done.stdout
    empty, prepared, complete, forgotten = lines
    for line in lines:
        assert '"transactionalId":"orders-1"' in line
    assert '"producerId":4000' in empty
    assert '"producerEpoch":7' in empty
    assert '"transactionTimeoutMs":60000' in empty
    assert '"transactionStatus":0' in empty
    assert '"previousProducerId":3999' in prepared
    assert '"nextProducerId":4001' in prepared
    assert '"clientTransactionVersion":2' in prepared
    assert '{"topic":"in","partitionIds":[0,3]}' in prepared
    assert '{"topic":"out","partitionIds":[1]}' in prepared
    assert '"transactionStatus":5' in complete
    assert "<DELETE>" in forgotten

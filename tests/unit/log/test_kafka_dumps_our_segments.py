"""Kafka's DumpLogSegments, run by a JVM, reads every file of a partition and finds no fault."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from random import Random

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.storage import DiskStorage
from odradek_protocol.identity import Offset
from odradek_protocol.records.control import ControlType, encode_marker
from tests.tools import need
from tests.unit.log.material import Broker, batch

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]
POM = Path(__file__).parent / "kafka_tools" / "pom.xml"
CONFIG = LogConfig(
    segment_bytes=20_000,
    index_interval_bytes=500,
    file_delete_delay_ms=0,
    cleanup_compact=True,
    min_cleanable_dirty_ratio=0.0,
)


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    need("Maven and a JDK")
    jars = tmp_path_factory.mktemp("jars")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(POM), *goal], check=True)
    return f"{jars}{os.sep}*"


def dump(class_path: str, directory: Path, *, has_gaps: bool = False) -> tuple[str, str]:
    """Return the tool's output on all files, and its complaints."""
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    files = [str(p) for p in sorted(directory.iterdir()) if p.suffix in suffixes]
    tool = "org.apache.kafka.tools.DumpLogSegments"
    command = ["java", "-cp", class_path, tool, "--deep-iteration", "--files", ",".join(files)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # the tool reports a gap before each segment that does not begin at offset 0; log4j is absent
    followed = r"  -?\d+ is followed by" if has_gaps else "  -1 is followed by"
    quirks = rf"Non-consecutive|{followed}|log4j|slf4j|StatusLogger|WARN"
    lines = [line for line in done.stderr.splitlines() if not re.search(quirks, line, re.I)]
    return done.stdout, "\n".join(lines).strip()


def filled(path: Path) -> Broker:
    random = Random(3)
    broker = Broker(DiskStorage(), path, CONFIG)
    log = broker.log
    for number in range(200):
        keys = [b"key-%d" % random.randrange(20) for _ in range(19)]
        data = batch(
            log.log_end_offset,
            count=random.randrange(1, 19),
            leader_epoch=number // 50,
            timestamp_ms=random.randrange(1000, 100_000),
            value_bytes=random.randrange(100),
            keys=keys,
        )
        log.append(data, now_ms=0)
    for producer_id in (1, 2, 3):
        data = batch(
            log.log_end_offset,
            count=5,
            leader_epoch=9,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append(data, now_ms=0)
        marker = encode_marker(
            ControlType.COMMIT if producer_id == 3 else ControlType.ABORT,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=3,
            timestamp_ms=200_000,
            base_offset=log.log_end_offset,
            leader_epoch=9,
        )
        log.append(marker, now_ms=0)
    for number in range(7):
        data = batch(
            log.log_end_offset,
            count=2,
            leader_epoch=9,
            producer_id=50,
            producer_epoch=1,
            base_sequence=2 * number,
            timestamp_ms=300_000 + number,
        )
        log.append(data, now_ms=0)
    log.set_high_watermark(log.log_end_offset)
    return broker


def test_every_file_is_read_and_right(class_path: str, tmp_path: Path) -> None:
    broker = filled(tmp_path / "data")
    broker.stop_and_start()
    said, complaints = dump(class_path, broker.log.directory)
    assert not complaints
    assert said.count("baseOffset:") == 200 + 2 * 3 + 7
    assert re.search(r"producerId: 1 firstOffset: \d+ lastOffset: \d+ lastStableOffset", said)
    newest = said.rsplit("Dumping", 1)[1]
    assert "producerId: 50 producerEpoch: 1" in newest
    assert "firstSequence: 12 lastSequence: 13" in newest
    assert said.count("isvalid: true") == said.count("baseOffset:")


def test_after_compaction_too(class_path: str, tmp_path: Path) -> None:
    broker = filled(tmp_path / "data")
    log = broker.log
    broker.sync(full=True)
    job = log.begin_compaction(now_ms=400_000)
    assert job is not None
    while not job.is_done:
        job.run_slice()
        log.install_compacted(job)
    assert 0 < job.records_kept < job.records_read / 4
    broker.remove_files(now_ms=500_000)
    broker.stop_and_start()
    said, complaints = dump(class_path, broker.log.directory, has_gaps=True)
    assert not complaints
    assert said.count("isvalid: true") == said.count("baseOffset:")


def test_after_a_kill_and_a_cut(class_path: str, tmp_path: Path) -> None:
    broker = filled(tmp_path / "data")
    broker.log.truncate_to(Offset(1500))
    broker.append(5, leader_epoch=12)
    broker.directory.close(broker_epoch=None)  # no clean marker: as after kill -9
    broker.start()
    said, complaints = dump(class_path, broker.log.directory)
    assert not complaints
    assert "baseOffset:" in said

"""Pipelines run on a standalone cluster: a Spark master and a worker, whose executors have only
what the driver sends them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.e2e.spark.driver_process import DriverProcess
from tests.e2e.spark.pipeline_cases import CASES, Scene
from tests.e2e.spark.short_jvm import AS_ARGUMENTS

READY_S_MAX = 120.0
_CLASSES = "org.apache.spark.deploy"


@contextmanager
def daemon(log: Path, ready: str, *command: str) -> Iterator[str]:
    """Run a Spark process; once a line of its log matches the pattern `ready`, yield the pattern's
    group.
    """
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    process = subprocess.Popen(
        [str(spark_class), *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(log.parent)},
    )
    found: list[str] = []
    is_ready = threading.Event()

    def follow() -> None:
        assert process.stderr is not None
        with log.open("w") as file:
            for line in process.stderr:
                file.write(line)
                match = re.search(ready, line)
                if match is not None and not is_ready.is_set():
                    found.append(match[1])
                    is_ready.set()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        assert is_ready.wait(READY_S_MAX), log.read_text()
        yield found[0]
    finally:
        process.terminate()
        process.wait(60)
        follower.join(30)
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_pipeline_runs_on_a_standalone_cluster(scene: Scene, tmp_path: Path) -> None:
    case = CASES["format-adaptation-avro"]
    ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    master_log, worker_log = tmp_path / "master.log", tmp_path / "worker.log"
    with (
        daemon(
            *(master_log, r"Starting Spark master at (spark://\S+)"),
            *(f"{_CLASSES}.master.Master", *ports),
        ) as master,
        daemon(
            *(worker_log, r"(Successfully registered with master)"),
            *(f"{_CLASSES}.worker.Worker", *ports, "--cores", "2", "--memory", "1g", master),
        ),
        DriverProcess(
            tmp_path / "driver.log",
            *(case.pipeline, *case.arguments(scene), "--bootstrap", scene.topics.bootstrap),
            *("--checkpoint", str(tmp_path / "checkpoint"), "--available-now"),
            *("--master", master, "--spark", "spark.driver.host=127.0.0.1"),
            *("--spark", "spark.ui.enabled=false", "--spark", "spark.executor.memory=512m"),
            *("--spark", f"spark.pyspark.python={sys.executable}"),
            *AS_ARGUMENTS,
        ) as driver,
    ):
        assert driver.wait(600) == 0, driver.log()
        assert driver.rows() == case.rows(scene)
    assert list(tmp_path.glob("app-*/*/stderr")), "the worker started an executor"
    assert case.check(scene) == 0

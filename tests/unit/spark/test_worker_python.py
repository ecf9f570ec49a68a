"""The interpreter of Spark's workers runs without Spark's zip files on its path if the same pyspark
is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from pyspark_odradek.spark_session import script_of, worker_python

HOME = Path(pyspark.__file__).parent
ASK = "import os, sys, pyspark; print(os.environ['PYTHONPATH'], pyspark.__file__, *sys.argv[1:])"


@pytest.fixture(autouse=True)
def _no_spark_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)


def test_a_local_worker_imports_the_installed_pyspark_and_keeps_the_rest_of_its_path() -> None:
    zips = [str(HOME / "python/lib/pyspark.zip"), *map(str, (HOME / "python/lib").glob("py4j*"))]
    path = os.pathsep.join([*zips, "/some jar", *zips, "/a/*"])
    told = subprocess.run(
        [worker_python("local[2]"), "-c", ASK, "an argument"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert told == f"/some jar:/a/* {pyspark.__file__} an argument"


def test_names_with_blanks_and_stars_are_taken_literally(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(script_of("/usr/bin/env", ["/a b/*.zip", "/it's.zip"]))
    script.chmod(0o700)
    told = subprocess.run(
        [str(script)],
        env={"PYTHONPATH": "/a b/*.zip:/a b/x.zip:/it's.zip:/c"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "PYTHONPATH=/a b/x.zip:/c\n" in told


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "localhost"])
def test_elsewhere_the_interpreter_is_this_one(master: str) -> None:
    assert worker_python(master) == sys.executable


def test_another_spark_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python("local[*]") == sys.executable

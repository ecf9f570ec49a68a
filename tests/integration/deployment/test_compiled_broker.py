"""The broker with compiled modules (`proto/compile_modules.py`) behaves as the interpreted one.

Its unit tests pass, clients of Kafka get the same responses, and the simulator's seeds have the same history.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import need

ROOT = Path(__file__).parents[3]
COMPILE_S_MAX = 1_500  # a minute and a half of CPU, on a machine that other tests share
RUN_S_MAX = 900
SEEDS = (1, 2, 3, 4, 6, 7)
UNIT_TESTS = (
    "tests/unit/partition",
    "tests/unit/log",
    "tests/unit/replication",
    "tests/unit/groups",
    "tests/unit/kafka/test_connection.py",
    "tests/unit/kafka/test_connection_logins.py",
    "tests/unit/kafka/test_frame_file.py",
    "tests/unit/kafka/test_frames.py",
)
CLIENT_TESTS = ("tests/e2e/kafka/test_confluent_client.py", "tests/e2e/kafka/test_kafka_python.py")
_WHERE = "import odradek_broker.replication.partition_host as host; print(host.__file__)"
_HISTORIES = """
import sys
from tests.sim.simulation import run_seed
for result in map(run_seed, map(int, sys.argv[1:])):
    print(result.seed, result.digest, result.operations, [str(violation) for violation in result.violations])
"""

pytestmark = pytest.mark.timeout(COMPILE_S_MAX + RUN_S_MAX)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with the compiled package."""
    need("a C compiler")
    place = tmp_path_factory.mktemp("compiled")
    script = ROOT / "proto" / "compile_modules.py"
    done = subprocess.run(
        [sys.executable, str(script), str(place)],
        capture_output=True, text=True, check=False, timeout=COMPILE_S_MAX,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def _run(*arguments: str, compiled: Path | None) -> str:
    """Run Python with the compiled broker, or with the interpreted one, and return its output."""
    paths = [str(ROOT)] if compiled is None else [str(compiled), str(ROOT)]
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return done.stdout


def test_pythonpath_chooses_the_form(compiled: Path) -> None:
    assert _run("-c", _WHERE, compiled=compiled).strip().endswith(".so")
    assert _run("-c", _WHERE, compiled=None).strip().endswith(".py")


@pytest.mark.parametrize("tests", [UNIT_TESTS, CLIENT_TESTS], ids=["units", "clients"])
def test_tests_pass_with_the_compiled_broker(compiled: Path, tests: tuple[str, ...]) -> None:
    marks = "not long and not interpreted"
    told = _run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, *tests,
        compiled=compiled,
    )  # fmt: skip
    assert " passed" in told


def test_seeds_of_the_simulator_have_the_same_history_in_both_forms(compiled: Path) -> None:
    seeds = [str(seed) for seed in SEEDS]
    assert _run("-c", _HISTORIES, *seeds, compiled=compiled) == _run(
        "-c", _HISTORIES, *seeds, compiled=None
    )

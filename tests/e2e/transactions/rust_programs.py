"""The copier of rdkafka, and librdkafka's own tests, whose source comes with rdkafka's package.

Both are built once, below build/.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.kafka.test_other_languages import run
from tests.tools import need

HERE: Final = Path(__file__).parent
BUILD: Final = HERE.parents[2] / "build"
BUILD_S_MAX: Final = 1_500
# Features of librdkafka that the tests of transactions do not use.
WITHOUT: Final = ("gssapi", "ssl", "zstd", "curl", "lz4-ext")
TOLERANT: Final = "tolerant-test-runner"
# librdkafka's test harness fails a test when its client reports any error, and a client reports each lost connection.
ERROR_CALLBACK: Final = (
    "test_error_cb(rd_kafka_t *rk, int err, const char *reason, void *opaque) {\n"
)
LOST_CONNECTION: Final = """\
        if (err == RD_KAFKA_RESP_ERR__TRANSPORT || err == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
                return;
"""


def rust_project() -> Path:
    """Return a copy of the copier's Cargo project, in which its lock and its programs may be written."""
    need("Rust", "a C++ compiler and RapidJSON")
    folder = BUILD / "rust-copier"
    shutil.copytree(HERE / "rust_copier", folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def rust_copier() -> Path:
    """Return the path of the copier."""
    folder = rust_project()
    run("cargo", "build", "--release", "--quiet", folder=folder, timeout_s=BUILD_S_MAX)
    return folder / "target/release/rust-copier"


@pytest.fixture(scope="session")
def librdkafka_tests() -> Path:
    """Return the folder of librdkafka's tests: with `test-runner` and the libraries that it loads, and with `TOLERANT`,
    for which a lost connection is no failure of a test.
    """
    folder = BUILD / "librdkafka" / "tests"
    if (folder / TOLERANT).exists():
        return folder
    metadata = run(
        "cargo", "metadata", "--format-version=1", folder=rust_project(), timeout_s=BUILD_S_MAX
    )
    [package] = [p for p in json.loads(metadata)["packages"] if p["name"] == "rdkafka-sys"]
    source = folder.parent
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(Path(package["manifest_path"]).parent / "librdkafka", source)
    options = [f"--disable-{option}" for option in WITHOUT]
    run("./configure", *options, folder=source, timeout_s=BUILD_S_MAX)
    make = ["make", f"-j{os.cpu_count() or 1}"]
    run(*make, "libs", folder=source, timeout_s=BUILD_S_MAX)
    run(*make, "test-runner", folder=folder, timeout_s=BUILD_S_MAX)
    shutil.copy(folder / "test-runner", folder / "strict")
    harness = folder / "test.c"
    text = harness.read_text()
    assert text.count(ERROR_CALLBACK) == 1, "this release has another harness"
    harness.write_text(text.replace(ERROR_CALLBACK, ERROR_CALLBACK + LOST_CONNECTION))
    run(*make, "test-runner", folder=folder, timeout_s=BUILD_S_MAX)
    (folder / "test-runner").rename(folder / TOLERANT)
    (folder / "strict").rename(folder / "test-runner")
    return folder

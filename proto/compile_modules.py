"""Compile the modules of a broker's request path with mypyc: `python proto/compile_modules.py DIRECTORY [PYTHON]`.

DIRECTORY gets a copy of the package `odradek_broker` with the compiled modules beside their sources, and nothing in the
checkout changes: `PYTHONPATH=DIRECTORY` runs the compiled broker, and the checkout by itself runs the interpreted one.
A wheel has compiled modules if `ODRADEK_COMPILED` is set when it is built (build_hook.py). The compiler takes a
minute and a half.

`ODRADEK_COMPILED` is 1, or the path of the Python (PYTHON above) of an environment with Odradek's dependencies, whose
types the compiler reads.

What a compiled module must not do, because it would behave in another way (tests/tidy/test_compiled_modules.py):

- define a struct with another base than those of `odradek_broker.compiled`, or a dataclass with `slots=True`;
- compare tuples by identity if their type has a known length (`tuple[int, int]`): they are no objects then;
- be changed from outside: no code and no test may replace a method or a constant of it, and no class outside of these
  modules may inherit from one of theirs without `mypyc_attr(allow_interpreted_subclasses=True)`.

Arguments and attributes are checked against their annotations at run time, so a fake must inherit from the real
class or replace a class that is not compiled.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "services" / "broker" / "odradek_broker"
TYPES_FROM = ("proto/python", "services/runtime", "services/broker")
GROUP = "odradek_broker._native"
"""The name of the extension that has the code of all compiled modules; mypyc appends `__mypyc`."""

MODULES = (
    "coordination/coordinator_host.py",
    "coordination/hosted_shard.py",
    "coordination/turn_writes.py",
    "groups/group_shard.py",
    "groups/offset_shard.py",
    "kafka/connection.py",
    "kafka/frames.py",
    "kafka/later.py",
    "kafka/requests/groups/offset_commit.py",
    "kafka/requests/records/produce.py",
    "kafka/response_line.py",
    "log/log_reads.py",
    "log/partition_log.py",
    "log/producer_state.py",
    "log/segments/indexes.py",
    "log/segments/segment.py",
    "log/segments/segment_list.py",
    "partition/followers.py",
    "partition/high_watermark.py",
    "partition/isr.py",
    "partition/leader.py",
    "partition/log_positions.py",
    "partition/produces.py",
    "partition/replica.py",
    "replication/batch_checks.py",
    "replication/client_requests.py",
    "replication/partition_host.py",
    "replication/produce_check.py",
)
"""In the package `odradek_broker`; together, as a call from one compiled module to another costs least."""


def compile_modules(target: Path, python: str = sys.executable) -> None:
    """Put the package `odradek_broker`, with compiled modules, into the directory `target`.

    `python` is the interpreter of an environment with Odradek's dependencies, and of the same version as this one. If
    `ODRADEK_COMPILED_CACHE` names a directory, what was compiled from the same sources is taken from there.
    """
    target.mkdir(parents=True, exist_ok=True)
    cache = os.environ.get("ODRADEK_COMPILED_CACHE")
    if not cache:
        _compile(target, python)
        return
    kept = Path(cache, fingerprint())
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (kept / PACKAGE.name).exists():
            _compile(kept, python)
    shutil.rmtree(target / PACKAGE.name, ignore_errors=True)
    shutil.copytree(kept / PACKAGE.name, target / PACKAGE.name)


def _compile(target: Path, python: str) -> None:
    with tempfile.TemporaryDirectory(prefix="odradek-compile-") as directory:
        command = [sys.executable, __file__, "--build", directory, python]
        roots = os.pathsep.join(str(ROOT / root) for root in TYPES_FROM)
        subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"MYPYPATH": roots})
        fresh = Path(directory, "package")
        shutil.copytree(
            PACKAGE, fresh, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
        )
        shutil.copytree(Path(directory, "lib", PACKAGE.name), fresh, dirs_exist_ok=True)
        shutil.rmtree(target / PACKAGE.name, ignore_errors=True)
        shutil.copytree(fresh, target / f"{PACKAGE.name}.new")
        Path(target, f"{PACKAGE.name}.new").rename(target / PACKAGE.name)


def fingerprint() -> str:
    """Return a hash of what the compiled modules depend on: sources, this file, Python and mypy."""
    digest = hashlib.sha256(f"{sys.version} {version('mypy')} {version('setuptools')}".encode())
    for root in TYPES_FROM:
        for path in sorted(Path(ROOT, root).rglob("*.py*")):
            if path.suffix in (".py", ".pyi"):
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:16]


def _build(directory: Path, python: str) -> None:
    """Compile into `directory`. It is a process of its own, because mypyc needs its working directory."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    options = [
        # `make check` is strict, in an environment that has the stubs of all packages.
        "--config-file=",
        "--ignore-missing-imports",
        "--follow-imports=silent",
        "--disallow-subclassing-any",  # without the types of msgspec a struct would not be seen as one
        f"--python-executable={python}",
        f"--cache-dir={directory / 'cache'}",
    ]
    modules = [str((PACKAGE / module).relative_to(ROOT)) for module in MODULES]
    found = mypycify(
        [*options, *modules],
        opt_level="2",
        debug_level="0",
        group_name=GROUP,
        target_dir=str(directory / "c"),
    )
    command = build_ext(Distribution({"name": "odradek", "ext_modules": found}))
    command.build_lib = str(directory / "lib")
    command.build_temp = str(directory / "objects")
    command.finalize_options()
    command.run()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        _build(Path(sys.argv[2]), sys.argv[3])
    else:
        place = Path(sys.argv[1]).resolve()
        compile_modules(place, *sys.argv[2:3])
        print(f"PYTHONPATH={place}")

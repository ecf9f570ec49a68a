"""Compile the modules of a broker's request path with mypyc: `python proto/compile_modules.py DIRECTORY [PYTHON]`.

The script writes a copy of the package `odradek_broker` into DIRECTORY, with the compiled modules next to their source
files. The checkout does not change: it contains the interpreted broker, and `PYTHONPATH=DIRECTORY` runs the compiled
one. Compilation takes about 90 s.

PYTHON is the interpreter of an environment with Odradek's dependencies, whose types the compiler reads; the default is
the interpreter that runs this script. A wheel has compiled modules if the environment variable `ODRADEK_COMPILED` is
set when it is built (build_hook.py): to 1, or to the path of such an interpreter.

A compiled module behaves differently from an interpreted one in a few ways, so these rules apply to it
(tests/tidy/test_compiled_modules.py checks the first):

- It must not define a struct whose base class is not in `odradek_broker.compiled`, or a dataclass with `slots=True`.
- It must not compare tuples by identity if their type has a known length (`tuple[int, int]`), because in compiled code
  such tuples are not objects.
- No other code and no test may replace one of its methods or constants. A class outside the compiled modules may
  inherit from a compiled class only if that class has `mypyc_attr(allow_interpreted_subclasses=True)`.
- Arguments and attributes are checked against their annotations at run time. A fake must therefore inherit from the
  real class, or replace a class that is not compiled.
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
"""The name of the extension module that contains all compiled code. mypyc appends `__mypyc` to it."""

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
"""The modules of the package `odradek_broker` that are compiled. They are compiled together, because mypyc makes calls
between modules of one group cheap."""


_CONFIG = """
# Types are checked only loosely here: `make check` checks them strictly, with the stubs of all packages.
[mypy]
ignore_missing_imports = True
follow_imports = silent
# Fails if msgspec's types are missing; structs would be compiled wrongly.
disallow_subclassing_any = True

[mypy-odradek_protocol.rpc.*]
ignore_errors = True
"""


def compile_modules(target: Path, python: str = sys.executable) -> None:
    """Write the package `odradek_broker`, with compiled modules, into the directory `target`.

    `python` is the interpreter of an environment with Odradek's dependencies. It must have the same version as the
    interpreter that runs this script. If `ODRADEK_COMPILED_CACHE` names a directory that has the package as compiled
    from the same sources, that package is copied. If the directory does not have it, the new package is also stored in
    the directory.
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
    place(kept / PACKAGE.name, target)


def _compile(target: Path, python: str) -> None:
    with tempfile.TemporaryDirectory(prefix="odradek-compile-") as directory:
        command = [sys.executable, __file__, "--build", directory, python]
        roots = os.pathsep.join(str(ROOT / root) for root in TYPES_FROM)
        subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"MYPYPATH": roots})
        fresh = Path(directory, "package", PACKAGE.name)
        shutil.copytree(
            PACKAGE, fresh, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
        )
        shutil.copytree(Path(directory, "lib", PACKAGE.name), fresh, dirs_exist_ok=True)
        place(fresh, target)


def place(package: Path, target: Path) -> None:
    """Copy a package into the directory `target`, where it replaces an earlier copy.

    A copy appears whole or not at all, whenever this process is killed: the package is copied under another name and
    renamed. Processes that place a package into the same directory wait for each other.
    """
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A process that was killed while it copied may have left such directories.
        for left in target.glob(f"{package.name}.*"):
            shutil.rmtree(left)
        shutil.copytree(package, target / f"{package.name}.new")
        if (target / package.name).exists():
            (target / package.name).rename(target / f"{package.name}.old")
        (target / f"{package.name}.new").rename(target / package.name)
        shutil.rmtree(target / f"{package.name}.old", ignore_errors=True)


def fingerprint() -> str:
    """Return a hash of everything on which the compiled modules depend: the sources, this file, and the versions of
    Python, mypy and setuptools."""
    digest = hashlib.sha256(f"{sys.version} {version('mypy')} {version('setuptools')}".encode())
    for root in TYPES_FROM:
        for path in sorted(Path(ROOT, root).rglob("*.py*")):
            if path.suffix in (".py", ".pyi"):
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:16]


def _build(directory: Path, python: str) -> None:
    """Compile the modules into `directory`. This runs in a separate process, because mypyc depends on the working
    directory."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    config = directory / "mypy.ini"
    config.write_text(_CONFIG)
    options = [
        f"--config-file={config}",
        f"--python-executable={python}",
        f"--cache-dir={directory / 'cache'}",
    ]
    modules = [str((PACKAGE / module).relative_to(ROOT)) for module in MODULES]
    extensions = mypycify(
        [*options, *modules],
        opt_level="2",
        debug_level="0",
        group_name=GROUP,
        target_dir=str(directory / "c"),
    )
    command = build_ext(Distribution({"name": "odradek", "ext_modules": extensions}))
    command.build_lib = str(directory / "lib")
    command.build_temp = str(directory / "objects")
    command.finalize_options()
    command.run()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        _build(Path(sys.argv[2]), sys.argv[3])
    else:
        directory = Path(sys.argv[1]).resolve()
        compile_modules(directory, *sys.argv[2:3])
        print(f"PYTHONPATH={directory}")

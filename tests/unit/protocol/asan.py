"""Fuzzes the C codec under AddressSanitizer and UndefinedBehaviorSanitizer, in a separate
process.

    python -m tests.unit.protocol.asan CASES [SEED]

Python's objects come from malloc in that process, so that a read past the end of one is detected.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g"
RUN_WITH_CODEC = """
import importlib.machinery, importlib.util, runpy, sys
name, path = "odradek_protocol.records._codec", sys.argv.pop(1)
class Finder:
    @staticmethod
    def find_spec(fullname, search_path=None, target=None):
        if fullname == name:
            loader = importlib.machinery.ExtensionFileLoader(name, path)
            return importlib.util.spec_from_loader(name, loader)
sys.meta_path.insert(0, Finder)
from odradek_protocol.records import _codec
assert _codec.__spec__.loader.path == path, _codec
runpy.run_module("tests.unit.protocol.fuzz", run_name="__main__", alter_sys=True)
"""


def sanitizer_libraries() -> list[str]:
    """Return the paths of the compiler's sanitizers; empty if it has none."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    paths = []
    for library in ("libasan.so", "libubsan.so"):
        command = [*compiler, f"-print-file-name={library}"]
        try:
            path = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return []
        if not Path(path.strip()).is_absolute():
            return []
        paths.append(path.strip())
    return paths


def run(cases: int, seed: int) -> subprocess.CompletedProcess[str]:
    """Build the instrumented codec and fuzz it. A finding makes the exit status non-zero and is written to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        codec = Path(folder, "_codec.abi3.so")
        subprocess.run(
            [sys.executable, str(ROOT / "proto" / "compile_codec.py"), str(codec)],
            env={**os.environ, "ODRADEK_CODEC_FLAGS": SANITIZERS},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return subprocess.run(
            [sys.executable, "-c", RUN_WITH_CODEC, str(codec), str(cases), str(seed)],
            cwd=ROOT,
            env={
                **os.environ,
                "LD_PRELOAD": " ".join(sanitizer_libraries()),
                "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
                "PYTHONMALLOC": "malloc",
            },
            check=False,
            capture_output=True,
            text=True,
        )


if __name__ == "__main__":
    done = run(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    sys.exit(done.returncode)

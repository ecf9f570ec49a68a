"""Compile the record codec `_codec.c` to a Python extension in the same folder: `python proto/compile_codec.py`.

The build hook runs this script for every wheel and editable install. Run it by hand after a change of `_codec.c`. It
prints the path of the extension. If no C compiler works, the exit status is 1, the compiler's messages are on standard
error, and the slower Python codec will be used.

The environment variable `CC` names the compiler, and `ODRADEK_CODEC_FLAGS` adds flags. With `ODRADEK_PURE_PYTHON=1` no
extension is built. An optional argument is the path of the extension to write.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).parent / "python" / "odradek_protocol" / "records" / "_codec.c"
FLAGS = ["-O3", "-fPIC", "-shared", "-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra"]
FLAGS += ["-Werror=implicit-function-declaration", "-Werror=incompatible-pointer-types"]


def compile_codec(target: Path) -> Path | None:
    """Compile the extension to `target` and return its path, or None if no compiler works.

    The file is replaced in one step, so a process that has loaded the previous extension is not disturbed.
    """
    if os.environ.get("ODRADEK_PURE_PYTHON", "") not in ("", "0") or sys.platform == "win32":
        target.unlink(missing_ok=True)
        return None
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = [*FLAGS, f"-I{sysconfig.get_paths()['include']}"]
    if sys.platform == "darwin":
        flags += ["-undefined", "dynamic_lookup"]
    flags += shlex.split(os.environ.get("ODRADEK_CODEC_FLAGS", ""))
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    command = [*compiler, *flags, str(SOURCE), "-o", str(fresh)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        failed, compiler_messages = done.returncode != 0, done.stderr
    except OSError as error:
        failed, compiler_messages = True, f"{error}\n"
    sys.stderr.write(compiler_messages)
    # An extension that was built from an older source must not stay.
    if failed:
        fresh.unlink(missing_ok=True)
        target.unlink(missing_ok=True)
        return None
    fresh.replace(target)
    return target


if __name__ == "__main__":
    built = compile_codec(Path(sys.argv[1]) if sys.argv[1:] else SOURCE.with_suffix(".abi3.so"))
    if built is None:
        sys.exit("no C compiler works: the slower Python codec is used")
    print(built)

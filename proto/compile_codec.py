"""Compile the record codec beside its source: `python proto/compile_codec.py`.

The build hook runs this for every wheel and editable install; run it by hand after editing
`_codec.c`. It prints the path of the file that it built. The exit status is 1 if no C compiler works: the
slower Python codec is then used, and the compiler's messages are on standard error.

`CC` names the compiler, `ODRADEK_CODEC_FLAGS` adds to its flags, `ODRADEK_PURE_PYTHON=1` means that no C codec is
built. An argument, if given, is the directory or file for the result.
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
    """Compile the extension and return its path, or None if no compiler works.

    The file is replaced in one step: a process that has mapped the old one keeps it.
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
        failed, words = done.returncode != 0, done.stderr
    except OSError as error:
        failed, words = True, f"{error}\n"
    sys.stderr.write(words)
    # An extension that an older source was compiled to must not stay.
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

"""The interpreter with which Spark starts its Python workers on this machine.

Spark puts its own zips of pyspark and py4j before all else on a worker's path. Modules in a zip without byte code
are compiled again by every process that is started: half a second of CPU for each, and a streaming query starts
one. Where the same pyspark is installed beside, as `pip install pyspark` does, a worker can as well import it from
there. So workers are started by a short script that takes the zips off the path.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

_LOCAL: Final = ("local", "local[", "local-cluster[")
_SCRIPT: Final = """\
#!/bin/sh
set -f
path= IFS=:
for entry in $PYTHONPATH; do
  case $entry in {zips}) ;; *) path=${{path:+$path:}}$entry ;; esac
done
PYTHONPATH=$path exec {executable} "$@"
"""


def worker_python(master: str) -> str:
    """A path for spark.pyspark.python: this interpreter, or on a local master a script that starts it."""
    zips = _spark_zips() if _is_local(master) else []
    if not zips:
        return sys.executable
    directory = Path(tempfile.mkdtemp(prefix="odradek-python-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    script = directory / "python"
    script.write_text(script_of(sys.executable, zips))
    script.chmod(0o700)
    return str(script)


def script_of(executable: str, zips: list[str]) -> str:
    """Takes `zips` off PYTHONPATH, as often as they are there, and becomes `executable`."""
    return _SCRIPT.format(zips="|".join(map(shlex.quote, zips)), executable=shlex.quote(executable))


def _is_local(master: str) -> bool:
    return os.name == "posix" and (master == _LOCAL[0] or master.startswith(_LOCAL[1:]))


def _spark_zips() -> list[str]:
    """pyspark's and py4j's, in the order in which Spark names them; none if they are not the installed ones."""
    home = _installed("pyspark")
    if home is None or _installed("py4j") is None:
        return []
    if Path(os.environ.get("SPARK_HOME", home)).resolve() != home.resolve():
        return []
    return [str(path) for glob in ("pyspark.zip", "py4j-*.zip") for path in _zips(home, glob)]


def _zips(home: Path, glob: str) -> list[Path]:
    return sorted((home / "python" / "lib").glob(glob))


def _installed(package: str) -> Path | None:
    """A package's directory, unless it is in a zip itself."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    place = Path(spec.submodule_search_locations[0])
    return place if place.is_dir() else None

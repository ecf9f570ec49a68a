"""Makes a Spark session that uses this Python interpreter, enables filter pushdown, and hides private keys in plans.
`missing` says what Spark needs and this machine does not have (a JDK, PySpark), before Spark fails without it.

`worker_python` chooses the interpreter for Spark's Python workers. Spark puts its own zips of pyspark and py4j first
on the module path of a worker. The zips have no byte code, so every new process compiles the modules again, which
takes half a second of CPU; each streaming query starts such a process. If the same pyspark is installed, for example by
`pip install pyspark`, a worker can import the installed package instead. So workers are started by a short script that
removes the zips from the module path.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_VERSIONS: Final = (17, 21)
PYSPARK_MIN: Final = (4, 2)
_JAVA_TIMEOUT_S: Final = 30.0
_SECRET_OPTIONS: Final = r"(?i)url|ssl\.(keystore\.)?key|jaas"
"""Matches the names of options whose values Spark hides in plans. `url` is Spark's own default. Spark always hides
options whose names contain `password`.
"""
_HOW_TO_JAVA: Final = (
    "install a JDK 17 or 21 (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless; macOS: brew"
    " install openjdk@17) and set JAVA_HOME to it, or put its bin/ on PATH"
)


class SparkUnavailable(RuntimeError):
    """Spark cannot run on this machine. The message says what is missing and how to install it."""


def missing() -> str | None:
    """Return a sentence that says what Spark needs and this machine does not have, or None if Spark can run."""
    return _missing_python() or _missing_java()


def session(app_name: str = "odradek", **config: str) -> SparkSession:
    """Return the running Spark session, or a new one whose workers use this Python interpreter.

    `config` has Spark settings, with `__` instead of each dot: `spark__sql__shuffle__partitions="4"`.

    Raises:
        SparkUnavailable: a JDK, PySpark, pyarrow or pandas is missing, or has a version that is not supported.
    """
    problem = missing()
    if problem is not None:
        raise SparkUnavailable(problem)
    settings = {name.replace("__", "."): value for name, value in config.items()}
    master = settings.setdefault("spark.master", os.environ.get("MASTER") or "local[*]")
    # Spark starts the processes that plan a Python source on the driver's machine, with PYSPARK_DRIVER_PYTHON.
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if variable not in os.environ:
            os.environ[variable] = _python(master)
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.appName(app_name)
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.redaction.options.regex", _SECRET_OPTIONS)
        .config("spark.pyspark.python", os.environ["PYSPARK_PYTHON"])
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@cache
def _python(master: str) -> str:
    return worker_python(master)


def _missing_python() -> str | None:
    extra = "pip install 'odradek[spark]'"
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return f"PySpark is not installed: {extra}"
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < PYSPARK_MIN:
        return f"PySpark is {version}; the connector needs 4.2 or newer: {extra}"
    for package in ("pyarrow", "pandas"):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            return f"{package} is not installed: {extra}"
    if metadata.version("pandas").startswith("3."):
        return f"pandas is {metadata.version('pandas')}; PySpark needs one before 3: {extra}"
    return None


def _missing_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        where = (
            f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on PATH"
        )
        return f"Spark needs a JDK, but {where}: {_HOW_TO_JAVA}"
    try:
        output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not run ({error}): {_HOW_TO_JAVA}"
    match = re.search(r'version "(\d+)', output)
    version = int(match[1]) if match else 0
    if version not in JAVA_VERSIONS:
        return f"{java} is Java {version or 'of an unknown version'}: {_HOW_TO_JAVA}"
    return None


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
    """Return the value for the setting spark.pyspark.python: the path of this interpreter or, if the workers run on
    this machine, of a script that starts it without Spark's zips.
    """
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
    """Return the text of a shell script that removes `zips` from PYTHONPATH, and then executes `executable`."""
    return _SCRIPT.format(zips="|".join(map(shlex.quote, zips)), executable=shlex.quote(executable))


def _is_local(master: str) -> bool:
    return os.name == "posix" and (master == _LOCAL[0] or master.startswith(_LOCAL[1:]))


def _spark_zips() -> list[str]:
    """Return the paths of Spark's zips of pyspark and py4j, in the order in which Spark puts them on the module path.
    Return none unless Spark runs from the installed package pyspark, and py4j is installed, too.
    """
    home = _installed("pyspark")
    if home is None or _installed("py4j") is None:
        return []
    if Path(os.environ.get("SPARK_HOME", home)).resolve() != home.resolve():
        return []
    return [str(path) for glob in ("pyspark.zip", "py4j-*.zip") for path in _zips(home, glob)]


def _zips(home: Path, glob: str) -> list[Path]:
    return sorted((home / "python" / "lib").glob(glob))


def _installed(package: str) -> Path | None:
    """Return the directory of an installed package, or None if the package is missing or in a zip."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    place = Path(spec.submodule_search_locations[0])
    return place if place.is_dir() else None

"""The benchmark's own environment: PySpark 4.2.0 in a venv, and jars from Maven Central. They are installed once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

PYSPARK: Final = "4.2.0"
HERE: Final = Path(__file__).parent
_WITH: Final = ("pyarrow", "pandas", "numpy", "grpcio", "protobuf", "google-crc32c", "cramjam")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The paths of an installed environment under `root`."""

    root: Path

    @property
    def python(self) -> Path:
        """Return the path of the venv's interpreter."""
        return self.root / "venv" / "bin" / "python"

    def jars(self, profile: str) -> Path:
        """Return the directory with a profile's jars."""
        return self.root / "jars" / profile

    def variables(self) -> dict[str, str]:
        """Return the environment variables for the processes of both sides; PYTHONPATH names the
        packages of this source tree.
        """
        return os.environ | {"PYTHONPATH": os.pathsep.join(_source_roots())}


def make(root: Path) -> Environment:
    """Install the missing packages and jars. The first call needs `mvn`, a JDK and the network."""
    made = Environment(root=root)
    root.mkdir(parents=True, exist_ok=True)
    if not made.python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(root / "venv")], check=True)
    if not (root / "venv.done").exists():
        pins = [f"{name}=={metadata.version(name)}" for name in _WITH]
        subprocess.run(
            [str(made.python), "-m", "pip", "install", "-q", f"pyspark=={PYSPARK}", *pins],
            check=True,
        )
        (root / "venv.done").touch()
    for profile in ("broker", "source"):
        done = root / "jars" / f"{profile}.done"
        if done.exists():
            continue
        if shutil.which("mvn") is None:
            raise SystemExit("the benchmark needs Maven (mvn) for Apache Kafka's jars")
        target = f"-DoutputDirectory={made.jars(profile).resolve()}"
        goal = ["dependency:copy-dependencies", target, f"-P{profile}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(HERE / "spark_pom.xml"), *goal], check=True)
        done.touch()
    return made


def _source_roots() -> list[str]:
    """Return the directories of Odradek's packages, from the path files of this interpreter's
    editable install.
    """
    site = Path(sysconfig.get_paths()["purelib"])
    roots = []
    for path_file in site.glob("*odradek*.pth"):
        roots += [line for line in path_file.read_text().splitlines() if os.path.isdir(line)]
    return roots or [path for path in sys.path if "odradek" in path]

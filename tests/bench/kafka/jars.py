"""Apache Kafka's jars from Maven Central, fetched once and kept under artifacts/."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

POM: Final = Path(__file__).with_name("pom.xml")


def fetch(directory: Path) -> Path:
    """The directory with the jars. Needs `mvn`, a JDK and the network, the first time."""
    done = directory / ".done"
    if not done.exists():
        if shutil.which("mvn") is None or shutil.which("java") is None:
            raise SystemExit("bench-kafka needs java (17 or later) and Maven (mvn)")
        directory.mkdir(parents=True, exist_ok=True)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={directory.resolve()}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(POM), *goal], check=True)
        done.touch()
    return directory

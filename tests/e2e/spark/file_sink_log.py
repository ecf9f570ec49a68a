"""Finds the files that Spark's streaming file sink has committed in its own log, because a killed
driver leaves other files, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit


def committed_files(directory: Path) -> list[Path]:
    """Return the files of complete batches, as Spark reads them from `_spark_metadata`."""
    entries = (directory / "_spark_metadata").iterdir()
    logs = {p.name: p for p in entries if not p.name.startswith(".")}
    compacted = [name for name in logs if name.endswith(".compact")]
    newest = max((int(name.split(".")[0]) for name in compacted), default=-1)
    chosen = [logs[f"{newest}.compact"]] if newest >= 0 else []
    chosen += [p for name, p in logs.items() if name.isdigit() and int(name) > newest]
    lines = (line for log in chosen for line in log.read_text().splitlines()[1:])
    return [Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines]

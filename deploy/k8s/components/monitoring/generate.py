"""Write alerts.yaml and dashboards/ from alerts.py and dashboards.py. With `--check`, write nothing, but print which
files are stale and exit with status 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from alerts import ALERTS
from dashboards import DASHBOARDS, document

FOLDER = Path(__file__).parent


def files() -> dict[Path, str]:
    """Return the path and the text of each generated file."""
    generated = {FOLDER / "alerts.yaml": alerts()}
    for dashboard in DASHBOARDS:
        text = json.dumps(document(dashboard), indent=1, ensure_ascii=False) + "\n"
        generated[FOLDER / "dashboards" / f"{dashboard.uid}.json"] = text
    return generated


def alerts() -> str:
    """Return the PrometheusRule as YAML. Strings are written as JSON, which is valid YAML."""
    lines = [
        "# Written by generate.py from alerts.py.",
        "apiVersion: monitoring.coreos.com/v1",
        "kind: PrometheusRule",
        "metadata:",
        "  name: odradek",
        "spec:",
        "  groups:",
        "    - name: odradek",
        "      rules:",
    ]
    for alert in ALERTS:
        lines += [
            f"        - alert: {alert.name}",
            f"          expr: {json.dumps(alert.expr)}",
            f"          for: {alert.lasts}",
            "          labels:",
            f"            severity: {alert.severity}",
            "          annotations:",
            f"            summary: {json.dumps(alert.summary)}",
            f"            description: {json.dumps(alert.action)}",
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    stale = [
        path for path, text in files().items() if not path.exists() or path.read_text() != text
    ]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(FOLDER)} is stale: run generate.py")
        return 1 if stale else 0
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

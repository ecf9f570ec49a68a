"""What `odradek storage strays` runs: `... DIR [NAME...]`, a line of JSON for each stray; removes those named.

The broker may run meanwhile: a stray is renamed before it is removed, so either it is brought back or removed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from odradek_broker.log.directory.strays import read_strays, removed_stray
from odradek_broker.log.storage import DiskStorage

ALL = "all"


def main() -> int:
    """List the strays, or remove some; 1 with one line on stderr when that fails."""
    path, chosen = Path(sys.argv[1]), set(sys.argv[2:])
    storage = DiskStorage()
    try:
        if not storage.exists(path / "meta.properties"):
            print(f"odradek: {path} is not the data directory of a broker", file=sys.stderr)
            return 1
        strays = list(read_strays(storage, path))
        unknown = chosen - {stray.name for stray in strays} - {ALL}
        if unknown:
            print(f"odradek: {path} has no stray called {min(unknown)}", file=sys.stderr)
            return 1
        for stray in strays:
            if chosen and ALL not in chosen and stray.name not in chosen:
                continue
            if chosen:
                gone = removed_stray(storage, path, stray)
                if storage.exists(gone):  # else the broker has just brought it back
                    storage.remove_tree(gone)
            print(json.dumps(asdict(stray)))
    except OSError as error:
        print(f"odradek: {path}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

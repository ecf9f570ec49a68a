"""The process that `odradek storage strays` and `odradek storage adopt` start.

    ... strays DIR [NAME...]     print the stray logs as lines of JSON, or remove the named ones
    ... adopt DIR INCARNATION    assign the directory to the metadata log with this incarnation id; `none`: to any

Exit status 1 means that the command failed; one line on stderr has the reason. The broker may run while strays are
printed or removed: a stray is renamed before it is removed, so no stray is both restored and removed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from odradek_broker.log.directory.opening import (
    META_PROPERTIES,
    DirectoryRefused,
    adopt_metadata,
    parse_incarnation,
    take_lock,
)
from odradek_broker.log.directory.strays import read_strays, removed_stray
from odradek_broker.log.storage import DiskStorage

ALL = "all"


def strays(path: Path, chosen: set[str]) -> None:
    """Print all stray logs of a data directory. If `chosen` has names, delete and print only those; ALL means every
    stray.
    """
    storage = DiskStorage()
    if not storage.exists(path / META_PROPERTIES):
        raise DirectoryRefused(
            f"{path} is not the data directory of a broker: it has no {META_PROPERTIES}"
        )
    present = list(read_strays(storage, path))
    unknown = chosen - {stray.name for stray in present} - {ALL}
    if unknown:
        raise DirectoryRefused(f"{path} has no stray called {min(unknown)}: list the strays first")
    for stray in present:
        if chosen and ALL not in chosen and stray.name not in chosen:
            continue
        if chosen:
            renamed = removed_stray(storage, path, stray)
            # If the directory does not exist, the broker has restored the stray log in the meantime.
            if storage.exists(renamed):
                storage.remove_tree(renamed)
        print(json.dumps(asdict(stray)))


def adopt(path: Path, incarnation: str) -> None:
    """Assign the data directory to another metadata log (`none`: to any). The broker that uses it must be stopped."""
    storage = DiskStorage()
    incarnation_id = None if incarnation == "none" else parse_incarnation(incarnation)
    if not storage.exists(path):
        raise DirectoryRefused(
            f"{path} does not exist: name the data directory of a stopped broker"
        )
    lock = take_lock(storage, path)
    try:
        adopt_metadata(storage, path, incarnation_id)
    finally:
        lock.close()


def main() -> int:
    """Run the command that the arguments name."""
    command, path = sys.argv[1], Path(sys.argv[2])
    try:
        if command == "strays":
            strays(path, set(sys.argv[3:]))
        else:
            adopt(path, sys.argv[3])
    except OSError as error:
        print(f"odradek: {path}: {error.strerror or error}", file=sys.stderr)
        return 1
    except (DirectoryRefused, ValueError) as error:
        print(f"odradek: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

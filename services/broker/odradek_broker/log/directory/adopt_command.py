"""What `odradek storage adopt` runs: `... DIR INCARNATION` as a process; `none` for no incarnation."""

from __future__ import annotations

import sys
from pathlib import Path

from odradek_broker.log.directory.meta_properties import parse_incarnation
from odradek_broker.log.directory.opening import DirectoryRefused, adopt_metadata, take_lock
from odradek_broker.log.storage import DiskStorage


def main() -> int:
    """Adopt; 1 with one line on stderr when the directory is in use or no broker's."""
    path, text = Path(sys.argv[1]), sys.argv[2]
    storage = DiskStorage()
    try:
        incarnation_id = None if text == "none" else parse_incarnation(text)
        if not storage.exists(path):
            raise DirectoryRefused(f"{path} does not exist")
        lock = take_lock(storage, path)
        try:
            adopt_metadata(storage, path, incarnation_id)
        finally:
            lock.close()
    except OSError as error:
        print(f"odradek: {path}: {error.strerror or error}", file=sys.stderr)
        return 1
    except (DirectoryRefused, ValueError) as error:
        print(f"odradek: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Copy a pod's own certificate and key to where its process reads them, and again whenever they are renewed.

Only this container mounts the volume with the keys of all pods of a set, so an attacker who takes the process over
gets one identity: the pod's own. A copy becomes visible as a whole, because `current` is a link that is replaced.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

NAMES = ("ca.crt", "tls.crt", "tls.key")
LOOKS_S = 10.0


def main(source: Path, target: Path) -> None:
    """Copy the files until SIGTERM arrives."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    copied: dict[str, bytes] = {}
    while True:
        present = read(source)
        if present and present != copied:
            publish(present, target)
            copied = present
        if signal.sigtimedwait({signal.SIGTERM}, LOOKS_S if copied else LOOKS_S / 10):
            return


def read(source: Path) -> dict[str, bytes]:
    """Return all files of one version of the volume. Return none while it changes, or before it exists."""
    version = source.resolve()  # the kubelet replaces a link above the files
    try:
        return {name: (version / name).read_bytes() for name in NAMES}
    except OSError as error:
        print(f"cannot be read: {error}", flush=True)
        return {}


def publish(files: dict[str, bytes], target: Path) -> None:
    """Make `target/current` point to these files, and remove the previous ones."""
    folder = Path(tempfile.mkdtemp(dir=target, prefix="version-"))
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o400)
    link = target / "next"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    os.replace(link, target / "current")
    for other in target.glob("version-*"):
        if other != folder:
            shutil.rmtree(other)
    print(f"copied as {folder.name}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

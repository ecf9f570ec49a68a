"""Copies the certificate and key of its pod to the folder from which the pod's process reads them: once at the start,
and again whenever they are renewed. It runs in a sidecar container.

Only this container mounts the volume with the keys of all pods of a StatefulSet. So an attacker who takes over the
process gets only the key of one pod. Certificate and key change together, because the process reads them through the
link `current`, which is replaced in one step.
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
    """Return the content of all files by name. Return none if the files do not exist yet or are being replaced."""
    # The kubelet replaces the files by replacing a link to their folder. All reads must use the same folder.
    version = source.resolve()
    try:
        return {name: (version / name).read_bytes() for name in NAMES}
    except OSError as error:
        print(f"certificate and key cannot be read yet: {error}", flush=True)
        return {}


def publish(files: dict[str, bytes], target: Path) -> None:
    """Write the files into a new folder, make the link `target/current` point to it, and remove the older folders."""
    folder = Path(tempfile.mkdtemp(dir=target, prefix="version-"))
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o400)
    link = target / "next"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    os.replace(link, target / "current")
    for older in target.glob("version-*"):
        if older != folder:
            shutil.rmtree(older)
    print(f"copied certificate and key to {folder.name}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

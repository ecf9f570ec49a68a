"""Prints a software bill of materials (CycloneDX 1.5, JSON) of the Python packages in the image: `make image-sbom`.

It lists the packages that `locks/services.lock` installs on Linux, with their names, versions and hashes of files. The
output depends only on the lock. The base image (Debian's packages and Python) has its own bill of materials.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LINUX = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.12.0",
    "python_version": "3.12",
    "sys_platform": "linux",
}
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "sbom.odradek")


def main() -> int:
    lock = (ROOT / "deploy" / "k8s" / "locks" / "services.lock").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    print(json.dumps(bill(lock, project["name"], project["version"]), indent=2))
    return 0


def bill(lock: str, name: str, version: str) -> dict[str, Any]:
    """Return the CycloneDX document for a lock file that `uv pip compile --generate-hashes` has written.

    `name` and `version` are those of the project.
    """
    packages = components(lock)
    own = component(name, version) | {"type": "application"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, f'{name} {version} {lock}')}",
        "version": 1,
        "metadata": {"component": own},
        "components": packages,
        "dependencies": [
            {"ref": own["bom-ref"], "dependsOn": [package["bom-ref"] for package in packages]},
        ],
    }


def components(lock: str) -> list[dict[str, Any]]:
    """Return the packages of a lock file that are installed on Linux, in the order of the lock file."""
    packages = []
    for entry in lock.replace("\\\n", " ").splitlines():
        if not entry.strip() or entry.startswith("#"):
            continue
        text, *hashes = re.split(r"\s+--hash=sha256:", entry.strip())
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate(dict(LINUX)):
            continue
        (pin,) = requirement.specifier
        assert pin.operator == "==", f"{text} is not pinned"
        package = component(requirement.name, pin.version)
        package["hashes"] = [{"alg": "SHA-256", "content": content} for content in hashes]
        packages.append(package)
    return packages


def component(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{canonicalize_name(name)}@{version}"
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


if __name__ == "__main__":
    sys.exit(main())

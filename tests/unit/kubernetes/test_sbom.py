"""The bill of materials lists exactly what the image's lock file installs, and is valid CycloneDX
1.5.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.unit.kubernetes.rendered import K8S

LOCK = """\
one.Pkg==1.0 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
windows-only==2.0 ; sys_platform == 'win32' \\
    --hash=sha256:{a}
linux_only==3.0 ; sys_platform == 'linux' and python_version >= '3.12' \\
    --hash=sha256:{b}
""".format(a="a" * 64, b="b" * 64)


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", K8S / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_packages_of_the_image_have_their_versions_and_hashes(sbom: ModuleType) -> None:
    bill = sbom.bill(LOCK, "odradek", "0.1.0")
    assert [(one["purl"], len(one["hashes"])) for one in bill["components"]] == [
        ("pkg:pypi/one-pkg@1.0", 2),
        ("pkg:pypi/linux-only@3.0", 1),
    ]
    assert bill == sbom.bill(LOCK, "odradek", "0.1.0"), "the same lock, the same bill"
    assert bill["serialNumber"] != sbom.bill(LOCK, "odradek", "0.1.1")["serialNumber"]


def test_what_is_not_pinned_is_refused(sbom: ModuleType) -> None:
    with pytest.raises(AssertionError, match="is not pinned"):
        sbom.components("loose>=1 --hash=sha256:" + "a" * 64)


def test_the_images_bill_is_whole_and_well_formed() -> None:
    done = subprocess.run(
        [sys.executable, str(K8S / "sbom.py")], capture_output=True, text=True, check=True
    )
    bill: dict[str, Any] = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    lock = (K8S / "locks" / "services.lock").read_text()
    pinned = set(re.findall(r"^([\w.-]+==[^ ;]+)", lock, re.MULTILINE))
    listed = {f"{one['name']}=={one['version']}" for one in bill["components"]}
    assert listed <= pinned
    left_out = pinned - listed
    for pin in left_out:
        assert re.search(rf"^{re.escape(pin)} ;", lock, re.MULTILINE), f"{pin} has no marker"
    references = [one["bom-ref"] for one in bill["components"]]
    assert len(references) == len(set(references)) > 40
    assert bill["dependencies"][0]["dependsOn"] == references
    for one in bill["components"]:
        assert re.fullmatch(r"pkg:pypi/[a-z0-9-]+@[\w.+!]+", one["purl"])
        assert one["hashes"]
        assert all(re.fullmatch("[0-9a-f]{64}", item["content"]) for item in one["hashes"])

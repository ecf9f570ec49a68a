"""Write the chart's templates/*.yaml from the dev overlay and the component external-access. With `--check`, write
nothing, but print which templates are stale and exit with status 1.

The templates are the overlay's objects. Fields that installations change are replaced by values from values.yaml.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
K8S = FOLDER.parent / "k8s"
IMAGE = "odradek:0.1.0"
HEADER = "# Written by generate.py from deploy/k8s.\n"
SECTIONS = {"broker": "brokers", "quorum": "controllers", "gateway": "gateways"}
ADVERTISED = "ODRADEK_BROKER_ADVERTISED_LISTENERS"
OPTIONAL = {  # an object whose name contains the key is only installed if the value is set
    "certificates": ".Values.certificates.create",
    "topics": ".Values.topics.create",
    "external": ".Values.listeners.externalDomain",
}
Object = dict[str, Any]


def files() -> dict[Path, str]:
    """Return the path and the text of each template. There is one file for each kind of object."""
    command = ["kubectl", "kustomize", str(K8S / "overlays" / "dev")]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    objects = [doc for doc in yaml.safe_load_all(rendered) if doc["kind"] != "Namespace"]
    for name in ("services.yaml", "network-policy.yaml"):
        text = (K8S / "components" / "external-access" / name).read_text()
        objects += list(yaml.safe_load_all(text))
    texts: dict[Path, str] = {}
    for manifest in objects:
        path = FOLDER / "templates" / f"{manifest['kind'].lower()}s.yaml"
        texts[path] = texts.get(path, HEADER) + "---\n" + template(manifest)
    return texts


def template(manifest: Object) -> str:
    """Return the template of an object. Markers in its fields (`@@ ... @@`, `## ... ##`) become Helm expressions."""
    name = manifest["metadata"]["name"]
    manifest["metadata"]["namespace"] = "@@ .Release.Namespace @@"
    for subject in manifest.get("subjects", ()):
        subject["namespace"] = "@@ .Release.Namespace @@"
    section = SECTIONS.get(name)
    if manifest["kind"] in ("StatefulSet", "Deployment") and section is not None:
        parametrize(manifest["spec"], name, f".Values.{section}")
    if manifest["kind"] == "HorizontalPodAutoscaler":
        manifest["spec"]["minReplicas"] = "@@ .Values.gateways.replicasMin @@"
        manifest["spec"]["maxReplicas"] = "@@ .Values.gateways.replicasMax @@"
    text = yaml.safe_dump(manifest, sort_keys=True, width=10_000)
    assert "{{" not in text, f"{name} contains {{{{, which Helm would interpret"
    text = re.sub(r"'@@ (.*?) @@'", r"{{ \1 }}", text)
    text = re.sub(r"^( *)(- |\w+: )'## (.*?) ##'$", block, text, flags=re.M)
    text = re.sub(r"^( *)'## (.*?) ##': null$", option, text, flags=re.M)
    text = text.replace(f"image: {IMAGE}", 'image: {{ include "odradek.image" . }}')
    for word, value in OPTIONAL.items():
        if word in name:
            return f"{{{{- if {value} }}}}\n{text}{{{{- end }}}}\n"
    return text


def parametrize(spec: Object, name: str, values: str) -> None:
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    resources = container["resources"]
    resources["requests"]["cpu"] = f"@@ {values}.cpu | quote @@"
    for kind in ("requests", "limits"):
        resources[kind]["memory"] = f"@@ {values}.memory @@"
    process = {"broker": "BROKER", "quorum": "QUORUM", "gateway": "GATEWAY"}[name]
    # The settings that the overlay changes are in values.yaml, as defaults, and not in the templates.
    kept = [entry for entry in container["env"] if not re.search(r"_BYTES(_MAX)?$", entry["name"])]
    for entry in kept:
        if entry["name"] == ADVERTISED:
            entry["value"] = '@@ include "odradek.advertised" . | quote @@'
    process = f'dict "process" "{name.upper()}" "settings" {values}.settings'
    settings = f'include "odradek.settings" ({process})'
    if name == "broker":
        settings = 'include "odradek.brokerSettings" .'
    container["env"] = [*kept, f"## {settings} ##"]
    if name == "gateway":
        return
    if name == "broker":
        spec["replicas"] = f"@@ {values}.replicas @@"
    choice = f'dict "name" "{name}" "zones" .Values.zones'
    pod["affinity"] = f'## include "odradek.affinity" ({choice}) ##'
    pod["topologySpreadConstraints"] = f'## include "odradek.spread" ({choice}) ##'
    (claim,) = spec["volumeClaimTemplates"]
    claim["spec"]["resources"]["requests"]["storage"] = f"@@ {values}.storage @@"
    claim["spec"][f"## {values}.storageClass ##"] = None


def block(match: re.Match[str]) -> str:
    """Return the replacement for a line with a marker: an expression that prints several lines. These lines are items
    of the same list, or the value of the line's key.
    """
    indent, before, expression = len(match[1]), match[2], match[3]
    if before == "- ":
        return f"{{{{- {expression} | nindent {indent} }}}}"
    depth = indent if "Constraints" in before else indent + 2
    return f"{match[1]}{before.strip()}\n{{{{- {expression} | nindent {depth} }}}}"


def option(match: re.Match[str]) -> str:
    """Return the replacement for a line whose key is a marker: a field that is only set if its value is not empty."""
    key = match[2].rpartition(".")[2] + "Name"
    line = f"{match[1]}{key}: {{{{ . | quote }}}}"
    return f"{{{{- with {match[2]} }}}}\n{line}\n{{{{- end }}}}"


def main() -> int:
    texts = files()
    present = set((FOLDER / "templates").glob("*.yaml"))
    stale = {
        path for path, text in texts.items() if path not in present or path.read_text() != text
    }
    stale |= present - texts.keys()
    if "--check" in sys.argv[1:]:
        for path in sorted(stale):
            print(f"{path.relative_to(FOLDER)} is stale: run generate.py")
        return 1 if stale else 0
    for path in present - texts.keys():
        path.unlink()
    for path, text in texts.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

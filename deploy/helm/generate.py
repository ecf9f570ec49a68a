"""Write templates/*.yaml from the dev overlay and the component external-access; `--check` only reports stale files.

The chart has the overlay's objects, in which the values of values.yaml replace what installations change.
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
OPTIONAL = {  # a word of the object's name: the value that brings it
    "certificates": ".Values.certificates.create",
    "topics": ".Values.topics.create",
    "external": ".Values.listeners.externalDomain",
}
Object = dict[str, Any]


def files() -> dict[Path, str]:
    """Return all templates with their text, a file for each kind."""
    command = ["kubectl", "kustomize", str(K8S / "overlays" / "dev")]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    objects = [one for one in yaml.safe_load_all(rendered) if one["kind"] != "Namespace"]
    for name in ("services.yaml", "network-policy.yaml"):
        text = (K8S / "components" / "external-access" / name).read_text()
        objects += list(yaml.safe_load_all(text))
    texts: dict[Path, str] = {}
    for one in objects:
        path = FOLDER / "templates" / f"{one['kind'].lower()}s.yaml"
        texts[path] = texts.get(path, HEADER) + "---\n" + template(one)
    return texts


def template(one: Object) -> str:
    """Return an object as a template."""
    name = one["metadata"]["name"]
    one["metadata"]["namespace"] = "@@ .Release.Namespace @@"
    for subject in one.get("subjects", ()):
        subject["namespace"] = "@@ .Release.Namespace @@"
    section = SECTIONS.get(name)
    if one["kind"] in ("StatefulSet", "Deployment") and section is not None:
        parametrize(one["spec"], name, f".Values.{section}")
    if one["kind"] == "HorizontalPodAutoscaler":
        one["spec"]["minReplicas"] = "@@ .Values.gateways.replicasMin @@"
        one["spec"]["maxReplicas"] = "@@ .Values.gateways.replicasMax @@"
    text = yaml.safe_dump(one, sort_keys=True, width=10_000)
    assert "{{" not in text, f"{name} would be taken for a template"
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
    # The overlay's own settings are the defaults of the chart's values.
    kept = [one for one in container["env"] if not re.search(r"_BYTES(_MAX)?$", one["name"])]
    for one in kept:
        if one["name"] == ADVERTISED:
            one["value"] = '@@ include "odradek.advertised" . | quote @@'
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
    """Return a marker's line as lines that an expression prints, as items of the list or below the key."""
    indent, before, expression = len(match[1]), match[2], match[3]
    if before == "- ":
        return f"{{{{- {expression} | nindent {indent} }}}}"
    depth = indent if "Constraints" in before else indent + 2
    return f"{match[1]}{before.strip()}\n{{{{- {expression} | nindent {depth} }}}}"


def option(match: re.Match[str]) -> str:
    """Return a marker's line as a line that is only there if the value is."""
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

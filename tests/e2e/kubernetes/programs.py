"""Builds the programs of a Kubernetes cluster from their Go modules, and keeps the programs for later runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

KUBERNETES = os.environ.get("ODRADEK_TESTS_KUBERNETES", "v1.34.4")
COREDNS = "v1.13.1"
PROMETHEUS = "github.com/prometheus/prometheus"
PROMETHEUS_VERSION = "v0.316.0"  # Prometheus 3.16
HELM = "v3.18.6"
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "odradek" / "kubernetes"
SERVERS = {
    "kube-apiserver": "app.NewAPIServerCommand()",
    "kube-controller-manager": "app.NewControllerManagerCommand()",
    "kube-scheduler": "app.NewSchedulerCommand()",
    "kubelet": "app.NewKubeletCommand(context.Background())",
    "kube-proxy": "app.NewProxyCommand()",
}
_SERVER = """package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/NAME/app"
)

var _ = context.Background

func main() { os.Exit(cli.Run(COMMAND)) }
"""
_KUBECTL = """package main

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
"""
_PAUSE = """package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}
"""
_COREDNS = """package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() { coremain.Run() }
"""


def build() -> Path:
    """Return the folder of the programs. The first build takes about ten minutes on two processors."""
    folder = CACHE / KUBERNETES
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [*SERVERS, "kubectl", "pause", "coredns", "helm"]
    missing = [name for name in wanted if not (folder / name).exists()]
    with tempfile.TemporaryDirectory() as scratch:
        if set(missing) - {"coredns", "helm"}:
            _build_kubernetes(Path(scratch, "kubernetes"), folder, missing)
        if "coredns" in missing:
            _build_coredns(Path(scratch, "coredns"), folder)
        if "helm" in missing:
            environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
            module = f"helm.sh/helm/v3/cmd/helm@{HELM}"
            subprocess.run(["go", "install", module], env=environment, check=True)
    return folder


def build_monitoring() -> Path:
    """Return the folder of Prometheus, promtool, and the programs of the Prometheus operator."""
    folder = CACHE / "monitoring"
    folder.mkdir(parents=True, exist_ok=True)
    operator, _, version = OPERATOR.partition("@")
    wanted = {
        "prometheus": (PROMETHEUS, PROMETHEUS_VERSION),
        "promtool": (PROMETHEUS, PROMETHEUS_VERSION),
        "operator": (operator, version),
        "prometheus-config-reloader": (operator, version),
    }
    for name, (module, release) in wanted.items():
        if not (folder / name).exists():
            with tempfile.TemporaryDirectory() as scratch:
                lines = ["module programs", "go 1.26", f"require {module} {release}"]
                lines.append(f"tool {module}/cmd/{name}")
                Path(scratch, "go.mod").write_text("\n".join(lines) + "\n")
                _go(Path(scratch), "mod", "tidy", "-e")
                # Of the services that tell Prometheus its targets, only Kubernetes is built in.
                tags = ("-tags", "remove_all_sd,enable_kubernetes_sd")
                _compile(Path(scratch), f"{module}/cmd/{name}", folder / name, "-s -w", *tags)
    return folder


def operator_definitions() -> list[Path]:
    """Return the files with the definitions of the Prometheus operator's resources."""
    return sorted((_source(OPERATOR) / "example" / "prometheus-operator-crd").glob("*.yaml"))


def operator_bundle() -> str:
    """Return the manifest that installs the Prometheus operator, its definitions included."""
    return (_source(OPERATOR) / "bundle.yaml").read_text()


def _source(module: str) -> Path:
    """Return the folder with the source of a Go module, `PATH@VERSION`."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "go.mod").write_text("module programs\n")
        facts = json.loads(_go(Path(scratch), "mod", "download", "-json", module))
    return Path(facts["Dir"])


def _build_kubernetes(scratch: Path, folder: Path, missing: list[str]) -> None:
    """Build the programs of Kubernetes.

    Its staging modules have other versions; Kubernetes' go.mod replaces them by folders.
    """
    scratch.mkdir()
    (scratch / "go.mod").write_text("module programs\n")
    module = f"k8s.io/kubernetes@{KUBERNETES}"
    facts = json.loads(_go(scratch, "mod", "download", "-json", module))
    required = Path(facts["GoMod"]).read_text()
    found = re.search(r"^go (\S+)", required, re.M)
    assert found is not None, "no version of Go in Kubernetes' go.mod"
    staging = sorted(set(re.findall(r"(k8s\.io/\S+) v0\.0\.0$", required, re.M)))
    lines = ["module programs", f"go {found[1]}", f"require k8s.io/kubernetes {KUBERNETES}"]
    release = f"v0.{KUBERNETES.removeprefix('v1.')}"
    lines += [f"replace {name} => {name} {_nearest(scratch, name, release)}" for name in staging]
    (scratch / "go.mod").write_text("\n".join(lines) + "\n")
    sources = {"kubectl": _KUBECTL, "pause": _PAUSE}
    older = {"kubelet": "app.NewKubeletCommand()"} if int(KUBERNETES.split(".")[1]) < 33 else {}
    for name, command in (SERVERS | older).items():
        sources[name] = _SERVER.replace("NAME", name).replace("COMMAND", command)
    for name, source in sources.items():
        (scratch / "cmd" / name).mkdir(parents=True)
        (scratch / "cmd" / name / "main.go").write_text(source)
    _go(scratch, "mod", "tidy", "-e")
    version = "k8s.io/component-base/version.git"
    flags = f"-s -w -X {version}Version={KUBERNETES} -X {version}Major=1"
    flags += f" -X {version}Minor={KUBERNETES.split('.')[1]}"
    for name in missing:
        if name in sources:
            _compile(scratch, f"./cmd/{name}", folder / name, flags)


def _nearest(scratch: Path, module: str, release: str) -> str:
    """Return the release of a module, or the newest patch release before it if a mirror of modules lacks it."""
    with contextlib.suppress(RuntimeError):
        _go(scratch, "mod", "download", f"{module}@{release}")
        return release
    minor, _, patch = release.rpartition(".")
    known = json.loads(_go(scratch, "list", "-m", "-versions", "-json", module))["Versions"]
    patches = [int(one.rpartition(".")[2]) for one in known if one.rpartition(".")[0] == minor]
    return f"{minor}.{max(number for number in patches if number < int(patch))}"


def _build_coredns(scratch: Path, folder: Path) -> None:
    """Build CoreDNS with the plugins that a cluster's Corefile names, without those for clouds."""
    scratch.mkdir()
    release = f"v0.{KUBERNETES.removeprefix('v1.')}"
    required = [f"github.com/coredns/coredns {COREDNS}"]
    required += [f"k8s.io/{name} {release}" for name in ("client-go", "api", "apimachinery")]
    lines = ["module programs", "go 1.24.0", *(f"require {one}" for one in required)]
    (scratch / "go.mod").write_text("\n".join(lines) + "\n")
    (scratch / "main.go").write_text(_COREDNS)
    _go(scratch, "mod", "tidy", "-e")
    _compile(scratch, ".", folder / "coredns", "-s -w")


def _compile(scratch: Path, package: str, program: Path, flags: str, *more: str) -> None:
    unfinished = program.with_suffix(".unfinished")
    words = ("build", "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o", str(unfinished))
    _go(scratch, *words, *more, package)
    shutil.move(unfinished, program)


def _go(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["go", *words],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and "-e" not in words:
        raise RuntimeError(f"go {' '.join(words)} failed:\n{done.stderr[-3000:]}")
    return done.stdout

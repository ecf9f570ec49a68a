"""Builds an image from a Containerfile without a container engine: a stage is a folder, and RUN
uses chroot.

It needs root. The base image is a root file system made by debootstrap, with the Python that runs
the tests. RUN can reach the same network as this machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from string import Template

from tests.unit.kubernetes.containerfile import is_ignored, read

BASE_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
LIBRARIES = (
    "ca-certificates,libssl3,libffi8,libsqlite3-0,zlib1g,libbz2-1.0,liblzma5,libreadline8,"
    "libncursesw6,libexpat1,libuuid1"
)
_BORROWED = ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt")


def python_base(root: Path) -> Path:
    """Return a root file system with Python under /usr/local, which is made once."""
    if (root / "finished").exists():
        return root / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    words = ["debootstrap", "--variant=minbase", f"--include={LIBRARIES}", "bookworm"]
    subprocess.run([*words, str(root / "root")], check=True, stdout=subprocess.DEVNULL)
    ignored = shutil.ignore_patterns("__pycache__", "*.a", "test", "site-packages")
    local = root / "root" / "usr" / "local"
    shutil.copytree(sys.base_prefix, local, symlinks=True, dirs_exist_ok=True, ignore=ignored)
    major, minor = sys.version_info[:2]
    (local / "lib" / f"python{major}.{minor}" / "site-packages").mkdir()
    subprocess.run(["chown", "-R", "0:0", str(local)], check=True)
    subprocess.run(["chroot", str(root / "root"), "ldconfig"], check=True)
    for waste in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(root / "root" / waste)
        (root / "root" / waste / "partial").mkdir(parents=True)
    (root / "finished").touch()
    return root / "root"


class ImageBuild:
    """The stages of one Containerfile; `arguments` has the root file system for each FROM
    ${NAME}.
    """

    def __init__(
        self, containerfile: Path, *, context: Path, arguments: Mapping[str, Path], scratch: Path
    ) -> None:
        self._context, self._arguments, self._scratch = context, arguments, scratch
        self._stages: dict[str, Path] = {}
        self._config: dict[str, object] = {}
        self._environment: dict[str, str] = {}
        self._folder = "/"
        self.root = scratch
        for one in read(containerfile):
            if one.word == "FROM":
                self._begin(one.text.split())
            elif one.word == "RUN":
                self._run(one.text)
            elif one.word == "COPY":
                self._copy(shlex.split(one.text))
            elif one.word == "WORKDIR":
                self._folder = one.text
                (self.root / one.text.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif one.word == "ENV":
                self._set(shlex.split(one.text))
            elif one.word in ("ENTRYPOINT", "CMD"):
                self._config[one.word.capitalize()] = one.listed()
            elif one.word == "USER":
                self._config["User"] = one.text
            else:
                assert one.word in ("ARG", "LABEL", "STOPSIGNAL"), f"{one.word} is not known here"

    def bytes_unpacked(self) -> int:
        """Return the size of all files of the last stage."""
        seen: dict[int, int] = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                status = os.lstat(os.path.join(folder, name))
                seen[status.st_ino] = status.st_size
        return sum(seen.values())

    def save(self, name: str, archive: Path) -> None:
        """Write the last stage as an archive that `ctr images import` reads."""
        layer = self._scratch / "layer.tar"
        words = ["tar", "--numeric-owner", "-C", str(self.root), "-cf", str(layer), "."]
        subprocess.run(words, check=True)
        with layer.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": self._config | {"WorkingDir": self._folder},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{}],
        }
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        write_archive(archive, layer, config, manifest)
        layer.unlink()

    def _begin(self, words: list[str]) -> None:
        self.root = self._scratch / f"stage-{len(self._stages)}"
        shutil.rmtree(self.root, ignore_errors=True)
        self._folder, self._config, self._environment = "/", {}, {"PATH": BASE_PATH}
        self._stages[words[-1]] = self.root
        if words[0] == "scratch":
            self.root.mkdir(parents=True)
            return
        argument = re.fullmatch(r"\$\{(\w+)\}", words[0])
        base = self._stages[words[0]] if argument is None else self._arguments[argument[1]]
        self._scratch.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(self.root)], check=True)

    def _run(self, command: str) -> None:
        before: dict[str, bytes | None] = {}
        for path in _BORROWED:
            file = self.root / path
            before[path] = file.read_bytes() if file.exists() else None
            if Path("/", path).exists() and file.parent.exists():
                file.write_bytes(Path("/", path).read_bytes())
        proxies = {name: value for name, value in os.environ.items() if "proxy" in name.lower()}
        own = {"HOME": "/root", "PIP_CERT": f"/{_BORROWED[1]}", "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(
            ["chroot", str(self.root), "/bin/sh", "-ec", f"cd {self._folder}; {command}"],
            env={**proxies, **own, **self._environment},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for path, content in before.items():
            if content is None:
                (self.root / path).unlink(missing_ok=True)
            else:
                (self.root / path).write_bytes(content)

    def _copy(self, words: list[str]) -> None:
        origin = self._context
        if words[0].startswith("--from="):
            origin = self._stages[words.pop(0).removeprefix("--from=")]
        *sources, target = words
        place = self.root / os.path.normpath(os.path.join(self._folder, target)).lstrip("/")
        for source in sources:
            found = origin / source.lstrip("/")
            if found.is_dir():
                place.mkdir(parents=True, exist_ok=True)
                if origin is not self._context:
                    subprocess.run(["cp", "-a", f"{found}/.", str(place)], check=True)
                else:
                    shutil.copytree(found, place, ignore=self._ignored, dirs_exist_ok=True)
            else:
                into_folder = target.endswith("/") or len(sources) > 1 or place.is_dir()
                file = place / found.name if into_folder else place
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, file)

    def _ignored(self, place: str, names: list[str]) -> list[str]:
        below = Path(place).relative_to(self._context)
        return [name for name in names if is_ignored(str(below / name))]

    def _set(self, pairs: list[str]) -> None:
        for pair in pairs:
            name, _, value = pair.partition("=")
            expanded = Template(value).safe_substitute(self._environment)
            self._environment[name] = expanded
        self._config["Env"] = [f"{name}={value}" for name, value in self._environment.items()]


def save_program(program: Path, name: str, archive: Path) -> None:
    """Write an image of one static program."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as layer:
        layer.add(program, program.name)
    file = archive.with_suffix(".layer")
    file.write_bytes(content.getvalue())
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    write_archive(archive, file, config, manifest)
    file.unlink()


def write_archive(archive: Path, layer: Path, config: object, manifest: object) -> None:
    with tarfile.open(archive, "w") as whole:
        whole.add(layer, "layer.tar")
        for path, content in (("config.json", config), ("manifest.json", manifest)):
            data = json.dumps(content).encode()
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            whole.addfile(entry, io.BytesIO(data))

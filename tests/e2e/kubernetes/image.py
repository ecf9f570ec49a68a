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
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template

from tests.unit.kubernetes.containerfile import is_ignored, read

BASE_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
LIBRARIES = (
    "ca-certificates,libssl3,libffi8,libsqlite3-0,zlib1g,libbz2-1.0,liblzma5,libreadline8,"
    "libncursesw6,libexpat1,libuuid1"
)
# Folders and files that the official images of Debian and Python do not have.
_LEFT_OUT = ("usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man")
_LEFT_OUT_OF_PYTHON = ("__pycache__", "*.a", "test", "tests", "idle_test", "site-packages")
_BORROWED = ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt")


def _remove(folder: Path) -> None:
    """Remove a folder. File systems that an interrupted debootstrap has mounted in it are unmounted before; otherwise
    the removal would also try to remove the files in /proc.
    """
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", place], check=True)
    if folder.exists():
        shutil.rmtree(folder)


def python_base(root: Path) -> Path:
    """Return a root file system with Python and pip under /usr/local, which is made once."""
    if (root / "finished").exists():
        return root / "root"
    _remove(root)
    root.mkdir(parents=True)
    words = ["debootstrap", "--variant=minbase", f"--include={LIBRARIES}", "bookworm"]
    subprocess.run([*words, str(root / "root")], check=True, stdout=subprocess.DEVNULL)
    ignored = shutil.ignore_patterns(*_LEFT_OUT_OF_PYTHON)
    local = root / "root" / "usr" / "local"
    for part in ("include", "lib"):
        place = Path(sys.base_prefix, part)
        shutil.copytree(place, local / part, symlinks=True, dirs_exist_ok=True, ignore=ignored)
    major, minor = sys.version_info[:2]
    shutil.copy2(Path(sys.base_prefix, "bin", f"python{major}.{minor}"), local / "bin")
    for name in ("python", "python3"):
        (local / "bin" / name).symlink_to(f"python{major}.{minor}")
    (local / "lib" / f"python{major}.{minor}" / "site-packages").mkdir()
    libraries = [*local.glob("lib/*.so*"), *local.glob("lib/python*/lib-dynload/*.so")]
    subprocess.run(["strip", "--strip-unneeded", *map(str, libraries)], check=True)
    subprocess.run(["chown", "-R", "0:0", str(local)], check=True)
    subprocess.run(["chroot", str(root / "root"), "ldconfig"], check=True)
    pip = ["/usr/local/bin/python3", "-m", "ensurepip", "--default-pip"]
    own = {"PATH": BASE_PATH}
    subprocess.run(
        ["chroot", str(root / "root"), *pip], env=own, check=True, stdout=subprocess.DEVNULL
    )
    for left_out in _LEFT_OUT:
        shutil.rmtree(root / "root" / left_out)
        (root / "root" / left_out).mkdir()
    for waste in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(root / "root" / waste)
        (root / "root" / waste / "partial").mkdir(parents=True)
    (root / "finished").write_text(uuid.uuid4().hex)
    return root / "root"


def built(
    containerfile: Path,
    name: str,
    *,
    context: Path,
    arguments: Mapping[str, str | Path],
    kept: Path,
) -> Path:
    """Return the archive of an image, which is built again only after a file of it has changed."""
    kept.mkdir(parents=True, exist_ok=True)
    stem = f"{kept / name.replace(':', '-')}-{containerfile.suffix.lstrip('.') or 'services'}"
    parts = [containerfile.read_bytes(), repr(sorted(arguments.items())).encode()]
    parts += [
        (given.parent / "finished").read_bytes()
        for given in arguments.values()
        if isinstance(given, Path) and (given.parent / "finished").exists()
    ]
    parts += _copied_files(containerfile, context)
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    archive = Path(f"{stem}-{digest[:16]}.tar")
    if not archive.exists():
        for older in kept.glob(f"{Path(stem).name}-*.tar"):
            older.unlink()
        scratch = kept / "stages"
        build = ImageBuild(containerfile, context=context, arguments=arguments, scratch=scratch)
        build.save(f"docker.io/library/{name}", kept / "unfinished.tar")
        shutil.rmtree(scratch)
        (kept / "unfinished.tar").rename(archive)
    return archive


def bytes_unpacked(archive: Path) -> int:
    """Return the size of all files of an image."""
    return sum(member.size for member in _members(archive) if member.isfile())


def paths_of(archive: Path) -> Iterator[str]:
    """Yield the path of each file and folder of an image."""
    return (member.name for member in _members(archive))


def _members(archive: Path) -> Iterator[tarfile.TarInfo]:
    with (
        tarfile.open(archive) as whole,
        tarfile.open(fileobj=whole.extractfile("layer.tar")) as layer,
    ):
        yield from layer


def _copied_files(containerfile: Path, context: Path) -> Iterator[bytes]:
    """Yield the path and the content of every file that the build copies from its context."""
    for one in read(containerfile):
        if one.word != "COPY" or one.text.startswith("--from="):
            continue
        for source in shlex.split(one.text)[:-1]:
            place = context / source
            for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
                path = str(file.relative_to(context))
                if file.is_file() and not is_ignored(path):
                    yield path.encode()
                    yield file.read_bytes()


@dataclass(kw_only=True)
class Stage:
    """A root file system, and the settings that a container of it starts with."""

    root: Path
    folder: str = "/"
    config: dict[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": BASE_PATH})

    def copied(self, root: Path) -> Stage:
        """Return a stage that begins as a copy of this stage."""
        root.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--reflink=auto", str(self.root), str(root)], check=True)
        return replace(
            self, root=root, config=dict(self.config), environment=dict(self.environment)
        )


def stage_of(archive: Path, root: Path) -> Stage:
    """Return a stage that begins with the image of an archive."""
    root.mkdir(parents=True)
    with tarfile.open(archive) as whole:
        settings = whole.extractfile("config.json")
        layer = whole.extractfile("layer.tar")
        assert settings is not None, archive
        assert layer is not None, archive
        config = json.load(settings)["config"]
        words = ["tar", "--numeric-owner", "-C", str(root), "-xpf", "-"]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as unpack:
            assert unpack.stdin is not None
            shutil.copyfileobj(layer, unpack.stdin)
    assert unpack.returncode == 0, f"{archive} was not unpacked"
    variables = dict(pair.split("=", 1) for pair in config.get("Env", ()))
    return Stage(root=root, folder=config.pop("WorkingDir"), config=config, environment=variables)


class ImageBuild:
    """The stages of one Containerfile.

    `arguments` has the value of each ARG that is not the default; that of a base is a root file system, or the archive
    of an image that was built here.
    """

    def __init__(
        self,
        containerfile: Path,
        *,
        context: Path,
        arguments: Mapping[str, str | Path],
        scratch: Path,
    ) -> None:
        self._context, self._arguments, self._scratch = context, arguments, scratch
        self._stages: dict[str, Stage] = {}
        self._stage = Stage(root=scratch)
        self._given: dict[str, str] = {}
        for one in read(containerfile):
            if one.word == "FROM":
                self._begin(one.text.split())
            elif one.word == "RUN":
                self._run(one.text)
            elif one.word == "COPY":
                self._copy(shlex.split(one.text))
            elif one.word == "WORKDIR":
                self._stage.folder = one.text
                (self._stage.root / one.text.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif one.word == "ENV":
                self._set(shlex.split(one.text))
            elif one.word == "ARG":
                name, _, default = one.text.partition("=")
                self._given[name] = str(arguments.get(name, default))
            elif one.word in ("ENTRYPOINT", "CMD"):
                self._stage.config[one.word.capitalize()] = one.listed()
            elif one.word == "USER":
                self._stage.config["User"] = one.text
            else:
                assert one.word in ("LABEL", "STOPSIGNAL"), f"{one.word} is not known here"

    def save(self, name: str, archive: Path) -> None:
        """Write the last stage as an archive that `ctr images import` reads."""
        layer = self._scratch / "layer.tar"
        words = ["tar", "--numeric-owner", "-C", str(self._stage.root), "-cf", str(layer), "."]
        subprocess.run(words, check=True)
        with layer.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": self._stage.config | {"WorkingDir": self._stage.folder},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{}],
        }
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        write_archive(archive, layer, config, manifest)
        layer.unlink()

    def _begin(self, words: list[str]) -> None:
        root = self._scratch / f"stage-{len(self._stages)}"
        shutil.rmtree(root, ignore_errors=True)
        self._given = {}
        argument = re.fullmatch(r"\$\{(\w+)\}", words[0])
        if words[0] == "scratch":
            root.mkdir(parents=True)
            self._stage = Stage(root=root)
        elif argument is None:
            self._stage = self._stages[words[0]].copied(root)
        elif (base := Path(self._arguments[argument[1]])).is_dir():
            self._stage = Stage(root=base).copied(root)
        else:
            self._stage = stage_of(base, root)
        self._stages[words[-1]] = self._stage

    def _run(self, command: str) -> None:
        root = self._stage.root
        before: dict[str, bytes | None] = {}
        for path in _BORROWED:
            file = root / path
            before[path] = file.read_bytes() if file.exists() else None
            if Path("/", path).exists() and file.parent.exists():
                file.write_bytes(Path("/", path).read_bytes())
        proxies = {name: value for name, value in os.environ.items() if "proxy" in name.lower()}
        own = {"HOME": "/root", "PIP_CERT": f"/{_BORROWED[1]}", "DEBIAN_FRONTEND": "noninteractive"}
        shell = ["chroot", str(root), "/bin/sh", "-ec", f"cd {self._stage.folder}; {command}"]
        # Java's packages need /proc. It is unmounted when the command ends.
        subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc", *shell],
            env={**proxies, **own, **self._given, **self._stage.environment},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for path, content in before.items():
            if content is None:
                (root / path).unlink(missing_ok=True)
            else:
                (root / path).write_bytes(content)

    def _copy(self, words: list[str]) -> None:
        origin = self._context
        if words[0].startswith("--from="):
            origin = self._stages[words.pop(0).removeprefix("--from=")].root
        *sources, target = words
        folder, root = self._stage.folder, self._stage.root
        place = root / os.path.normpath(os.path.join(folder, target)).lstrip("/")
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
            expanded = Template(value).safe_substitute(self._stage.environment)
            self._stage.environment[name] = expanded
        self._stage.config["Env"] = [
            f"{name}={value}" for name, value in self._stage.environment.items()
        ]


def save_program(program: Path, name: str, archive: Path) -> None:
    """Write an image of one static program."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as layer:
        layer.add(program, f"bin/{program.name}")
    file = archive.with_suffix(".layer")
    file.write_bytes(content.getvalue())
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/bin/{program.name}"], "WorkingDir": "/"},
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

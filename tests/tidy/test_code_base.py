"""Rules on the code base: sizes of files and folders, names, generated files, licences."""

from __future__ import annotations

import ast
import graphlib
import itertools
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import grimp
import pytest

from odradek_broker.settings import BrokerSettings
from odradek_gateway.settings import GatewaySettings
from odradek_metadata_quorum.settings import QuorumProcessSettings
from odradek_protocol.process_settings import SETTINGS_OF, Process
from odradek_runtime.settings import specs_of
from tests.tools import need

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "proto/python/odradek_protocol",
    "services/runtime/odradek_runtime",
    "services/metadata_quorum/odradek_metadata_quorum",
    "services/broker/odradek_broker",
    "services/gateway/odradek_gateway",
    "clients/python/odradek",
    "clients/python/odradek_demo",
    "spark_connector/pyspark_odradek",
    "spark_connector/odradek_pipelines",
)
LINES_MAX = 600
TEST_LINES_MAX = 500
FILES_IN_FOLDER_MAX = 24
FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|manager|misc)(_|$)")


def sources() -> list[Path]:
    found = [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "rpc/v1" not in path.as_posix()
    ]
    assert len(found) > 50, "the packages moved, and this test looks at nothing"
    return found


def test_no_file_is_longer_than_a_person_reads() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources()
        if (lines := len(path.read_text().splitlines())) > LINES_MAX
    }
    assert not long, f"over {LINES_MAX} lines: {long}"
    tests = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "tests").rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > TEST_LINES_MAX
    }
    assert not tests, f"over {TEST_LINES_MAX} lines: {tests}"


def test_no_folder_is_a_heap() -> None:
    heaps = {}
    for package in PACKAGES:
        folders = [ROOT / package, *(p for p in (ROOT / package).rglob("*") if p.is_dir())]
        for folder in folders:
            if "v1" in folder.parts or folder.name == "__pycache__":
                continue
            count = len([p for p in folder.glob("*.py") if p.name != "__init__.py"])
            if count > FILES_IN_FOLDER_MAX:
                heaps[str(folder.relative_to(ROOT))] = count
    assert not heaps


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert not [str(p.relative_to(ROOT)) for p in sources() if FORBIDDEN_NAMES.search(p.stem)]


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if not path.read_text().lstrip().startswith(('"""', 'r"""'))
    ]
    assert not silent, f"without a docstring on top: {silent}"


def test_no_files_import_each_other_in_a_circle_not_even_for_types() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    graph = grimp.build_graph(*packages["root_packages"], cache_dir=None)
    assert len(graph.modules) > 400, "the packages moved, and this test looks at nothing"
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_no_module_is_dead() -> None:
    """A module that no other file in the repository names is dead, unless it is run with -m."""
    files = [ROOT / "pyproject.toml", ROOT / "Makefile"] + [
        path
        for folder in ("proto", "services", "clients", "spark_connector", "tests", "deploy")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and path.suffix in (".py", ".toml", ".yaml", ".txt")
        and "rpc/v1" not in path.as_posix()
    ]
    word = re.compile(r"\b(\w+)\b(?!\.py\b)(?=[\s,)\.\"':]|\Z)")
    named_in: dict[str, set[Path]] = {}
    for path in files:
        for name in set(word.findall(path.read_text(errors="replace"))):
            named_in.setdefault(name, set()).add(path)
    # Modules in the folder `requests` do not count, because the registry of Kafka requests imports all of them.
    dead = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.stem not in ("__init__", "__main__")
        and "requests" not in path.parts
        and not named_in.get(path.stem, set()) - {path}
    ]
    assert not dead, f"nothing imports: {dead}"


@pytest.mark.parametrize(
    ("process", "declared"),
    [
        (Process.BROKER, BrokerSettings),
        (Process.CONTROLLER, QuorumProcessSettings),
        (Process.GATEWAY, GatewaySettings),
    ],
)
def test_the_table_of_settings_has_the_names_that_each_process_declares(
    process: Process, declared: type[Any]
) -> None:
    names = {name for _, spec in specs_of(declared).values() for name in (spec.name, *spec.aliases)}
    table = "proto/python/odradek_protocol/process_settings.py"
    assert names - SETTINGS_OF[process] == set(), f"add these to {table}"
    assert SETTINGS_OF[process] - names == set(), f"remove these from {table}"


def test_one_file_knows_the_raft_library() -> None:
    engine = "services/metadata_quorum/odradek_metadata_quorum/raft/engine.py"
    paths = [*sources(), *(ROOT / "tests").rglob("*.py")]
    known = re.compile(r"_SyncObj__|^\s*(import|from) pysyncobj|import_module\(.pysyncobj.\)", re.M)
    knowing = {str(path.relative_to(ROOT)) for path in paths if known.search(path.read_text())}
    assert knowing - {"tests/tidy/test_code_base.py"} == {engine}


def test_no_pickle_is_within_reach() -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in sources()
        if re.search(
            r"^\s*(import|from)\s+(pickle|cPickle|dill|marshal|shelve)\b", path.read_text(), re.M
        )
    ]
    assert not offenders


@pytest.mark.parametrize(
    "name",
    [
        "requirements.lock",
        *(f"deploy/k8s/locks/{name}.lock" for name in ("build", "services", "spark")),
    ],
)
def test_a_lock_has_hashes_and_no_addresses(name: str) -> None:
    lock = (ROOT / name).read_text()
    assert "--hash=sha256:" in lock
    assert "://" not in lock


def test_no_grpcio_is_allowed_that_decompresses_before_it_measures() -> None:
    """Up to version 1.82, grpcio checked the size of a message after decompressing it:

    522 KB of gzip became 512 MiB.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], project["optional-dependencies"]["server"]]
    floors = [
        tuple(map(int, version.split(".")))
        for requirement in itertools.chain(*groups)
        for version in re.findall(
            r"^grpcio(?:-health-checking|-reflection)?>=([\d.]+)", requirement
        )
    ]
    assert len(floors) == 3
    assert min(floors) >= (1, 84)


def test_no_exception_is_raised_within_except_star() -> None:
    """CPython 3.11.2, which Debian 12 has, wraps such an exception in an ExceptionGroup, which its handlers miss."""
    raising = [
        f"{path.relative_to(ROOT)}:{inner.lineno}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.TryStar)
        for handler in node.handlers
        for inner in ast.walk(handler)
        if isinstance(inner, ast.Raise)
    ]
    assert not raising


def test_nothing_generated_is_in_git() -> None:
    need("a git checkout")
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    generated = [
        p for p in tracked if p.endswith(("_pb2.py", "_pb2_grpc.py", "messages.pyi", ".so", ".pyc"))
    ]
    assert not generated


def test_every_package_folder_has_a_readme_or_says_all_in_its_docstring() -> None:
    for package in PACKAGES:
        folder = ROOT / package
        near = (folder, folder.parent, folder.parent.parent)
        assert any((place / "README.md").exists() for place in near), f"{package} has no README.md"


def test_no_runtime_dependency_is_gpl_or_lgpl() -> None:
    """The test checks what `pip install odradek[server,arrow,avro,spark]` installs, and not what
    only tests need.
    """
    seen: set[str] = set()
    queue = ["odradek"]
    extras = ("server", "arrow", "avro", "spark")
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            requires = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            continue
        for line in requires:
            requirement, _, marker = line.partition(";")
            if "extra ==" in marker and not (
                name == "odradek" and any(f"'{e}'" in marker or f'"{e}"' in marker for e in extras)
            ):
                continue
            queue.append(re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0].lower())
    assert len(seen) > 15, f"only {seen}: is odradek installed?"
    copyleft = {}
    for name in seen - {"odradek"}:
        try:
            meta = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        licences = " ".join(
            [meta.get("License-Expression") or (meta.get("License") or "")[:100]]
            + [c for c in meta.get_all("Classifier") or [] if c.startswith("License")]
        )
        if re.search(r"\b(A|L)?GPL|Lesser General|GNU General", licences):
            copyleft[name] = licences
    assert not copyleft

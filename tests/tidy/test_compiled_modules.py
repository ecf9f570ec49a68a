"""The modules that mypyc compiles have no class that would differ when it is compiled, and are installed whole."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _compiler() -> ModuleType:
    path = ROOT / "proto" / "compile_modules.py"
    spec = importlib.util.spec_from_file_location("compile_modules", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COMPILER = _compiler()


def faults(source: str) -> list[str]:
    """Return what a compiled module must not have: structs whose options would be lost, dataclasses with slots."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        if any(ast.unparse(base).split(".")[-1] == "Struct" for base in node.bases):
            found.append(f"{node.name} is a Struct: use a base of odradek_broker.compiled")
        lost = {word.arg for word in node.keywords} - {"frozen", "kw_only"}
        if lost:
            found.append(f"{node.name} would lose {', '.join(map(str, sorted(lost, key=str)))}")
        if any("slots=True" in ast.unparse(decorator) for decorator in node.decorator_list):
            found.append(f"{node.name} is a dataclass with slots=True")
    return found


@pytest.mark.parametrize("module", COMPILER.MODULES)
def test_a_compiled_module_keeps_the_rules_of_compile_modules(module: str) -> None:
    assert not faults((COMPILER.PACKAGE / module).read_text())


@pytest.mark.parametrize(
    "source",
    [
        "class A(Struct): ...",
        "class A(msgspec.Struct, frozen=True): ...",
        "class A(Value, gc=True): ...",
        "@dataclass(slots=True)\nclass A: ...",
    ],
)
def test_each_fault_is_found(source: str) -> None:
    assert len(faults(source)) == 1


def test_sound_classes_have_no_fault() -> None:
    assert not faults("class A(Value, frozen=True, kw_only=True): ...\n@dataclass\nclass B: ...")


def _package(directory: Path, content: str, files: int = 20) -> Path:
    package = directory / "some_package"
    package.mkdir(parents=True)
    for number in range(files):
        (package / f"module_{number}.py").write_text(content)
    return package


def _contents(package: Path) -> list[str]:
    return [path.read_text() for path in sorted(package.iterdir())]


@pytest.mark.parametrize("killed_at", range(1, 24))
def test_a_package_is_placed_whole_or_not_at_all_if_the_process_is_killed(
    killed_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill is an exception here, at each of the 20 copied files and at both renames."""
    old, new = _package(tmp_path / "old", "old"), _package(tmp_path / "new", "new")
    target = tmp_path / "target"
    target.mkdir()
    COMPILER.place(old, target)
    steps = 0

    def killing(change: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **named: object) -> object:
            nonlocal steps
            steps += 1
            if steps == killed_at:
                raise KeyboardInterrupt
            return change(*args, **named)

        return step

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(shutil, "copystat", killing(shutil.copystat))
        patch.setattr(Path, "rename", killing(Path.rename))
        COMPILER.place(new, target)
    assert steps == killed_at
    placed = target / "some_package"
    if placed.exists():
        assert _contents(placed) in (["old"] * 20, ["new"] * 20)
    COMPILER.place(new, target)
    assert _contents(placed) == ["new"] * 20
    assert sorted(path.name for path in target.iterdir()) == [".lock", "some_package"]


def test_two_processes_that_place_a_package_wait_for_each_other(tmp_path: Path) -> None:
    packages = [_package(tmp_path / str(number), str(number), 200) for number in range(4)]
    target = tmp_path / "target"
    target.mkdir()
    with ThreadPoolExecutor(len(packages)) as pool:  # a lock of a file excludes threads as well
        list(pool.map(lambda package: COMPILER.place(package, target), packages))
    contents = _contents(target / "some_package")
    assert len(contents) == 200
    assert len(set(contents)) == 1

"""The modules that mypyc compiles have no class that would be another one when it is compiled."""

from __future__ import annotations

import ast
import importlib.util
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

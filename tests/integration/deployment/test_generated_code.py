"""The gRPC code is generated again while another process imports it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Run `proto/generate.py`, which writes below a folder of the test."""
    monkeypatch.syspath_prepend(ROOT / "proto")  # as for a script there
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RPC_PACKAGE", tmp_path / "rpc")
    module.main()
    return module


def inodes(package: Path) -> dict[str, int]:
    return {str(p.relative_to(package)): p.stat().st_ino for p in package.rglob("*.py*")}


def test_what_is_up_to_date_is_left_alone(generate: ModuleType) -> None:
    before = inodes(generate.RPC_PACKAGE)
    assert "v1/common_pb2.py" in before
    generate.main()
    assert inodes(generate.RPC_PACKAGE) == before


def test_what_changed_is_replaced_in_one_step_and_what_is_left_over_goes(
    generate: ModuleType,
) -> None:
    package = generate.RPC_PACKAGE
    changed, left_over = package / "v1" / "common_pb2.py", package / "v1" / "gone_pb2.py"
    text = changed.read_text()
    changed.write_text("# older\n")
    left_over.write_text("# of a file that was removed\n")
    with changed.open() as reader:
        generate.main()
        assert reader.read() == "# older\n", "who had opened it still reads the old one whole"
    assert changed.read_text() == text
    assert not left_over.exists()
    assert not list(package.rglob(".*"))

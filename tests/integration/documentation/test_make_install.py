"""`make install` prints what it does, refuses an old Python with advice, and replaces an unusable
.venv.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.documentation.pages import ROOT

# A Python that makes environments whose packages come from nowhere; its programs are those of the real one.
PYTHON = f"""#!/bin/sh
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip" ;;
  "-m pip") echo "$*" >> installed.txt ;;
  "--version "*) echo Python 3.12.1 ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
OLD_PYTHON = f"""#!/bin/sh
exec {sys.executable} -c 'import sys
sys.version_info = (3, 9, 18, "final", 0)
exec(sys.argv[1])' "$2"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a directory with the files that the target depends on, and two Pythons."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "proto"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name, text in (("python3.12", PYTHON), ("python3.9", OLD_PYTHON)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def install(checkout: Path, python: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # `make test` runs this make below its own, which would then print the directories that it enters.
        ["make", "--no-print-directory", "install", f"PYTHON={python}", "UV="],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_it_says_what_it_installs_and_what_comes_next(checkout: Path) -> None:
    done = install(checkout, "./python3.12")
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("Installing into .venv (Python 3.12.1)")
    assert last == "Installed. Next: source .venv/bin/activate && odradek dev"
    locked, editable = (checkout / "installed.txt").read_text().splitlines()
    assert "--require-hashes -r requirements.lock" in locked
    assert editable.endswith("-e .")


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("./python3.9", "./python3.9 is 3.9: make install PYTHON=python3.11"),
        ("nosuch", "there is no nosuch: make install PYTHON=/path/to/python3.11"),
    ],
)
def test_an_unusable_python_is_refused_with_the_way_out(
    checkout: Path, python: str, words: str
) -> None:
    done = install(checkout, python)
    assert done.returncode != 0
    assert "Odradek needs Python 3.11 or newer" in done.stdout + done.stderr
    assert words in done.stdout + done.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("kind", ["half made", "of an old Python", "of another checkout"])
def test_an_unusable_environment_is_made_again(checkout: Path, kind: str) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "leftover").touch()
    if kind == "of an old Python":
        (checkout / ".venv/bin/python").write_text(OLD_PYTHON)
    elif kind == "of another checkout":
        (checkout / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for program in (checkout / ".venv/bin").iterdir():
        program.chmod(0o755)
    done = install(checkout, "./python3.12")
    assert done.returncode == 0, done.stderr
    assert ".venv is not a virtual environment of this checkout: making it again" in done.stdout
    assert not (checkout / ".venv" / "leftover").exists()
    assert (checkout / "installed.txt").exists()

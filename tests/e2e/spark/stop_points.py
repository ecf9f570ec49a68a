"""Points at which a Python worker of Spark stops, so that a test can kill a process exactly there.

Workers import `sitecustomize` when they start. `install` puts a directory first on their path,
whose `sitecustomize` wraps the delivery at the moment when it is imported, and not before: the
process from which Spark forks workers must not load gRPC. A point is armed by a file. The first
worker that reaches it writes its process id to another file, and stops.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "ODRADEK_STOP_POINTS"
_MODULE = "pyspark_odradek.staged_delivery"
_POINTS = {
    # point: class, method, and whether it stops before the call or after it
    "opened": ("ExactlyOnce", "open", False),
    "writing": ("_Staged", "send", False),
    "before prepare": ("_Staged", "prepare", True),
    "prepared": ("_Staged", "prepare", False),
    "before completion": ("ExactlyOnce", "complete", True),
    "completed": ("ExactlyOnce", "complete", False),
}
POINTS = tuple(_POINTS)


def install(directory: Path) -> dict[str, str]:
    """Prepare a directory; return environment variables for the driver, which its workers
    inherit.
    """
    directory.mkdir()
    shutil.copy(__file__, directory / "stop_points_of_tests.py")
    (directory / "sitecustomize.py").write_text(
        "import stop_points_of_tests; stop_points_of_tests.watch()\n"
    )
    path = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))
    return {VARIABLE: str(directory), "PYTHONPATH": path}


def arm(directory: Path, point: str) -> None:
    """Let the next worker that reaches the point stop there."""
    assert point in _POINTS
    (directory / f"{point}.armed").touch()


def reached(directory: Path, point: str) -> int | None:
    """Return the process id of the worker that has stopped at the point; None if there is none
    yet.
    """
    path = directory / f"{point}.reached"
    text = path.read_text() if path.exists() else ""
    return int(text) if text else None


def disarm(directory: Path, point: str) -> None:
    """Reset a point at which a worker has stopped, so that it can be armed again."""
    (directory / f"{point}.reached").unlink()


def watch() -> None:
    """Wrap the delivery as soon as this process imports it."""
    if VARIABLE in os.environ:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = _Wrapping(spec.loader)
        return spec


class _Wrapping(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        directory = Path(os.environ[VARIABLE])
        for point, (class_name, method, is_before) in _POINTS.items():
            owner = getattr(module, class_name)
            setattr(owner, method, _stopping(directory, point, getattr(owner, method), is_before))


def _stopping(
    directory: Path, point: str, call: Callable[..., Any], is_before: bool
) -> Callable[..., Any]:
    def stopping(*arguments: Any, **named: Any) -> Any:
        if is_before:
            _stand(directory, point)
        outcome = call(*arguments, **named)
        if not is_before:
            _stand(directory, point)
        return outcome

    return stopping


def _stand(directory: Path, point: str) -> None:
    armed, standing = directory / f"{point}.armed", directory / f"{point}.standing"
    try:
        armed.rename(standing)  # only one worker can rename the file
    except FileNotFoundError:
        return
    standing.write_text(str(os.getpid()))
    standing.rename(directory / f"{point}.reached")
    while True:
        time.sleep(3600)

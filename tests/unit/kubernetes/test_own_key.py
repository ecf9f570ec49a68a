"""The sidecar that gives a pod its own key and no other's, run as a real process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.kubernetes.rendered import K8S

NAMES = ("ca.crt", "tls.crt", "tls.key")


class Volume:
    """A projected volume as the kubelet writes it: files are below `..data`, a link that is
    replaced.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._versions = 0

    def write(self, content: str) -> None:
        """Write a new version, with files for two pods."""
        self._versions += 1
        version = self.folder / f"..version-{self._versions}"
        for pod in ("broker-1", "broker-2"):
            (version / pod).mkdir(parents=True)
            for name in NAMES:
                (version / pod / name).write_text(f"{pod} {name} {content}")
            link = self.folder / pod
            if not link.is_symlink():
                link.symlink_to(f"..data/{pod}")
        link = self.folder / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(self.folder / "..data")


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path / "all")


@pytest.fixture
def sidecar(tmp_path: Path, volume: Volume) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "own").mkdir()
    program = [sys.executable, str(K8S / "base" / "own_key.py")]
    with subprocess.Popen(
        [*program, str(volume.folder / "broker-1"), str(tmp_path / "own")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def wait_for_copy(sidecar: subprocess.Popen[str]) -> None:
    assert sidecar.stdout is not None
    for line in sidecar.stdout:
        if line.startswith("copied"):
            return
    raise AssertionError("the sidecar ended")


@pytest.mark.timeout(60)
def test_it_waits_for_a_key_copies_it_whole_and_again_when_it_is_renewed(
    tmp_path: Path, volume: Volume, sidecar: subprocess.Popen[str]
) -> None:
    assert sidecar.stdout is not None
    assert "cannot be read" in sidecar.stdout.readline()  # there is no secret yet
    for content in ("first", "renewed"):
        volume.write(content)
        wait_for_copy(sidecar)
        current = tmp_path / "own" / "current"
        assert {one.name: one.read_text() for one in current.iterdir()} == {
            name: f"broker-1 {name} {content}" for name in NAMES
        }
        assert (current / "tls.key").stat().st_mode & 0o777 == 0o400
    sidecar.send_signal(signal.SIGTERM)
    assert sidecar.wait(30) == 0, "a pod that stops would wait for it"
    assert len(list((tmp_path / "own").glob("version-*"))) <= 2

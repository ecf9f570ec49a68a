"""The simulated power loss of FragileDisks drops the bytes that were not synced, and no others."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.faults.fragile_disk import FragileDisks

Run = Callable[..., None]
_BEGIN = """
import os
os.chdir({root!r})
def put(path, data, *, sync=False, at=0):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, data, at)
    if sync:
        os.fdatasync(fd)
    os.close(fd)
def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
"""


@pytest.fixture
def disks(tmp_path: Path) -> FragileDisks:
    (tmp_path / "root" / "data").mkdir(parents=True)
    (tmp_path / "workspace").mkdir()
    fragile = FragileDisks(tmp_path / "root", tmp_path / "workspace")
    fragile.plug_in()
    return fragile


@pytest.fixture
def run(disks: FragileDisks) -> Run:
    """Return a function that runs a program in a directory of the disk."""

    def run_program(program: str, *, lies: str = "") -> None:
        code = _BEGIN.format(root=str(disks.root / "data")) + program
        command = [sys.executable, "-S", "-c", code]
        done = subprocess.run(
            command,
            env=disks.environment(lies=lies),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return run_program


def content(disks: FragileDisks) -> dict[str, bytes]:
    data = disks.root / "data"
    return {
        str(p.relative_to(data)): p.read_bytes() if p.is_file() else b"/" for p in data.rglob("*")
    }


def test_what_was_synced_stays_and_what_was_not_goes(disks: FragileDisks, run: Run) -> None:
    run(
        "put('synced', b'kept', sync=True); put('half', b'kept', sync=True); sync('.')\n"
        "put('half', b' lost', at=4); put('never', b'lost'); put('unnamed', b'lost', sync=True)"
    )
    assert disks.differences() == []
    loss = disks.cut_power()
    assert content(disks) == {"synced": b"kept", "half": b"kept"}
    assert loss.unsynced_bytes == len(b" lost" + b"lost")
    assert loss.unsynced_entries == len(("never", "unnamed"))


def test_renames_removals_and_truncations_are_undone_unless_they_are_synced(
    disks: FragileDisks, run: Run
) -> None:
    run(
        "for name in ('a', 'b', 'c', 'd'): put(name, name.encode() * 9, sync=True)\n"
        "os.mkdir('sub'); put('sub/e', b'e', sync=True); sync('sub'); sync('.')"
    )
    disks.cut_power()
    before = content(disks)
    assert before.keys() == {"a", "b", "c", "d", "sub", "sub/e"}
    changes = (
        "os.replace('a', 'b'); os.unlink('c'); os.ftruncate(os.open('d', os.O_RDWR), 3)\n"
        "import shutil; shutil.rmtree('sub')\n"
    )
    run(changes)
    assert disks.differences() == []
    disks.cut_power()
    assert content(disks) == before
    run(changes + "sync('d'); sync('.')")
    disks.cut_power()
    assert content(disks) == {"b": b"a" * 9, "d": b"ddd"}


def test_a_second_life_of_the_process_goes_on_where_the_first_was_killed(
    disks: FragileDisks, run: Run
) -> None:
    run("put('log', b'one ', sync=True); sync('.'); put('log', b'two ', at=4)")
    # This sync also covers the bytes that the first process left in the page cache.
    run("put('log', b'three', at=8, sync=True)")
    run("put('log', b'four', at=13)")
    disks.cut_power()
    assert content(disks) == {"log": b"one two three"}


def test_a_disk_that_lies_forgets_what_it_called_synced(disks: FragileDisks, run: Run) -> None:
    run("put('a.log', b'lost', sync=True); put('b', b'kept', sync=True); sync('.')", lies=".log")
    disks.cut_power()
    assert content(disks) == {"a.log": b"", "b": b"kept"}


def test_the_machine_boots_again_after_a_power_loss(disks: FragileDisks, run: Run) -> None:
    save = "put('id', open('/proc/sys/kernel/random/boot_id', 'rb').read(), sync=True); sync('.')"
    boot_ids = set()
    for _ in range(2):
        run(save)
        disks.cut_power()
        boot_ids.add(content(disks)["id"])
    assert len(boot_ids) == 2


def test_sectors_of_unsynced_writes_may_survive_by_chance(disks: FragileDisks, run: Run) -> None:
    kept = set()
    run("put('log', b'', sync=True); sync('.')")
    disks.cut_power()
    for seed in range(20):
        run("put('log', b'x' * 2048)")
        disks.cut_power(random.Random(seed))
        found = content(disks)["log"]
        assert set(found) <= {0, ord("x")}
        kept.add(found)
        run("os.ftruncate(os.open('log', os.O_RDWR), 0); sync('log')")
    assert b"" in kept
    assert b"x" * 2048 in kept
    assert any(0 in found for found in kept), "no torn write in 20 cuts"


def test_a_change_that_the_shim_cannot_follow_ends_the_process(
    disks: FragileDisks, run: Run
) -> None:
    with pytest.raises(AssertionError, match="copy_file_range"):
        run("put('a', b'a'); os.copy_file_range(os.open('a', 0), os.open('b', 66, 0o600), 1)")


@pytest.mark.parametrize(
    ("changes", "found", "durable"),
    [
        # The new file exists, but its name is not synced.
        (1, {"a": b"old", "b": b""}, {"a": b"old"}),
        (2, None, {"a": b"old"}),  # a part of the write is done
        # The new file is written, and perhaps synced, but its name is not.
        (3, {"a": b"old", "b": b"x" * 64}, {"a": b"old"}),
        (4, {"a": b"x" * 64}, {"a": b"old"}),  # renamed, but the directory is not synced
        (5, {"a": b"x" * 64}, None),  # the old or the new content
    ],
)
def test_a_process_is_killed_within_any_change(
    disks: FragileDisks, run: Run, changes: int, found: dict[str, bytes] | None, durable: object
) -> None:
    """The program replaces a file in the safe way: create, write, sync, rename, sync the
    directory.
    """
    run("put('a', b'old', sync=True); sync('.')")
    disks.cut_power()
    code = (
        f"stops = os.path.join({str(disks.root.parent / 'workspace' / 'stops')!r}, str(os.getpid()))\n"
        "with open(stops, 'r+b', buffering=0) as file:\n"
        f"    file.write(({changes}).to_bytes(4, 'little'))\n"
        "put('b', b'x' * 64, sync=True); os.rename('b', 'a'); sync('.')\n"
        "raise SystemExit('it lives')"
    )
    with pytest.raises(AssertionError, match=f"assert {-signal.SIGKILL} == 0"):
        run(code)
    seen = content(disks)
    if found is None:
        assert seen["b"] == b"x" * len(seen["b"])
    else:
        assert seen == found
    assert disks.differences() == []
    disks.cut_power()
    assert content(disks) == durable or (
        durable is None and content(disks) in ({"a": b"old"}, {"a": b"x" * 64})
    )

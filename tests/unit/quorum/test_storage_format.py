"""A data directory of another node or cluster is refused, and the error says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek_metadata_quorum.errors import CorruptStorage, StorageMismatch
from odradek_metadata_quorum.process import QuorumProcess
from odradek_metadata_quorum.settings import ENV_PREFIX, QuorumProcessSettings
from odradek_metadata_quorum.storage.data_directory import (
    IDENTITY_NAME,
    check_storage,
    format_storage,
)
from odradek_metadata_quorum.storage.disk import DirectoryDisk
from odradek_metadata_quorum.storage.vote_file import VoteFile
from odradek_runtime.lifecycle import ProcessRefused
from odradek_runtime.settings import load_settings


def test_a_formatted_directory_is_recognized_and_may_not_vote_yet(tmp_path: Path) -> None:
    made = format_storage(tmp_path / "q", cluster_id="c", node_id=2, voters=[3, 1, 2])
    assert made.voters == (1, 2, 3)
    assert not made.joined
    assert check_storage(tmp_path / "q", cluster_id="c", node_id=2, voters=[1, 2, 3]) == made
    assert format_storage(tmp_path / "q", cluster_id="c", node_id=2, voters=[1, 2, 3]) == made


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"cluster_id": "d"}, "belongs to cluster c, not d"),
        ({"node_id": 1}, "belongs to controller 2, not 1"),
        ({"voters": [1, 2]}, r"formatted for the voters \[1, 2, 3\]"),
        ({"node_id": 9}, "not among the voters"),
    ],
)
def test_a_directory_of_somebody_else_is_refused(
    tmp_path: Path, other: dict[str, object], message: str
) -> None:
    format_storage(tmp_path, cluster_id="c", node_id=2, voters=[1, 2, 3])
    wanted = {"cluster_id": "c", "node_id": 2, "voters": [1, 2, 3], **other}
    for call in (check_storage, format_storage):
        with pytest.raises(StorageMismatch, match=message):
            call(tmp_path, **wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("node_id", [-1, 1 << 31])
def test_an_id_that_no_controller_can_have_is_refused(tmp_path: Path, node_id: int) -> None:
    with pytest.raises(
        StorageMismatch, match=f"controller id {node_id} is not from 0 to 2147483647"
    ):
        format_storage(tmp_path / "own", cluster_id="c", node_id=node_id, voters=[1, node_id])
    with pytest.raises(StorageMismatch, match=f"controller id {node_id} is not from 0"):
        format_storage(tmp_path / "own", cluster_id="c", node_id=1, voters=[1, node_id])
    assert not (tmp_path / "own").exists()


def test_missing_unformatted_strange_and_locked_directories_are_refused(tmp_path: Path) -> None:
    identity = {"cluster_id": "c", "node_id": 1, "voters": [1]}
    with pytest.raises(StorageMismatch, match="does not exist: run `odradek storage format`"):
        check_storage(tmp_path / "none", **identity)  # type: ignore[arg-type]
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageMismatch, match="not formatted: run `odradek storage format`"):
        check_storage(tmp_path / "empty", **identity)  # type: ignore[arg-type]
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "thesis.doc").write_text("x")
    with pytest.raises(StorageMismatch, match=r"not empty \(thesis.doc\): format an empty"):
        format_storage(tmp_path / "strange", **identity)  # type: ignore[arg-type]
    (tmp_path / "strange" / "untitled.doc").write_text("x")
    with pytest.raises(StorageMismatch, match=r"not empty \(\w+.doc and 1 more\)"):
        format_storage(tmp_path / "strange", **identity)  # type: ignore[arg-type]
    format_storage(tmp_path / "used", **identity)  # type: ignore[arg-type]
    disk = DirectoryDisk(tmp_path / "used")
    with pytest.raises(StorageMismatch, match="locked by another process"):
        check_storage(tmp_path / "used", **identity)  # type: ignore[arg-type]
    disk.close()


def test_a_new_file_system_is_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    identity = format_storage(tmp_path, cluster_id="c", node_id=1, voters=[1])
    assert check_storage(tmp_path, cluster_id="c", node_id=1, voters=[1]) == identity
    assert (tmp_path / "lost+found").is_dir()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1, "cluster_id": 3}', "\0\0"])
def test_a_damaged_identity_is_refused(tmp_path: Path, text: str) -> None:
    format_storage(tmp_path, cluster_id="c", node_id=1, voters=[1])
    (tmp_path / IDENTITY_NAME).write_text(text)
    with pytest.raises(CorruptStorage, match="damaged"):
        check_storage(tmp_path, cluster_id="c", node_id=1, voters=[1])


def controller(directory: Path, *, formats: bool) -> QuorumProcess:
    given = {
        "node.id": "1",
        "cluster.id": "c",
        "log.dirs": str(directory),
        "controller.quorum.voters": "1@127.0.0.1:9095",
        "storage.format.if.empty": str(formats).lower(),
    }
    settings = load_settings(
        QuorumProcessSettings,
        env={},
        env_prefix=ENV_PREFIX,
        assignments=[f"{name}={value}" for name, value in given.items()],
    )
    return QuorumProcess(settings, insecure=False)


def test_a_controller_finishes_a_format_during_which_it_was_killed(tmp_path: Path) -> None:
    """The directory lost+found, which a new ext4 volume has, must not prevent this."""
    (tmp_path / "lost+found").mkdir()
    disk = DirectoryDisk(tmp_path)
    VoteFile.create(disk)
    disk.close()
    with pytest.raises(ProcessRefused, match="not formatted"):
        controller(tmp_path, formats=False)._prepare_storage()
    controller(tmp_path, formats=True)._prepare_storage()
    check_storage(tmp_path, cluster_id="c", node_id=1, voters=[1])


def test_a_controller_formats_no_directory_that_has_other_files(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    with pytest.raises(ProcessRefused, match="is not empty"):
        controller(tmp_path, formats=True)._prepare_storage()
    assert [path.name for path in tmp_path.iterdir() if path.name != "lock"] == ["orders-0"]

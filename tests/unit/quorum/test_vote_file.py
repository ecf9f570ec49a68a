"""Term and vote survive every torn write and a flipped bit; if both slots of the file are damaged,
the voter does not start.
"""

from __future__ import annotations

import random

import pytest

from odradek_metadata_quorum.errors import CorruptStorage
from odradek_metadata_quorum.storage.vote_file import VOTE_FILE_NAME, VoteFile
from tests.sim.quorum.simulated_disk import PowerCut, SimulatedDisk


def new_disk(seed: int = 0, *, page_bytes: int = 4096) -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(seed), page_bytes=page_bytes)
    VoteFile.create(disk)
    disk.sync_directory()
    return disk


def test_the_last_save_is_what_comes_back() -> None:
    disk = new_disk()
    votes = VoteFile(disk)
    assert (votes.term, votes.vote) == (0, None)
    for term, vote in ((1, None), (1, 2), (4, None), (4, 0)):
        votes.save(term, vote)
        again = VoteFile(disk)
        assert (again.term, again.vote) == (term, vote)


def test_a_torn_save_leaves_the_old_vote_or_the_new_one() -> None:
    for seed in range(100):
        disk = new_disk(seed, page_bytes=16)
        votes = VoteFile(disk)
        votes.save(5, 1)
        disk.interrupt_after = seed % 4  # in the write of each slot, or between it and its sync
        with pytest.raises(PowerCut):
            votes.save(6, 2)
        disk.crash()
        again = VoteFile(disk)
        assert (again.term, again.vote) in ((5, 1), (6, 2))
        again.save(7, 3)
        assert VoteFile(disk).term == 7


def test_a_flipped_bit_takes_no_vote_away() -> None:
    for slot in (0, 1):
        for saves in (1, 2):
            disk = new_disk()
            votes = VoteFile(disk)
            for term in range(1, saves + 1):
                votes.save(term, 2)
            disk.corrupt(VOTE_FILE_NAME, slot * 4096 + 20)
            again = VoteFile(disk)
            assert (again.term, again.vote) == (saves, 2)
            disk.corrupt(VOTE_FILE_NAME, (1 - slot) * 4096 + 20)
            assert VoteFile(disk).term == saves


def test_a_voter_whose_slots_are_both_damaged_does_not_start() -> None:
    disk = new_disk()
    VoteFile(disk).save(3, 1)
    disk.corrupt(VOTE_FILE_NAME, 20)
    disk.corrupt(VOTE_FILE_NAME, 4096 + 20)
    with pytest.raises(CorruptStorage, match="Keep this directory"):
        VoteFile(disk)


def test_a_vote_is_never_changed_within_its_term() -> None:
    votes = VoteFile(new_disk())
    votes.save(3, 1)
    with pytest.raises(AssertionError):
        votes.save(3, 2)
    with pytest.raises(AssertionError):
        votes.save(2, None)

"""Odradek's responses are those of Apache Kafka 4.4: both get the same raw requests, and each difference has a reason.

Each conversation of `same_answers` runs with both brokers, with each API in its lowest, middle and highest version.
`same_answers/explained.py` lists the accepted differences. A difference that is not listed fails this test, and so does
an entry of the list without a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.bench.comparisons.kafka_cluster import fetch_jars
from tests.e2e.kafka.same_answers import (
    access,
    cluster,
    configs,
    consumer_groups,
    explained,
    fetches,
    frames,
    groups,
    offsets,
    records,
    rights,
    topics,
    transactions,
)
from tests.e2e.kafka.same_answers.answers import differences
from tests.e2e.kafka.same_answers.brokers import Broker, kafka, odradek
from tests.e2e.kafka.same_answers.conversation import LEVELS, Answers, Level, Talk, hold
from tests.e2e.kafka.same_answers.explained import EXPLAINED, Explained

ROOT: Final = Path(__file__).parents[3]
OPEN: Final = (
    *frames.TALKS,
    *topics.TALKS,
    *records.TALKS,
    *fetches.TALKS,
    *groups.TALKS,
    *offsets.TALKS,
    *consumer_groups.TALKS,
    *transactions.TALKS,
    *configs.TALKS,
    *cluster.TALKS,
    *access.TALKS,
)
GUARDED: Final = (access.acls, access.logins)
"""Conversations of a super user with brokers that check ACLs."""

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.timeout(900)]
Held = dict[tuple[str, Level], Answers]
Both = tuple[Held, Held]
"""The responses of Kafka, and those of Odradek."""


def _held(run: Callable[[], AbstractContextManager[Broker]], *, guarded: bool) -> Held:
    """Run all conversations with one broker."""
    held: Held = {}
    with run() as broker:
        for talk in GUARDED if guarded else OPEN:
            for level in LEVELS:
                held[talk.__name__, level] = hold(broker.address, talk, level)
        for talk in rights.TALKS if guarded else ():
            for level in LEVELS:
                held[talk.__name__, level] = hold(
                    broker.address, talk, level, broker.login_address, rights.BOB
                )
    return held


def _both(directory: Path, *, guarded: bool) -> Both:
    jars = fetch_jars(ROOT / "build" / "kafka-server")
    expected = _held(lambda: kafka(jars, directory / "kafka", guarded=guarded), guarded=guarded)
    return expected, _held(lambda: odradek(guarded=guarded), guarded=guarded)


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Return the responses of Kafka and Odradek without authorizers."""
    return _both(tmp_path_factory.mktemp("unguarded"), guarded=False)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Return the responses of Kafka and Odradek with their authorizers."""
    return _both(tmp_path_factory.mktemp("guarded"), guarded=True)


def _differences(both: Both, name: str, level: Level) -> Iterator[tuple[str, Explained | None]]:
    """Yield what differs in one conversation, as a line, and its explanation if there is one."""
    expected, got = (held[name, level] for held in both)
    not_asked = {"": "not asked"}
    for label in expected | got:
        found = differences(expected.get(label, not_asked), got.get(label, not_asked))
        for path, (theirs, ours) in found.items():
            line = f"{label} | {path} | Kafka: {theirs} | Odradek: {ours}"
            yield line, explained.reason(name, label, path)


def _check(both: Both, talk: Talk, level: Level) -> None:
    unexplained = [line for line, why in _differences(both, talk.__name__, level) if why is None]
    assert not unexplained, "\n".join(unexplained)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("talk", OPEN, ids=lambda talk: talk.__name__)
def test_requests_get_the_same_answers(unguarded: Both, talk: Talk, level: Level) -> None:
    _check(unguarded, talk, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("talk", [*GUARDED, *rights.TALKS], ids=lambda talk: talk.__name__)
def test_authorized_brokers_give_the_same_answers(guarded: Both, talk: Talk, level: Level) -> None:
    _check(guarded, talk, level)


def test_every_explanation_is_needed(unguarded: Both, guarded: Both) -> None:
    needed = {
        why
        for both in (unguarded, guarded)
        for name, level in both[0]
        for _, why in _differences(both, name, level)
    }
    assert len(needed) > 1, "nothing differs, so the conversations did not run"
    needless = [one for one in EXPLAINED if one not in needed]
    assert not needless, "\n".join(map(str, needless))

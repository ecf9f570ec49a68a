"""Two group members share a topic's partitions, and one takes over all when the other leaves; the
test is the same for every client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from confluent_kafka.admin import AdminClient

from tests.e2e.kafka.access import TIMEOUT_S, make_topic


class Member(Protocol):
    """A member that runs by itself in a thread or process; `owned` is the number of its
    partitions.
    """

    owned: int

    def close(self) -> None:
        """Leave the group, and wait until that is done."""


def assert_shared_and_taken_over(
    bootstrap: str, topic: str, member: Callable[[str, str], Member]
) -> None:
    """Assert that two members share the partitions, and that one owns all of them after the other has left;
    `member` starts a member.
    """
    make_topic(AdminClient({"bootstrap.servers": bootstrap}), topic, 4)
    members = [member(bootstrap, topic) for _ in range(2)]
    try:
        _until_owned(members, [2, 2])
        members.pop().close()
        _until_owned(members, [4])
    finally:
        for one in members:
            one.close()


def _until_owned(members: Sequence[Member], shares: list[int]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while (owned := sorted(member.owned for member in members)) != shares:
        assert time.monotonic() < deadline, owned
        time.sleep(0.05)  # poll the state of another thread or process

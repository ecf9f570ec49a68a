"""Warnings of a group member that has no partitions, or whose topics do not exist."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

from odradek.cluster import wait_report
from odradek.cluster.cluster import Cluster
from odradek.errors import OdradekError

REPORTS_S: Final = (0.0, 12.0, 45.0)
"""When a member without partitions logs the reason, in seconds after the first report. A killed member has lost its
partitions before the last report (45 s is the default session timeout), so the group then probably has more members
than partitions.
"""
MISSING_NAMED_MAX: Final = 10
_FETCH_S_MAX: Final = 10.0
_log = logging.getLogger(__name__)


class Member(Protocol):
    """The attributes of a group member that `report_missing_partitions` uses."""

    @property
    def awaits_partitions(self) -> bool:
        """Whether a topic of this member exists, but the coordinator has not assigned any partitions to the member."""


async def report_missing_topics(cluster: Cluster, group: str, topics: Iterable[str]) -> None:
    """Wait for WAIT_REPORT_S, then log which of these topics do not exist, with similar topics."""
    await asyncio.sleep(wait_report.WAIT_REPORT_S)
    missing = [name for name in topics if cluster.cache.topic(name) is None]
    try:
        await cluster.fetch_topics(missing, timeout_s=_FETCH_S_MAX)
    except OdradekError:
        return  # The heartbeats log that no broker responds.
    missing = [name for name in missing if cluster.cache.topic(name) is None]
    for name in sorted(missing)[:MISSING_NAMED_MAX]:
        error = await cluster.missing_topics.error(name)
        _log.warning(
            "Group %s will read topic %r once the topic exists and the caller is authorized to read it: %s",
            group,
            name,
            error,
        )


async def report_missing_partitions(member: Member, group: str, has_joined: asyncio.Event) -> None:
    """If a member that has joined its group has no partitions for WAIT_REPORT_S or longer, log the probable reasons."""
    await has_joined.wait()
    waited_s = 0.0
    for report_s in REPORTS_S:
        pause_s = wait_report.WAIT_REPORT_S + report_s - waited_s
        await asyncio.sleep(pause_s)
        waited_s += pause_s
        if not member.awaits_partitions:
            return
        wait_report.log_wait(
            f"partitions of group {group!r}",
            waited_s,
            "other members probably own all of them. A member that was killed keeps its partitions for the session"
            f" timeout (45 s by default; `odradek group config {group} --set consumer.session.timeout.ms=10000`"
            f" shortens it); `odradek group describe {group}` shows the members",
        )

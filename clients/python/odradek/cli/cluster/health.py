"""`odradek cluster health`: is the cluster well, and if not, what is wrong with what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_UNHEALTHY,
    Bootstrap,
    Output,
    OutputFormat,
    print_facts,
)
from odradek.cli.session import with_client

if TYPE_CHECKING:
    from odradek.admin.admin import Admin
    from odradek.admin.descriptions import (
        ClusterDescription,
        LogDirDescription,
        QuorumDescription,
        TopicDescription,
    )
    from odradek.client import Client
    from odradek.cluster.metadata_cache import Partition

NAMED_MAX: Final = 20
"""Partitions that one command names; of more it tells the number."""
SILENT_MS: Final = 5_000
"""A controller that the leader has not heard for so long counts as down."""

T = TypeVar("T")


def health(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE) -> None:
    """Say whether the cluster is well, and name what is not. Status 0: healthy; 3: not.

    Not healthy: no active controller, controllers or brokers that do not respond, data directories that are full
    or offline, partitions without a leader, under-replicated, or with fewer in-sync replicas than acks=all needs.
    """

    async def work(client: Client) -> dict[str, Any]:
        return await examine(client.admin)

    facts = with_client(bootstrap, work)
    problems = facts["problems"]
    if output is OutputFormat.JSON:
        print_facts(facts, output)
    else:
        print_facts({name: facts[name] for name in facts if name != "problems"}, output)
        if problems:
            print("\n" + "\n".join(problems))
    if problems:
        raise typer.Exit(EXIT_UNHEALTHY)


async def examine(admin: Admin) -> dict[str, Any]:
    """Ask for everything at once; what cannot be had in time is a problem itself, not the end."""
    import asyncio

    from odradek.errors import AuthorizationFailed, OdradekError, UnsupportedOperation

    problems: list[str] = []

    async def asked(call: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return await call()
        except (AuthorizationFailed, UnsupportedOperation) as error:
            # Whoever may not look must not be told that all is well.
            problems.append(f"cannot be judged: {error}")
        except OdradekError as error:
            problems.append(str(error))
        return None

    quorum = await asked(admin.describe_quorum)
    has_controller = quorum is not None and quorum.leader_id >= 0
    cluster, topics, directories = await asyncio.gather(
        asked(admin.describe_cluster) if has_controller else _nothing(),
        asked(lambda: admin.list_topics(include_internal=True)),
        asked(admin.describe_log_dirs),
    )
    bad = [(topic, p) for topic in topics or () for p in topic.partitions if _is_bad(p)]
    minimums = await _minimums(admin, {topic.name for topic, _ in bad}) if has_controller else {}
    problems = [
        *_quorum_problems(quorum),
        *dict.fromkeys(problems),
        *_broker_problems(cluster),
        *_directory_problems(directories or (), cluster),
        *_partition_problems(bad, minimums),
    ]
    partitions = [p for topic in topics or () for p in topic.partitions]
    fenced = None if cluster is None else sum(broker.is_fenced for broker in cluster.brokers)
    return {
        "brokers": None if cluster is None else len(cluster.brokers) - (fenced or 0),
        "fenced brokers": fenced,
        "partitions": len(partitions) if topics is not None else None,
        "without leader": sum(p.leader_id < 0 for p in partitions),
        "under-replicated": sum(len(p.isr) < len(p.replicas) for p in partitions),
        "stray logs": sum(directory.stray_count for directory in directories or ()),
        "active controller": quorum.leader_id if quorum is not None else -1,
        "healthy": not problems,
        "problems": problems,
    }


async def _nothing() -> None:
    return None


def _is_bad(partition: Partition) -> bool:
    return partition.leader_id < 0 or len(partition.isr) < len(partition.replicas)


async def _minimums(admin: Admin, names: Iterable[str]) -> dict[str, int]:
    """min.insync.replicas of these topics, as far as the caller may know."""
    from odradek.errors import OdradekError

    found: dict[str, int] = {}
    for name in sorted(names)[:NAMED_MAX]:
        try:
            configs = await admin.describe_topic_configs(name)
            found[name] = int(configs["min.insync.replicas"].value or 1)
        except (OdradekError, KeyError):
            break
    return found


def _quorum_problems(quorum: QuorumDescription | None) -> Iterator[str]:
    if quorum is None:
        return
    if quorum.leader_id < 0:
        endpoints = ", ".join(f"{v.controller_id} at {v.endpoint}" for v in quorum.voters)
        yield (
            f"no active controller: a majority of the controllers ({endpoints}) must be up;"
            " topics, configs and leaders cannot change until then"
        )
        return
    for voter in quorum.voters:
        silent_ms = voter.heard_ms_ago or 0
        if voter.controller_id != quorum.leader_id and silent_ms > SILENT_MS:
            name = f"controller {voter.controller_id} at {voter.endpoint}"
            yield f"{name} was last heard {silent_ms / 1000:.0f} s ago"


def _broker_problems(cluster: ClusterDescription | None) -> Iterator[str]:
    for broker in cluster.brokers if cluster is not None else ():
        if broker.is_fenced:
            yield f"broker {broker.broker_id} is fenced: it is down, cut off, or still starting"


def _directory_problems(
    directories: Sequence[LogDirDescription], cluster: ClusterDescription | None
) -> Iterator[str]:
    fenced = {b.broker_id for b in cluster.brokers if b.is_fenced} if cluster is not None else set()
    for directory in directories:
        if directory.error is not None and directory.broker_id not in fenced:
            yield str(directory.error)
        elif directory.problem:
            state = "offline" if directory.offline_reason else "full"
            yield (
                f"broker {directory.broker_id}: the data directory {directory.path} is {state}:"
                f" {directory.problem}{_room(directory)}"
            )


def _room(directory: LogDirDescription) -> str:
    if directory.usable_bytes is None or directory.total_bytes is None:
        return ""
    mebi = 1024 * 1024
    return f" ({directory.usable_bytes // mebi} of {directory.total_bytes // mebi} MiB free)"


def _partition_problems(
    bad: Sequence[tuple[TopicDescription, Partition]], minimums: dict[str, int]
) -> Iterator[str]:
    worst_first = sorted(bad, key=lambda item: item[1].leader_id >= 0)
    for topic, partition in worst_first[:NAMED_MAX]:
        name = f"{topic.name}-{partition.partition}"
        replicas = ",".join(map(str, partition.replicas))
        if partition.leader_id < 0:
            yield f"{name} has no leader: none of its in-sync replicas is up (replicas {replicas})"
            continue
        in_sync = ",".join(map(str, partition.isr))
        minimum = minimums.get(topic.name, 1)
        line = f"{name} is under-replicated: in sync {in_sync} of {replicas}"
        if len(partition.isr) < minimum:
            line += f"; acks=all is refused, since min.insync.replicas is {minimum}"
        yield line
    if len(bad) > NAMED_MAX:
        yield f"and {len(bad) - NAMED_MAX} more partitions"

"""`odradek cluster`: show brokers and health, change configs, rebalance replicas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from odradek.admin.spreading import shares_a_host
from odradek.cli.configs import config
from odradek.cli.connection import (
    complete_broker_lists,
    complete_brokers,
    with_client,
)
from odradek.cli.moves import POLL_S, MovePlan, Wait, move_partitions
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_UNHEALTHY,
    EXIT_USAGE,
    Bootstrap,
    DryRun,
    Output,
    OutputFormat,
    Yes,
    counted,
    fail,
    print_facts,
    print_rows,
    say,
)
from odradek.cli.partition import broker_ids, existing_topics

if TYPE_CHECKING:
    from odradek.admin.admin import Admin
    from odradek.admin.descriptions import (
        ClusterDescription,
        LogDirDescription,
        QuorumDescription,
        TopicDescription,
    )
    from odradek.admin.transaction_admin import HangingFindings
    from odradek.client import Client
    from odradek.cluster.metadata_cache import Partition


T = TypeVar("T")
NAMED_MAX: Final = 20
"""The most partitions that one command lists by name. If there are more, the command adds only their number."""
FENCING_S_MAX: Final = 15.0
SILENT_MS: Final = 5_000
"""A controller counts as down if the active controller has received no message from it for this long."""

app = typer.Typer(
    help="Show brokers and health, change configs, rebalance replicas.", no_args_is_help=True
)
app.command()(config)


@app.command()
def info(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE) -> None:
    """Show the brokers and the active controller."""

    async def work(client: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        cluster = await client.admin.describe_cluster()
        free_bytes = await _free_bytes(client)
        facts = {
            "cluster": cluster.cluster_id,
            "active controller": cluster.active_controller_id,
            "controller epoch": cluster.controller_epoch,
        }
        rows = [
            {
                "broker": broker.broker_id,
                "epoch": broker.broker_epoch,
                "host": broker.host or None,
                "rack": broker.rack or None,
                "fenced": broker.is_fenced,
                "leads": broker.leader_count,
                "free bytes": free_bytes.get(broker.broker_id),
                "listeners": [f"{li.name}://{li.host}:{li.port}" for li in broker.listeners],
            }
            for broker in sorted(cluster.brokers, key=lambda broker: broker.broker_id)
        ]
        return facts, rows

    facts, rows = with_client(bootstrap, work)
    if output is OutputFormat.JSON:
        print_facts({**facts, "brokers": rows}, output)
        return
    print_facts(facts, output)
    print()
    print_rows(rows, output, empty="no brokers")


async def _free_bytes(client: Client) -> dict[int, int | None]:
    """Return the free bytes of each broker's file system, by broker id. The result is empty if the caller is not
    authorized, or if a broker runs a release that cannot report free bytes.
    """
    from odradek.errors import AuthorizationFailed, UnsupportedOperation

    try:
        directories = await client.admin.describe_log_dirs()
    except (AuthorizationFailed, UnsupportedOperation):
        return {}
    return {directory.broker_id: directory.usable_bytes for directory in directories}


@app.command()
def logs(
    by_topic: Annotated[
        bool, typer.Option("--by-topic", help="Show the size of each topic on each broker.")
    ] = False,
    broker: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            metavar="ID",
            help="Show only this broker. Repeatable.",
            autocompletion=complete_brokers,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show data directories and the sizes of logs, in bytes."""

    async def work(client: Client) -> list[LogDirDescription]:
        directories = await client.admin.describe_log_dirs(broker or (), include_partitions=True)
        return sorted(directories, key=lambda directory: directory.broker_id)

    directories = with_client(bootstrap, work)
    rows: list[dict[str, Any]]
    if by_topic:
        sizes: dict[tuple[str, int], list[int]] = {}
        for directory in directories:
            for name, size_bytes in directory.partition_bytes.items():
                sizes.setdefault((name.topic, directory.broker_id), []).append(size_bytes)
        rows = [
            {"topic": topic, "broker": id_, "logs": len(logs), "bytes": sum(logs)}
            for (topic, id_), logs in sorted(sizes.items())
        ]
    else:
        rows = [
            {
                "broker": directory.broker_id,
                "directory": directory.path or None,
                "logs": len(directory.partition_bytes) if directory.error is None else None,
                "bytes": sum(directory.partition_bytes.values())
                if directory.error is None
                else None,
                "stray bytes": directory.stray_bytes if directory.error is None else None,
                "free bytes": directory.usable_bytes,
                "volume bytes": directory.total_bytes,
                "problem": str(directory.error or directory.problem) or None,
            }
            for directory in directories
        ]
    print_rows(rows, output, empty="no broker has a log")


async def wait_until_fenced(
    admin: Admin, broker_id: int, *, poll_s: float = POLL_S, wait_s_max: float = FENCING_S_MAX
) -> None:
    """Wait until the controllers have fenced a broker, at most `wait_s_max`.

    The session of a stopped broker ends a few seconds after the stop. A broker that still runs is not fenced.
    """
    is_reported = False
    deadline_s = time.monotonic() + wait_s_max
    while _is_unfenced(await admin.describe_cluster(), broker_id):
        if time.monotonic() + poll_s > deadline_s:
            return
        if not is_reported:
            say(
                f"broker {broker_id} still has a session: waiting up to {wait_s_max:.0f} s for the session to end",
                is_error=True,
            )
        is_reported = True
        try:
            await asyncio.sleep(poll_s)
        except asyncio.CancelledError:
            say(
                f"interrupted: broker {broker_id} is still registered; run the command again to remove it",
                is_error=True,
            )
            raise


def _is_unfenced(cluster: ClusterDescription, broker_id: int) -> bool:
    return any(b.broker_id == broker_id and not b.is_fenced for b in cluster.brokers)


@app.command()
def unregister(
    broker: Annotated[
        int, typer.Argument(help="Id of the broker.", autocompletion=complete_brokers)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove a broker that will not return.

    The broker must be stopped, and must have no replicas. If it has just been
    stopped, the command waits until the controllers have fenced it.
    """

    async def work(client: Client) -> int:
        topics = await client.admin.list_topics(include_internal=True)
        replica_count = sum(broker in p.replicas for topic in topics for p in topic.partitions)
        if not replica_count:
            await wait_until_fenced(client.admin, broker)
            await client.admin.unregister_broker(broker)
        return replica_count

    if replica_count := with_client(bootstrap, work, is_quick=False):
        fail(
            f"broker {broker} has replicas of {counted(replica_count, 'partition')}: move them to other brokers first"
            " (`odradek cluster spread --over ID,...`)"
        )
    print(f"broker {broker} is no longer registered")


@app.command()
def spread(
    over: Annotated[
        str,
        typer.Option(
            metavar="ID,...",
            help="Ids of the brokers to place all replicas on, separated by commas."
            " [default: all live brokers]",
            autocompletion=complete_broker_lists,
        ),
    ] = "",
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Move only replicas of this topic. Repeatable."),
    ] = None,
    wait: Wait = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Rebalance replicas and leaders across brokers.

    The replicas and leaders of each topic are balanced, and those of all topics together, with as few moves as
    possible. The replicas of a partition are placed on different hosts, as far as there are enough. No partition gets
    into fewer racks, but replicas that share a rack are not moved apart. With --wait, the new leaders are elected at
    the end.
    """
    chosen_ids = broker_ids(over, option="--over") if over else []

    async def plan(client: Client) -> MovePlan:
        import asyncio

        from odradek.admin.spreading import spread as plan_of
        from odradek.partitions import TopicPartition

        cluster = await client.admin.describe_cluster()
        brokers = chosen_ids or [b.broker_id for b in cluster.brokers if not b.is_fenced]
        racks = {broker.broker_id: broker.rack for broker in cluster.brokers if broker.rack}
        hosts = {broker.broker_id: broker.host for broker in cluster.brokers if broker.host}
        if unknown_ids := set(brokers) - {broker.broker_id for broker in cluster.brokers}:
            fail(f"there is no broker {min(unknown_ids)}", status=EXIT_USAGE)
        before = {
            TopicPartition(t.name, p.partition): p.target_replicas
            for t in await existing_topics(client, topic)
            for p in t.partitions
        }
        for name, replicas in sorted(before.items()):
            if len(replicas) > len(brokers):
                fail(
                    f"partition {name.partition} of {name.topic} has {len(replicas)} replicas:"
                    " --over needs at least as many brokers",
                    status=EXIT_USAGE,
                )
        # With thousands of topics, a plan takes seconds. It is made in a thread, so that the event loop is not blocked.
        after = await asyncio.to_thread(
            plan_of, before, brokers, racks, hosts, topic_of=lambda name: name.topic
        )
        return MovePlan(before, after)

    move_partitions(
        bootstrap,
        plan,
        dry_run=dry_run,
        is_confirmed=yes,
        wait=wait,
        output=output,
        empty="the replicas are balanced",
        keep_replication_factor=True,
        elects_leaders=True,
    )


@app.command()
def health(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = OutputFormat.TABLE) -> None:
    """Check the cluster and list its problems. The exit status is 0 if the cluster is healthy, and 3 if not.

    Problems are: no active controller; controllers or brokers that do not respond; data directories that are full or
    offline; partitions that have no leader, are under-replicated, or have fewer in-sync replicas than acks=all needs;
    transactions that hang, that were committed in only some of their partitions, or that lost a marker.

    Warnings do not change the exit status. They are: several controllers on one host although there are other hosts,
    and partitions whose replicas could be spread better over the hosts.
    """

    async def work(client: Client) -> dict[str, Any]:
        return await examine(client.admin)

    facts = with_client(bootstrap, work)
    problems = facts["problems"]
    if output is OutputFormat.JSON:
        print_facts(facts, output)
    else:
        lists = ("problems", "warnings")
        print_facts({name: facts[name] for name in facts if name not in lists}, output)
        warnings = [f"warning: {warning}" for warning in facts["warnings"]]
        if problems or warnings:
            say("\n" + "\n".join((*problems, *warnings)))
    if problems:
        raise typer.Exit(EXIT_UNHEALTHY)


async def examine(admin: Admin) -> dict[str, Any]:
    """Examine a cluster and return the facts that `odradek cluster health` prints, by name. A request that fails is
    listed as a problem and raises nothing.
    """
    import asyncio

    from odradek.errors import AuthorizationFailed, OdradekError, UnsupportedOperation

    problems: list[str] = []

    async def response_of(call: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return await call()
        except (AuthorizationFailed, UnsupportedOperation) as error:
            # A caller without authorization must not be told that the cluster is healthy.
            problems.append(f"the cluster's health is only partly known: {error}")
        except OdradekError as error:
            problems.append(str(error))
        return None

    quorum = await response_of(admin.describe_quorum)
    has_controller = quorum is not None and quorum.leader_id >= 0
    cluster, topics, directories, findings = await asyncio.gather(
        response_of(admin.describe_cluster) if has_controller else _nothing(),
        response_of(lambda: admin.list_topics(include_internal=True)),
        response_of(admin.describe_log_dirs),
        _hanging_findings(admin),
    )
    bad = [(topic, p) for topic in topics or () for p in topic.partitions if _is_bad(p)]
    minimums = await _minimums(admin, {topic.name for topic, _ in bad}) if has_controller else {}
    problems = [
        *_quorum_problems(quorum),
        *dict.fromkeys(problems),
        *_broker_problems(cluster),
        *_directory_problems(directories or (), cluster),
        *_partition_problems(bad, minimums),
        *_transaction_problems(findings),
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
        "warnings": [
            *_shared_by_voters(quorum, cluster),
            *_shared_by_replicas(topics or (), cluster),
        ],
    }


async def _nothing() -> None:
    return None


async def _hanging_findings(admin: Admin) -> HangingFindings | None:
    """Return the transactions that hang or lost a marker. None: a broker did not respond, or runs a release that cannot
    report such transactions.
    """
    from odradek.errors import OdradekError

    try:
        return await admin.transactions.find_hanging()
    except OdradekError:
        # Other checks report a broker that does not respond.
        return None


def _transaction_problems(findings: HangingFindings | None) -> Iterator[str]:
    if findings is None:
        return
    hanging = [transaction for transaction in findings.transactions if transaction.hangs]
    for transaction in hanging[:NAMED_MAX]:
        yield (
            f"{transaction.partition}: the transaction of producer {transaction.producer_id} from offset"
            f" {transaction.first_offset} hangs and keeps read_committed consumers from reading on: end it with"
            " `odradek transaction find-hanging --abort`"
        )
    for incident in findings.incidents[-NAMED_MAX:]:
        name = (
            f"{incident.partition}: the transaction of producer {incident.producer_id} from offset"
        )
        outcome = "committed" if incident.is_commit else "aborted"
        if incident.kind == "torn":
            yield f"{name} {incident.first_offset} was {outcome} in other partitions, but not in this one"
        else:
            yield f"{name} {incident.first_offset} lost its marker; the partition's leader {outcome} it"


def _is_bad(partition: Partition) -> bool:
    return partition.leader_id < 0 or len(partition.isr) < len(partition.replicas)


async def _minimums(admin: Admin, names: Iterable[str]) -> dict[str, int]:
    """Return min.insync.replicas by topic name, for at most NAMED_MAX topics. After a topic whose configs cannot be
    read, the remaining topics are skipped.
    """
    from odradek.errors import OdradekError

    minimums: dict[str, int] = {}
    for name in sorted(names)[:NAMED_MAX]:
        try:
            configs = await admin.describe_topic_configs(name)
            minimums[name] = int(configs["min.insync.replicas"].value or 1)
        except (OdradekError, KeyError):
            break
    return minimums


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
            yield f"{name} was last heard from {silent_ms / 1000:.0f} s ago"


def _shared_by_voters(
    quorum: QuorumDescription | None, cluster: ClusterDescription | None
) -> Iterator[str]:
    voters_of: dict[str, list[int]] = {}
    for voter in quorum.voters if quorum is not None else ():
        if voter.host:
            voters_of.setdefault(voter.host, []).append(voter.controller_id)
    hosts = {broker.host for broker in cluster.brokers if broker.host} if cluster else set()
    if len(hosts | voters_of.keys()) < 2:
        return
    for host, voters in sorted(voters_of.items()):
        if len(voters) > 1:
            yield (
                f"controllers {' and '.join(map(str, sorted(voters)))} share the host {host}: if that host"
                " fails, several votes are lost at once; run each controller on its own host"
            )


def _shared_by_replicas(
    topics: Iterable[TopicDescription], cluster: ClusterDescription | None
) -> Iterator[str]:
    """Yield a warning if partitions have at least two more replicas on one host than on another host with a free
    broker.
    """
    if cluster is None:
        return
    host_of = {broker.broker_id: broker.host or broker.broker_id for broker in cluster.brokers}
    if len(set(host_of.values())) < 2:
        return
    sharing = [
        f"{topic.name}-{partition.partition}"
        for topic in topics
        for partition in topic.partitions
        if shares_a_host(partition.replicas, host_of)
    ]
    if sharing:
        named = ", ".join(sharing[:3]) + (", ..." if len(sharing) > 3 else "")
        yield (
            f"{counted(len(sharing), 'partition')} ({named}) with at least two more replicas on one host than on"
            " another host that has a free broker: `odradek cluster spread --over` with all brokers distributes them"
        )


def _broker_problems(cluster: ClusterDescription | None) -> Iterator[str]:
    for broker in cluster.brokers if cluster is not None else ():
        if broker.is_fenced:
            yield f"broker {broker.broker_id} is fenced: it is down, disconnected, or still starting"


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
                f" {directory.problem}{_free_note(directory)}"
            )


def _free_note(directory: LogDirDescription) -> str:
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
        line = f"{name} is under-replicated: replicas {in_sync} of {replicas} are in sync"
        if len(partition.isr) < minimum:
            line += f"; acks=all is refused, since min.insync.replicas is {minimum}"
        yield line
    if len(bad) > NAMED_MAX:
        yield f"and {len(bad) - NAMED_MAX} more partitions"

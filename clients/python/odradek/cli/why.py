"""`odradek why`: examine the cluster, and print the chain of causes for everything that does not work."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from odradek.cli.connection import (
    complete_names,
    connect_s_max,
    nothing_named,
    topic_and_index,
    with_client,
)
from odradek.cli.output import (
    DEFAULT_BOOTSTRAP,
    EXIT_UNHEALTHY,
    EXIT_USAGE,
    Bootstrap,
    Output,
    OutputFormat,
    fail,
    print_facts,
    say,
)
from odradek_protocol.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from odradek.admin.causes import Cause, Look, Probe
    from odradek.admin.descriptions import (
        BrokerDescription,
        GroupDescription,
        LogDirDescription,
        Partition,
        QuorumDescription,
        TopicDescription,
    )
    from odradek.admin.group_causes import GroupLook, PartitionProgress
    from odradek.admin.transaction_admin import OldTransaction
    from odradek.admin.transaction_causes import TransactionLook
    from odradek.client import Client
    from odradek.partitions import TopicPartition

T = TypeVar("T")
PROBE_S_MAX: Final = 2.0
TOPICS_MAX: Final = 50
"""The most topics whose min.insync.replicas one command reads."""
_CONTROLLER: Final = re.compile(r"controller (\d+) at (\S+:\d+): ")
"""Matches a controller in the error message of a broker that could not reach any controller."""
_WAITS_FOR: Final = (
    "brokers and controllers are examined; each process that does not respond takes some seconds"
)
THROTTLE: Final = "follower.replication.throttled.rate"


def why(
    name: Annotated[
        str,
        typer.Argument(
            help="What to examine: a topic, TOPIC/PARTITION, group, transactional id, or broker id."
            " [default: the whole cluster]",
            show_default=False,
            autocompletion=complete_names,
        ),
    ] = "",
    sample: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=600,
            metavar="SECONDS",
            help="How long to watch a group that is behind, to see whether it makes progress.",
        ),
    ] = 2.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Explain what is wrong, and how to fix it.

    The command explains, for example, why acks=all is refused, a group is behind, a transaction does not end, a broker
    is not ready, or a partition has no leader.

    Each problem is followed by the evidence for it ("seen"), by what you can do ("way out"), and by its causes, which
    are indented. The exit status is 3 if something is wrong, and 0 if not.
    """

    async def work(client: Client) -> tuple[list[str], list[Cause]]:
        client.admin_timeout_s = connect_s_max()
        return await _Examination(client, sample).causes(name)

    subjects, causes = with_client(bootstrap, work, waits_for=_WAITS_FOR)
    if output is OutputFormat.JSON:
        print_facts(
            {"name": name, "healthy": not causes, "causes": [_row(cause) for cause in causes]},
            output,
        )
    elif causes:
        explained: set[Cause] = set()
        for cause in causes:
            say("\n".join(lines_of(cause, explained)))
    else:
        say("\n".join(f"{subject}: nothing is wrong" for subject in subjects))
    if causes:
        raise typer.Exit(EXIT_UNHEALTHY)


def lines_of(cause: Cause, explained: set[Cause], depth: int = 0) -> Iterator[str]:
    """Yield the lines that print a chain of causes. Each cause is indented further than the problem that it explains.

    A cause in `explained` takes one line, because its evidence and causes were already printed. Every printed cause is
    added to `explained`.
    """
    indent = "  " * depth
    if cause in explained:
        yield f"{indent}{'because ' if depth else ''}{cause.what} (explained above)"
        return
    explained.add(cause)
    yield f"{indent}{'because ' if depth else ''}{cause.what}"
    if cause.evidence:
        yield f"{indent}    seen: {cause.evidence}"
    if cause.remedy:
        yield f"{indent}    way out: {cause.remedy}"
    for deeper in cause.because:
        yield from lines_of(deeper, explained, depth + 1)


def _row(cause: Cause) -> dict[str, Any]:
    return {
        "what": cause.what,
        "evidence": cause.evidence or None,
        "remedy": cause.remedy or None,
        "because": [_row(deeper) for deeper in cause.because],
    }


class _Examination:
    """One run of the command. It reads the state of the cluster, as far as the given name needs it."""

    def __init__(self, client: Client, sample_s: float) -> None:
        self._client = client
        self._sample_s = sample_s
        self._problems: list[str] = []
        self._controllers_error = ""

    async def causes(self, name: str) -> tuple[list[str], list[Cause]]:
        """Return what `name` stands for, in words (such as a topic and a group), and what is wrong with them."""
        from odradek.admin.causes import (
            broker_causes,
            cluster_causes,
            partition_causes,
            quorum_causes,
            unseen,
        )
        from odradek.admin.group_causes import group_causes
        from odradek.admin.transaction_causes import hanging_causes, transaction_causes

        admin = self._client.admin
        quorum = await self._quorum()
        topics = await admin.list_topics(include_internal=True)
        by_name = {topic.name: topic for topic in topics}
        partitions = chosen_of(name, by_name)
        group: GroupLook | None = None
        if name and not (partitions and "/" in name):
            group = await self._group(name, is_certain=not partitions and not name.isdecimal())
        transaction: TransactionLook | None = None
        if name and not (partitions and "/" in name) and TRANSACTIONS_TOPIC in by_name:
            is_certain = not partitions and not group and not name.isdecimal()
            transaction = await self._transaction(name, is_certain=is_certain)
        examined = [*partitions, *(group.partitions if group is not None else ())]
        if group is not None and group.description is None:
            examined += chosen_of(OFFSETS_TOPIC, by_name)
        if transaction is not None:
            examined += chosen_of(TRANSACTIONS_TOPIC, by_name)
            examined += transaction.partitions
        if not name:
            examined = [*(n for topic in topics for n in names_of(topic))]
        look = await self._look(quorum, by_name, examined)
        if not name:
            hanging = await self._hanging("") if TRANSACTIONS_TOPIC in by_name else []
            return ["the cluster"], cluster_causes(look) + hanging_causes(hanging) + unseen(look)
        subjects, causes = [], []
        if partitions:
            subjects.append(f"topic {name}" if name in by_name else f"partition {name}")
            causes += partition_causes(look, partitions)
            if TRANSACTIONS_TOPIC in by_name:
                hanging = await self._hanging(partitions[0].topic)
                causes += hanging_causes(old for old in hanging if old.partition in partitions)
        if group is not None:
            subjects.append(f"group {name}")
            causes += group_causes(look, group)
        if transaction is not None:
            subjects.append(f"transactional id {name}")
            causes += transaction_causes(look, transaction)
        if name.isdecimal() and (
            look.cluster is None or look.registration(int(name)) is not None or not subjects
        ):
            subjects.append(f"broker {name}")
            causes += broker_causes(look, int(name))
        if not subjects:
            fail(await nothing_named(self._client, name, by_name), status=EXIT_USAGE)
        # Problems of the controllers are reported even if everything that was examined works, because the next
        # failure of a broker would need a new leader, and only the controllers can elect one.
        causes += [cause for cause in quorum_causes(look) if cause not in _within(causes)]
        return subjects, causes + unseen(look)

    async def _quorum(self) -> QuorumDescription | None:
        from odradek.errors import NoActiveController

        try:
            return await self._seen(self._client.admin.describe_quorum, passing=NoActiveController)
        except NoActiveController as error:
            self._controllers_error = error.message
            return None

    async def _seen(
        self, call: Callable[[], Awaitable[T]], *, passing: type[Exception] | tuple[()] = ()
    ) -> T | None:
        """Return the response of a call. If the call fails, record the error and return None, so that the examination
        continues.

        Errors of the types in `passing` are raised.
        """
        from odradek.errors import OdradekError

        try:
            return await call()
        except passing:
            raise
        except OdradekError as error:
            self._problems.append(str(error))
            return None

    async def _look(
        self,
        quorum: QuorumDescription | None,
        topics: dict[str, TopicDescription],
        names: Iterable[TopicPartition],
    ) -> Look:
        import asyncio

        from odradek.admin.causes import Look

        admin = self._client.admin
        has_controller = quorum is not None and quorum.leader_id >= 0
        cluster = await self._seen(admin.describe_cluster) if has_controller else None
        partitions = existing(names, topics)
        bad = {
            n: p for n, p in partitions.items() if p.leader_id < 0 or len(p.isr) < len(p.replicas)
        }
        listed = await self._seen(lambda: admin.describe_log_dirs(include_partitions=bool(bad)))
        directories: dict[int, list[LogDirDescription]] = {}
        silent = set()
        for directory in listed or ():
            if directory.error is None:
                directories.setdefault(directory.broker_id, []).append(directory)
            else:
                silent.add(directory.broker_id)
        registered = cluster.brokers if cluster is not None else ()
        probed = [b for b in registered if b.is_fenced or b.broker_id in silent]
        probes, voters = await asyncio.gather(
            asyncio.gather(*(self._probe_broker(broker, directories) for broker in probed)),
            _probe_voters(quorum, self._controllers_error),
        )
        up = {b.broker_id for b in registered} - {b.broker_id for b in probed}
        lagging = {b for p in bad.values() for b in p.replicas if b not in p.isr}
        return Look(
            quorum=quorum,
            controllers_error=self._controllers_error,
            cluster=cluster,
            directories=directories,
            partitions=partitions,
            insync_min=await self._minimums({name.topic for name in partitions}, set(bad))
            if has_controller
            else {},
            brokers_reached={b.broker_id: p for b, p in zip(probed, probes, strict=True)},
            controllers_reached=voters,
            throttles=await self._throttles(sorted(lagging & up)),
            problems=tuple(dict.fromkeys(self._problems)),
        )

    async def _minimums(
        self, topics: set[str], bad: set[TopicPartition]
    ) -> dict[str, tuple[int, str]]:
        """Return (min.insync.replicas, where it is set) by topic name.

        If there are more than TOPICS_MAX topics, only those with partitions in `bad` are looked up, at most TOPICS_MAX.
        """
        chosen = topics if len(topics) <= TOPICS_MAX else {name.topic for name in bad}
        minimums = {}
        for topic in sorted(chosen)[:TOPICS_MAX]:
            configs = await self._seen(lambda t=topic: self._client.admin.describe_topic_configs(t))  # type: ignore[misc]
            value = (configs or {}).get("min.insync.replicas")
            if value is not None:
                source = value.source.name.lower().replace("_", " ")
                minimums[topic] = (int(value.value or 1), f"set by: {source}")
        return minimums

    async def _throttles(self, brokers: Iterable[int]) -> dict[int, int]:
        from odradek.admin.descriptions import ConfigResource, ConfigResourceType

        throttles = {}
        for broker in brokers:
            resource = ConfigResource(type=ConfigResourceType.BROKER, name=str(broker))
            configs = await self._seen(lambda r=resource: self._client.admin.describe_configs(r))  # type: ignore[misc]
            value = (configs or {}).get(THROTTLE)
            if value is not None and int(value.value or 0):
                throttles[broker] = int(value.value or 0)
        return throttles

    async def _probe_broker(
        self, broker: BrokerDescription, directories: dict[int, list[LogDirDescription]]
    ) -> Probe:
        """Connect to the gRPC listener of a broker, and read the broker's data directories from the broker itself into
        `directories`.
        """
        import asyncio

        from odradek.admin.causes import Probe, Reached
        from odradek.errors import AuthorizationFailed, OdradekError, UnsupportedOperation

        listener = next((li for li in broker.listeners if li.name.startswith("GRPC")), None)
        if listener is None:
            return Probe(endpoint="its gRPC listener", reached=Reached.RESPONDS)
        probe = await _probe(listener.host, listener.port)
        if probe.reached is not Reached.RESPONDS:
            return probe
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                directories[broker.broker_id] = await self._client.admin.describe_log_dirs(
                    [broker.broker_id], endpoint=probe.endpoint
                )
        except (AuthorizationFailed, UnsupportedOperation):
            pass  # The broker responded, although with an error.
        except (OdradekError, TimeoutError):
            return Probe(endpoint=probe.endpoint, reached=Reached.SILENT)
        return probe

    async def _group(self, name: str, *, is_certain: bool) -> GroupLook | None:
        """Describe a group, and read its offsets twice to measure its progress. Returns None if there is no such group.

        `is_certain` means that no topic and no broker has this name. In this case, if the coordinator does not respond,
        the name is taken to be a group's, and the error is reported.
        """
        import asyncio
        import time

        from odradek.admin.group_causes import GroupLook
        from odradek.errors import OdradekError

        admin = self._client.admin
        try:
            description = await admin.describe_group(name)
            first = await admin.group_offsets(name)
        except OdradekError as error:
            is_lost = is_certain and error.retriable
            return GroupLook(group=name, error=str(error)) if is_lost else None
        if description.state.lower() == "dead":
            return None
        assigned = {partition for member in description.members for partition in member.assignment}
        names = sorted({*first, *assigned})
        started_s = time.monotonic()
        ends_before = await self._offsets(names, -1)
        is_behind = any(ends_before.get(n, at + 1) > at for n, at in first.items())
        if is_behind and description.members:
            await asyncio.sleep(self._sample_s)
        second = await self._seen(lambda: admin.group_offsets(name)) or {}
        ends = await self._offsets(names, -1)
        seconds = time.monotonic() - started_s
        starts = await self._offsets(names, -2)
        stable = await self._offsets(names, -1, read_committed=True)
        after = await self._seen(lambda: admin.describe_group(name))
        partitions = {}
        for partition in names:
            partitions[partition] = await self._progress(
                partition, first, second, ends_before, ends, starts, stable
            )
        return GroupLook(
            group=name,
            description=_later(description, after),
            partitions=partitions,
            seconds=seconds,
        )

    async def _transaction(self, name: str, *, is_certain: bool) -> TransactionLook | None:
        """Describe a transactional id. If its transaction is decided, describe the id again after some seconds. Returns
        None if the id does not exist.

        `is_certain` means that no topic, group or broker has this name. In this case, if the coordinator does not
        respond, the name is taken to be a transactional id, and the error is reported.
        """
        import asyncio
        import time

        from odradek.admin.transaction_causes import TransactionLook
        from odradek.errors import OdradekError

        transactions = self._client.admin.transactions
        try:
            first = second = await transactions.describe(name)
        except OdradekError as error:
            is_lost = is_certain and error.retriable
            return TransactionLook(name=name, error=str(error)) if is_lost else None
        if first.state.startswith("Prepare"):
            # The coordinator may be writing the markers right now.
            await asyncio.sleep(self._sample_s)
            second = await self._seen(lambda: transactions.describe(name)) or first
        hanging = await self._hanging("")
        return TransactionLook(
            name=name,
            description=second,
            was_decided=first.state.startswith("Prepare"),
            hanging=tuple(old for old in hanging if old.producer_id == second.producer_id),
            now_ms=int(time.time() * 1000),
        )

    async def _hanging(self, topic: str) -> list[OldTransaction]:
        """Return the open transactions of a topic (of all topics if `topic` is "") that no coordinator will end."""
        from odradek.errors import AuthorizationFailed, OdradekError, UnsupportedOperation

        try:
            findings = await self._client.admin.transactions.find_hanging(topic=topic)
        except (AuthorizationFailed, UnsupportedOperation):
            return []
        except OdradekError as error:
            self._problems.append(str(error))
            return []
        return [old for old in findings.transactions if old.hangs]

    async def _progress(
        self, name: TopicPartition, *offsets: dict[TopicPartition, int]
    ) -> PartitionProgress:
        from odradek.admin.group_causes import PartitionProgress

        committed_before, committed, end_before, end, start, stable_end = (
            looked_up.get(name) for looked_up in offsets
        )
        transaction = ""
        if stable_end is not None and end is not None and stable_end < end:
            producers = await self._seen(
                lambda: self._client.admin.transactions.producers(name.topic, [name.partition])
            )
            with_open = [p for p in producers or () if p.transaction_start_offset is not None]
            if with_open:
                oldest = min(with_open, key=lambda p: p.transaction_start_offset or 0)
                transaction = f"its producer has id {oldest.producer_id}"
                listed = await self._seen(lambda: self._client.admin.transactions.list()) or ()
                for listing in listed:
                    if listing.producer_id == oldest.producer_id:
                        transaction += f" and transactional id {listing.transactional_id}"
        return PartitionProgress(
            start=start,
            end=end,
            end_before=end_before,
            stable_end=stable_end,
            committed=committed,
            committed_before=committed_before,
            open_transaction=transaction,
        )

    async def _offsets(
        self, names: Iterable[TopicPartition], at: int, *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Look up the offset of each partition at the timestamp `at`, by partition. Partitions whose leader does not
        respond are left out.
        """
        import asyncio

        async def look_up(name: TopicPartition) -> tuple[TopicPartition, int] | None:
            offsets = await self._seen(
                lambda: self._client.admin.list_offsets({name: at}, read_committed=read_committed)
            )
            return (name, offsets[name].offset) if offsets else None

        with_leader = {
            (topic.name, p.partition)
            for topic in await self._client.admin.list_topics(include_internal=True)
            for p in topic.partitions
            if p.leader_id >= 0
        }
        pairs = await asyncio.gather(*(look_up(name) for name in names if name in with_leader))
        return dict(pair for pair in pairs if pair is not None)


def _later(before: GroupDescription, after: GroupDescription | None) -> GroupDescription:
    return before if after is None else after


def _within(causes: Iterable[Cause]) -> Iterator[Cause]:
    for cause in causes:
        yield cause
        yield from _within(cause.because)


def names_of(topic: TopicDescription) -> list[TopicPartition]:
    """Return the partitions of a topic as TopicPartitions."""
    from odradek.partitions import TopicPartition

    return [TopicPartition(topic.name, p.partition) for p in topic.partitions]


def existing(
    names: Iterable[TopicPartition], topics: dict[str, TopicDescription]
) -> dict[TopicPartition, Partition]:
    """Return the partitions among `names` that exist, by name. Partitions of a group or transaction may be missing,
    because their topic was deleted or because the caller may not describe it.
    """
    return {
        name: topics[name.topic].partitions[name.partition]
        for name in names
        if name.topic in topics and name.partition < len(topics[name.topic].partitions)
    }


def chosen_of(name: str, topics: dict[str, TopicDescription]) -> list[TopicPartition]:
    """Return the partitions that `name` stands for: all partitions of the topic `name`, or one partition if it is
    TOPIC/N or TOPIC-N.
    """
    if name in topics:
        return names_of(topics[name])
    parts = topic_and_index(name, topics)
    if parts is None:
        return []
    return [n for n in names_of(topics[parts[0]]) if n.partition == parts[1]]


async def _probe_voters(quorum: QuorumDescription | None, error: str) -> dict[int, Probe]:
    """Connect to the controllers that have sent no message to the quorum's leader for SILENT_MS; to all if there is no
    leader.

    If no controller described the quorum, connect to the controllers that a broker's error message names.
    """
    import asyncio

    from odradek.admin.causes import SILENT_MS, Probe, Reached

    if quorum is None:
        named = {int(m[1]): m[2] for m in _CONTROLLER.finditer(error)}
        reached = await asyncio.gather(*(_probe(*at.rsplit(":", 1)) for at in named.values()))
        return dict(zip(named, reached, strict=True))
    has_leader = quorum.leader_id >= 0
    silent = [
        voter
        for voter in quorum.voters
        if not has_leader
        or (voter.controller_id != quorum.leader_id and (voter.heard_ms_ago or 0) > SILENT_MS)
    ]
    probes = await asyncio.gather(*(_probe(*voter.endpoint.rsplit(":", 1)) for voter in silent))
    return {
        voter.controller_id: Probe(endpoint=probe.endpoint, reached=Reached.SILENT)
        if has_leader and probe.reached is Reached.RESPONDS
        else probe
        for voter, probe in zip(silent, probes, strict=True)
    }


async def _probe(host: str, port: int | str) -> Probe:
    """Connect to a port, and close the connection. The result is RESPONDS if the connection was accepted."""
    import asyncio

    from odradek.admin.causes import Probe, Reached

    reached = Reached.RESPONDS
    try:
        async with asyncio.timeout(PROBE_S_MAX):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.close()
    except ConnectionRefusedError:
        reached = Reached.REFUSED
    except (OSError, TimeoutError):
        reached = Reached.UNREACHABLE
    return Probe(endpoint=f"{host}:{port}", reached=reached)

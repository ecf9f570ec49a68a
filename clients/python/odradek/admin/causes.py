"""Explains why something in a cluster does not work: chains of causes, each with its evidence and a remedy.

The functions read only a `Look`: the state of the cluster as one examination found it. They do no I/O, so a chain
never claims more than what was seen. A chain ends where the cluster itself knows no more: at a process that does not
respond, a disk that is full, a consumer that commits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from odradek.admin.descriptions import (
    BrokerDescription,
    ClusterDescription,
    GroupDescription,
    LogDirDescription,
    QuorumDescription,
)
from odradek.cluster.metadata_cache import Partition
from odradek.partitions import TopicPartition

NAMES_MAX = 3
"""How many partitions the text of a cause names; the others are only counted."""
SILENT_MS = 5_000
"""A controller counts as down if the leader has not heard from it for this long."""
_NO_CONTROLLER = "there is no active controller: topics, configs and leaders cannot change"
_REBALANCING = frozenset({"preparingrebalance", "completingrebalance", "assigning", "reconciling"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One fault. `because` has its causes, and is empty at the end of the chain."""

    what: str
    evidence: str = ""
    """The observation that shows the fault."""
    remedy: str = ""
    """What an operator can do about the fault; empty if nothing is known."""
    because: tuple[Cause, ...] = ()


class Reached(Enum):
    """The result of an attempt to connect to a process from this machine."""

    REFUSED = "refuses connections"
    UNREACHABLE = "cannot be reached"
    SILENT = "accepts connections, but does not respond"
    RESPONDS = "responds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An attempt to connect to the process at an endpoint."""

    endpoint: str
    reached: Reached

    def __str__(self) -> str:
        return f"{self.endpoint} {self.reached.value}, seen from here"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """The offsets of a partition and of a group that reads it, looked up twice, some seconds apart.

    Fields that end in `_before` are from the first look-up. None: not known.
    """

    start: int | None
    end: int | None
    end_before: int | None
    stable_end: int | None
    """The last stable offset, at which readers of committed records stop."""
    committed: int | None
    committed_before: int | None
    open_transaction: str = ""
    """The producer of the oldest open transaction, in words."""

    @property
    def lag(self) -> int:
        """Records that the group has not committed; 0 if that is not known."""
        if self.committed is None or self.end is None:
            return 0
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLook:
    """The state of a group, as one examination found it."""

    group: str
    description: GroupDescription | None = None
    error: str = ""
    """Why no coordinator described the group; empty if one did."""
    partitions: Mapping[TopicPartition, PartitionProgress] = field(default_factory=dict)
    seconds: float = 0.0
    """Time between the two look-ups of its offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of the cluster, as one examination found it; None or a missing key stands for what is not known."""

    quorum: QuorumDescription | None = None
    controllers_error: str = ""
    """Why no controller described the quorum, as a broker said it; empty if one did, or a broker did not say."""
    cluster: ClusterDescription | None = None
    directories: Mapping[int, Sequence[LogDirDescription]] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, Partition] = field(default_factory=dict)
    insync_min: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """min.insync.replicas of topics, and where the value was set, in words. In a cluster with many topics, not all of
    them are looked up.
    """
    brokers_reached: Mapping[int, Probe] = field(default_factory=dict)
    controllers_reached: Mapping[int, Probe] = field(default_factory=dict)
    throttles: Mapping[int, int] = field(default_factory=dict)
    """Replication throttles in bytes a second, by broker id. Brokers without a throttle are left out."""
    problems: tuple[str, ...] = ()
    """The errors of requests that failed, so that a part of the cluster was not examined."""

    def registration(self, broker_id: int) -> BrokerDescription | None:
        """Return the registration of a broker, if there is one and the controllers were asked."""
        brokers = self.cluster.brokers if self.cluster is not None else ()
        return next((b for b in brokers if b.broker_id == broker_id), None)


def cluster_causes(look: Look) -> list[Cause]:
    """Return everything that is wrong with the controllers, brokers and partitions."""
    causes = [*quorum_causes(look)]
    registered = look.cluster.brokers if look.cluster is not None else ()
    for broker in sorted(registered, key=lambda broker: broker.broker_id):
        causes += broker_causes(look, broker.broker_id)
    return causes + partition_causes(look, look.partitions)


def unseen(look: Look) -> list[Cause]:
    """Return what could not be examined. Otherwise a caller without authorization would be told that all is well."""
    return [Cause(what=f"not everything could be looked at: {text}") for text in look.problems]


def quorum_causes(look: Look) -> list[Cause]:
    """Return why there is no active controller, or which controllers the active one no longer hears from."""
    quorum = look.quorum
    down = [_process(f"controller {n}", p) for n, p in sorted(look.controllers_reached.items())]
    if quorum is None:
        if not look.controllers_error:
            return []
        return [
            Cause(
                what=_NO_CONTROLLER,
                evidence=look.controllers_error,
                remedy="a majority of the controllers must be up and connected",
                because=tuple(cause for cause in down if cause is not None),
            )
        ]
    if quorum.leader_id < 0:
        voters = ", ".join(f"{v.controller_id} at {v.endpoint}" for v in quorum.voters)
        return [
            Cause(
                what=_NO_CONTROLLER,
                evidence=f"controller {quorum.answered_by} knows no leader; the controllers are {voters}"
                if quorum.answered_by >= 0
                else f"the controllers are {voters}",
                remedy=f"a majority, {len(quorum.voters) // 2 + 1} of {len(quorum.voters)}, must be up and connected",
                because=tuple(cause for cause in down if cause is not None),
            )
        ]
    causes = []
    for voter in quorum.voters:
        silent_ms = voter.heard_ms_ago or 0
        if voter.controller_id == quorum.leader_id or silent_ms <= SILENT_MS:
            continue
        name = f"controller {voter.controller_id}"
        process = _process(name, look.controllers_reached.get(voter.controller_id))
        causes.append(
            Cause(
                what=f"{name} does not take part in the metadata quorum",
                evidence=f"controller {quorum.leader_id}, the active one, heard from it {silent_ms / 1000:.0f} s ago",
                because=(process,) if process is not None else (),
            )
        )
    return causes


def _has_controller(look: Look) -> bool:
    """Return whether there is an active controller, as far as `look` shows."""
    return look.quorum.leader_id >= 0 if look.quorum is not None else not look.controllers_error


def broker_causes(look: Look, broker_id: int) -> list[Cause]:
    """Return why a broker does not serve; nothing if it serves, as far as the cluster knows."""
    broker = look.registration(broker_id)
    if broker is None:
        if look.cluster is None:
            return [] if _has_controller(look) else list(quorum_causes(look))
        return [
            Cause(
                what=f"broker {broker_id} is not registered",
                evidence="the controllers do not know it: it was never started, or it was unregistered",
                remedy="start it; if it runs, its log says why no controller takes its registration",
            )
        ]
    name = f"broker {broker_id}"
    disks = [*_disk_causes(name, look.directories.get(broker_id, ()))]
    if broker.is_fenced:
        # A broker whose disk failed ends its session, so the disk is the only cause.
        return [
            Cause(
                what=f"{name} is fenced: it leads nothing, and clients are not sent to it",
                evidence="the active controller has no session with it",
                because=tuple(disks or _why_no_session(look, broker)),
            )
        ]
    if broker.is_in_shutdown:
        evidence = "it hands its leaderships over"
        return [Cause(what=f"{name} is shutting down", evidence=evidence), *disks]
    process = _process(name, look.brokers_reached.get(broker_id))
    return disks if process is None else [process, *disks]


def _disk_causes(name: str, directories: Iterable[LogDirDescription]) -> Iterator[Cause]:
    for directory in directories:
        if directory.offline_reason:
            yield Cause(
                what=f"{name} has lost its data directory {directory.path}",
                evidence=directory.offline_reason,
                remedy="repair or replace the disk, and restart the broker: it copies what it lacks",
            )
        elif directory.full_reason:
            yield Cause(
                what=f"{name} does not write: its data directory {directory.path} is full",
                evidence=directory.full_reason + _free(directory),
                remedy="make room (`odradek topic trim`, or a larger volume): it goes on by itself",
            )


def _free(directory: LogDirDescription) -> str:
    if directory.usable_bytes is None or directory.total_bytes is None:
        return ""
    mebi = 1024 * 1024
    return f" ({directory.usable_bytes // mebi} of {directory.total_bytes // mebi} MiB free)"


def _why_no_session(look: Look, broker: BrokerDescription) -> Iterator[Cause]:
    name = f"broker {broker.broker_id}"
    probe = look.brokers_reached.get(broker.broker_id)
    process = _process(name, probe)
    if process is not None:
        yield process
    elif broker.is_in_shutdown:
        yield Cause(
            what=f"{name} was stopped in order", evidence="it announced its stop", remedy="start it"
        )
    elif probe is not None:
        yield Cause(
            what=f"{name} runs, but its heartbeats do not reach the active controller, or it is still starting",
            evidence=str(probe),
            remedy="its log and /readyz say what it waits for; check the network from it to the controllers",
        )


def _process(name: str, probe: Probe | None) -> Cause | None:
    """Return why the process at a probed endpoint does not respond; None if it does, or was not probed."""
    match probe:
        case Probe(reached=Reached.REFUSED):
            return Cause(
                what=f"the process of {name} does not run, or is still starting",
                evidence=str(probe),
                remedy="start it; the end of its log says why it ended",
            )
        case Probe(reached=Reached.UNREACHABLE):
            return Cause(
                what=f"the host of {name} is down, or the network to it is",
                evidence=str(probe),
                remedy="check the host, its address and the firewall",
            )
        case Probe(reached=Reached.SILENT):
            return Cause(
                what=f"the process of {name} hangs, is stopped, or its machine is overloaded",
                evidence=str(probe),
                remedy="look at the process (`kill -CONT` if it was stopped), or restart it",
            )
    return None


class _Fault(Enum):
    """The faults of a partition, worst first. Each value has the text for one partition, and that for several."""

    NO_LEADER = (
        "cannot be written or read: it has no leader",
        "cannot be written or read: they have no leaders",
    )
    ACKS_ALL_REFUSED = ("refuses writes with acks=all", "refuse writes with acks=all")
    LEADER_UNABLE = (
        "cannot be written: its leader is unable to write",
        "cannot be written: their leaders are unable to write",
    )
    NO_CONTROLLER = (
        "cannot be read, and takes writes only with acks=all and a second replica in sync",
        "cannot be read, and take writes only with acks=all and a second replica in sync",
    )
    UNDER_REPLICATED = (
        "is under-replicated; it takes writes",
        "are under-replicated; they take writes",
    )
    UNDER_UNKNOWN_MINIMUM = (
        "is under-replicated, and may refuse writes with acks=all",
        "are under-replicated, and may refuse writes with acks=all",
    )


_UNDER_REPLICATED = frozenset({_Fault.UNDER_REPLICATED, _Fault.UNDER_UNKNOWN_MINIMUM})


def partition_causes(
    look: Look, names: Iterable[TopicPartition], *, is_stopped: bool = False
) -> list[Cause]:
    """Return what is wrong with these partitions; those with the same causes share an entry.

    With `is_stopped`, only what stops reads or writes counts.
    """
    sharing: dict[tuple[_Fault, str, str, tuple[Cause, ...]], list[TopicPartition]] = {}
    for name in sorted(names):
        for fault, cause in _faults(look, name, look.partitions[name]):
            if not is_stopped or fault not in _UNDER_REPLICATED:
                key = (fault, cause.evidence, cause.remedy, cause.because)
                sharing.setdefault(key, []).append(name)
    rank = list(_Fault)
    return [
        Cause(
            what=f"{joined(members)} {fault.value[len(members) > 1]}",
            evidence=evidence,
            remedy=remedy,
            because=because,
        )
        for (fault, evidence, remedy, because), members in sorted(
            sharing.items(), key=lambda item: rank.index(item[0][0])
        )
    ]


def joined(names: Sequence[TopicPartition]) -> str:
    """Return the first names as text, and the number of the others."""
    text = ", ".join(map(str, names[:NAMES_MAX]))
    return text if len(names) <= NAMES_MAX else f"{text} and {len(names) - NAMES_MAX} more"


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(brokers))) or "none"


def _faults(look: Look, name: TopicPartition, p: Partition) -> Iterator[tuple[_Fault, Cause]]:
    """Yield the faults of a partition. The `what` of a cause is still empty, because partitions may share the cause."""
    replicas = f"replicas {_ids(p.replicas)}; in sync {_ids(p.isr)}"
    if p.leader_id < 0:
        eligible = [broker for broker in p.replicas if broker in p.isr or broker in p.elr]
        down = [cause for broker in eligible for cause in broker_causes(look, broker)]
        evidence = replicas + (f"; eligible {_ids(p.elr)}" if p.elr else "")
        remedy = (
            f"bring broker {' or '.join(map(str, eligible))} back, since no other has all committed records;"
            if eligible
            else "no replica is known to have all committed records;"
        )
        yield (
            _Fault.NO_LEADER,
            Cause(
                what="",
                evidence=evidence,
                remedy=f"{remedy} `odradek partition elect --unclean` gives up what the others lack",
                because=tuple(dict.fromkeys([*quorum_causes(look), *down])),
            ),
        )
        return
    if leader := broker_causes(look, p.leader_id):
        evidence = f"broker {p.leader_id} leads"
        # Without controllers leaders have no leases, which reads and acks=1 need (acks.all.without.controller.enable).
        fault = _Fault.NO_CONTROLLER if look.cluster is None else _Fault.LEADER_UNABLE
        yield fault, Cause(what="", evidence=evidence, because=tuple(leader))
    behind = [broker for broker in p.replicas if broker not in p.isr]
    required, source = look.insync_min.get(name.topic, (0, ""))
    because = [cause for broker in behind for cause in _why_not_in_sync(look, name, p, broker)]
    if len(p.isr) < required:
        if len(p.replicas) < required:
            because.append(
                Cause(
                    what=f"there are only {len(p.replicas)} replicas, and {required} must be in sync",
                    evidence=f"replicas {_ids(p.replicas)}",
                    remedy=f"`odradek partition set-replicas {name.topic} {required}`,"
                    " or set min.insync.replicas lower",
                )
            )
        evidence = f"{replicas}; min.insync.replicas is {required} ({source})"
        yield _Fault.ACKS_ALL_REFUSED, Cause(what="", evidence=evidence, because=tuple(because))
    elif behind and required:
        yield _Fault.UNDER_REPLICATED, Cause(what="", evidence=replicas, because=tuple(because))
    elif behind:
        evidence = f"{replicas}; min.insync.replicas was not looked up"
        remedy = "`odradek why TOPIC` looks it up"
        yield (
            _Fault.UNDER_UNKNOWN_MINIMUM,
            Cause(what="", evidence=evidence, remedy=remedy, because=tuple(because)),
        )


def _why_not_in_sync(
    look: Look, name: TopicPartition, partition: Partition, broker_id: int
) -> Iterator[Cause]:
    if causes := broker_causes(look, broker_id):
        yield from causes
        return
    bytes_on = {
        broker: size
        for broker in (broker_id, partition.leader_id)
        for directory in look.directories.get(broker, ())
        if (size := directory.partition_bytes.get(name)) is not None
    }
    size, leader_size = bytes_on.get(broker_id), bytes_on.get(partition.leader_id)
    evidence = (
        f"it has {size:,} of the leader's {leader_size:,} bytes of {name}"
        if size is not None and leader_size is not None
        else "it responds, and its disk takes writes"
    )
    rate = look.throttles.get(broker_id)
    if broker_id in partition.adding_replicas:
        what = f"broker {broker_id} is still copying {name}, which moves to it"
        remedy = "`odradek partition moves` shows the progress"
    else:
        what = f"broker {broker_id} is up, but is still catching up with {name}"
        remedy = "it becomes in sync by itself; if it does not, the logs of both brokers say why"
    if rate is not None:
        evidence += f"; it may copy {rate:,} bytes a second"
        remedy = "`odradek partition throttle --remove` lets it copy as fast as it can"
    yield Cause(what=what, evidence=evidence, remedy=remedy)


def group_causes(look: Look, group: GroupLook) -> list[Cause]:
    """Return why a group is behind, or has no coordinator; nothing if it has read everything."""
    if group.description is None:
        offsets = [n for n in look.partitions if n.topic == "__consumer_offsets"]
        lost = partition_causes(look, offsets, is_stopped=True)
        return [
            Cause(
                what=f"the coordinator of group {group.group} does not respond",
                evidence=group.error,
                because=tuple(lost or quorum_causes(look)),
            )
        ]
    behind = {name: p for name, p in sorted(group.partitions.items()) if p.lag or p.end is None}
    if not behind:
        return []
    reasons: dict[Cause, list[TopicPartition]] = {}
    for name, progress in behind.items():
        reasons.setdefault(_why_behind(look, group, name, progress), []).append(name)
    return [
        Cause(
            what=f"group {group.group} is {sum(p.lag for p in behind.values()):,} records behind",
            evidence=f"committed and end offsets of {len(behind)} partitions ({joined(list(behind))});"
            f" its state is {group.description.state}",
            because=tuple(
                Cause(
                    what=f"{joined(names)}: {cause.what}",
                    evidence=cause.evidence,
                    remedy=cause.remedy,
                    because=cause.because,
                )
                for cause, names in reasons.items()
            ),
        )
    ]


def _why_behind(
    look: Look, group: GroupLook, name: TopicPartition, progress: PartitionProgress
) -> Cause:
    """Return the first cause that keeps a group from reading a partition to its end."""
    description = group.description
    assert description is not None
    if progress.end is None:
        evidence = f"committed {progress.committed}"
        if name not in look.partitions:
            return Cause(
                what="the partition does not exist, or may not be described",
                evidence=evidence,
                remedy="if its topic was deleted, subscribe to another one; else ask for the right to describe it",
            )
        stopped = tuple(partition_causes(look, [name], is_stopped=True))
        reason = ", since no leader responds" if stopped else ""
        return Cause(what=f"its end is not known{reason}", evidence=evidence, because=stopped)
    state = description.state
    if not description.members:
        return Cause(
            what="nobody reads: the group has no members",
            evidence=f"its state is {state}",
            remedy=f"start its consumers; their logs say why they ended (group.id={description.group})",
        )
    if state.lower() in _REBALANCING:
        return Cause(
            what="the group is rebalancing, and members may wait for each other",
            evidence=f"its state is {state}, with {len(description.members)} members",
            remedy="it ends when every member has responded, or was removed after its session time-out",
        )
    owner = next((m for m in description.members if name in m.assignment), None)
    knows_owners = any(member.assignment for member in description.members)
    if owner is None and knows_owners:
        return Cause(
            what="no member has this partition",
            evidence=f"{len(description.members)} members have others",
            remedy="the members no longer subscribe to this topic: subscribe again, or delete the committed"
            " offsets (`odradek group offset-delete`)",
        )
    committed = progress.committed or 0
    if progress.start is not None and committed < progress.start:
        return Cause(
            what="records were deleted before they were read",
            evidence=f"committed {committed}, but the first record is {progress.start}",
            remedy="retention is shorter than the group is slow: raise retention.ms; the consumer goes on where"
            " its auto.offset.reset says",
        )
    if (
        progress.stable_end is not None
        and progress.end is not None
        and committed >= progress.stable_end < progress.end
    ):
        return Cause(
            what="readers of committed records wait for an open transaction",
            evidence=f"it began at offset {progress.stable_end}, the end is {progress.end}"
            + (f"; {progress.open_transaction}" if progress.open_transaction else ""),
            remedy="its producer must end it, or its transaction time-out does; `odradek why ID` explains it",
        )
    member = "the member"
    if owner is not None:
        member = (
            f"member {owner.instance_id or owner.member_id} ({owner.client_id} on {owner.host})"
        )
    elif len(description.members) == 1:
        (only,) = description.members
        member = f"member {only.instance_id or only.member_id} ({only.client_id} on {only.host})"
    read = committed - (
        progress.committed_before if progress.committed_before is not None else committed
    )
    written = (progress.end or 0) - (progress.end_before or progress.end or 0)
    return _why_slow(group, member, read, written)


def _why_slow(group: GroupLook, member: str, read: int, written: int) -> Cause:
    seconds = group.seconds
    evidence = f"in {seconds:.1f} s it committed {read:,} records, and {written:,} were written"
    if read <= 0:
        return Cause(
            what=f"{member} commits nothing",
            evidence=evidence,
            remedy="it hangs in its processing, is stopped, or commits rarely: look at its log and stack",
        )
    if read <= written:
        return Cause(
            what=f"{member} reads more slowly than records are written",
            evidence=evidence,
            remedy="make it faster, or add members, up to one for each partition",
        )
    return Cause(
        what=f"{member} is catching up",
        evidence=evidence,
        remedy="nothing: it gains on the writers",
    )

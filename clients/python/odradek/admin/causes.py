"""Explains why something in a cluster does not work, as chains of causes, each with its evidence and a remedy.

The functions read only a `Look`, which is the state of the cluster at the time of one examination. They do no I/O, so a
chain never claims more than was observed. A chain ends where the cluster has no further information: at a process that
does not respond, a full disk, or a consumer that commits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from odradek.admin.descriptions import (
    BrokerDescription,
    ClusterDescription,
    LogDirDescription,
    QuorumDescription,
)
from odradek.cluster.metadata_cache import Partition
from odradek.partitions import TopicPartition

NAMES_MAX = 3
"""The most partitions that the text of a cause names. Further partitions are only counted."""
SILENT_MS = 5_000
"""A controller counts as down if the active controller has received no message from it for this long."""
_NO_CONTROLLER = "there is no active controller: topics, configs and leaders cannot change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One fault. `because` has the causes of the fault; it is empty at the end of the chain."""

    what: str
    evidence: str = ""
    """The observation that shows the fault."""
    remedy: str = ""
    """What an operator can do about the fault; empty if no remedy is known."""
    because: tuple[Cause, ...] = ()


class Reached(Enum):
    """The result of an attempt to connect to a process from this machine."""

    REFUSED = "refuses connections"
    UNREACHABLE = "cannot be reached"
    SILENT = "accepts connections, but does not respond"
    RESPONDS = "responds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An attempt to connect to the process at an endpoint, and its result."""

    endpoint: str
    reached: Reached

    def __str__(self) -> str:
        return f"{self.endpoint} {self.reached.value}, as seen from this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of the cluster at the time of one examination. None or a missing key means that the value is not
    known.
    """

    quorum: QuorumDescription | None = None
    controllers_error: str = ""
    """Why no controller described the quorum, from the error of a broker. Empty if a controller described it, or if no
    broker responded with such an error.
    """
    cluster: ClusterDescription | None = None
    directories: Mapping[int, Sequence[LogDirDescription]] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, Partition] = field(default_factory=dict)
    insync_min: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """By topic: min.insync.replicas, and in words where the value is set. In a cluster with many topics, some are left
    out.
    """
    brokers_reached: Mapping[int, Probe] = field(default_factory=dict)
    controllers_reached: Mapping[int, Probe] = field(default_factory=dict)
    throttles: Mapping[int, int] = field(default_factory=dict)
    """By broker id: the replication throttle in bytes per second. Brokers without a throttle are left out."""
    problems: tuple[str, ...] = ()
    """The errors of failed requests. A part of the cluster could not be examined because of them."""

    def registration(self, broker_id: int) -> BrokerDescription | None:
        """Return the registration of a broker. None: the broker is not registered, or the controllers did not
        respond.
        """
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
    """Return a cause for each part of the cluster that could not be examined. Without these causes, a caller without
    authorization would be told that nothing is wrong.
    """
    return [
        Cause(what=f"a part of the cluster could not be examined: {text}") for text in look.problems
    ]


def quorum_causes(look: Look) -> list[Cause]:
    """Return why there is no active controller, or which controllers no longer send messages to the active one."""
    quorum = look.quorum
    down = [_process(f"controller {n}", p) for n, p in sorted(look.controllers_reached.items())]
    if quorum is None:
        if not look.controllers_error:
            return []
        return [
            Cause(
                what=_NO_CONTROLLER,
                evidence=look.controllers_error,
                remedy="start or connect controllers until a majority of them is up",
                because=tuple(cause for cause in down if cause is not None),
            )
        ]
    if quorum.leader_id < 0:
        voters = ", ".join(f"{v.controller_id} at {v.endpoint}" for v in quorum.voters)
        return [
            Cause(
                what=_NO_CONTROLLER,
                evidence=f"controller {quorum.answered_by} reports no leader; the controllers are {voters}"
                if quorum.answered_by >= 0
                else f"the controllers are {voters}",
                remedy="start or connect controllers until a majority of them is up:"
                f" {len(quorum.voters) // 2 + 1} of {len(quorum.voters)}",
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
                evidence=f"the active controller, {quorum.leader_id}, last heard from it {silent_ms / 1000:.0f} s ago",
                because=(process,) if process is not None else (),
            )
        )
    return causes


def _has_controller(look: Look) -> bool:
    """Return whether there is an active controller, as far as `look` shows."""
    return look.quorum.leader_id >= 0 if look.quorum is not None else not look.controllers_error


def broker_causes(look: Look, broker_id: int) -> list[Cause]:
    """Return why a broker does not serve requests; empty if the cluster reports no problem with it."""
    broker = look.registration(broker_id)
    if broker is None:
        if look.cluster is None:
            return [] if _has_controller(look) else list(quorum_causes(look))
        return [
            Cause(
                what=f"broker {broker_id} is not registered",
                evidence="it was never started, or it was unregistered",
                remedy="start the broker; if it is running, its log says why no controller accepts its registration",
            )
        ]
    name = f"broker {broker_id}"
    disks = [*_disk_causes(name, look.directories.get(broker_id, ()))]
    if broker.is_fenced:
        # A broker whose disk failed ends its session, so the disk is the only cause.
        return [
            Cause(
                what=f"{name} is fenced: it leads no partition, and clients do not use it",
                evidence="the active controller has no session with it",
                because=tuple(disks or _why_no_session(look, broker)),
            )
        ]
    # A broker that cannot write moves its leaderships and is marked as shutting down, so its disk is checked first.
    if broker.is_in_shutdown and not disks:
        evidence = "its leaderships are moving to other brokers"
        return [Cause(what=f"{name} is shutting down", evidence=evidence)]
    process = _process(name, look.brokers_reached.get(broker_id))
    return disks if process is None else [process, *disks]


def _disk_causes(name: str, directories: Iterable[LogDirDescription]) -> Iterator[Cause]:
    for directory in directories:
        if directory.offline_reason:
            yield Cause(
                what=f"{name} has lost its data directory {directory.path}",
                evidence=directory.offline_reason,
                remedy="repair or replace the disk, and restart the broker, which copies the missing records from"
                " the leaders",
            )
        elif directory.full_reason:
            yield Cause(
                what=f"{name} cannot write: its data directory {directory.path} is full",
                evidence=directory.full_reason + _free(directory),
                remedy="free space (`odradek topic trim`, or a larger volume): the broker then continues by itself",
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
            what=f"{name} was shut down", evidence="it announced its shutdown", remedy="start it"
        )
    elif probe is not None:
        yield Cause(
            what=f"{name} is running, but is still starting, or its heartbeats do not reach the active controller",
            evidence=str(probe),
            remedy="read the broker's log and /readyz, and check the network from the broker to the controllers",
        )


def _process(name: str, probe: Probe | None) -> Cause | None:
    """Return why the process at a probed endpoint does not respond. None: it responds, or was not probed."""
    match probe:
        case Probe(reached=Reached.REFUSED):
            return Cause(
                what=f"the process of {name} is not running, or is still starting",
                evidence=str(probe),
                remedy="start the process; the end of its log says why it ended",
            )
        case Probe(reached=Reached.UNREACHABLE):
            return Cause(
                what=f"the host of {name} is down, or the network to it is",
                evidence=str(probe),
                remedy="check the host, its address and the firewall",
            )
        case Probe(reached=Reached.SILENT):
            return Cause(
                what=f"the process of {name} hangs or is paused, or its machine is overloaded",
                evidence=str(probe),
                remedy="continue the process with `kill -CONT` if it was paused, or restart it",
            )
    return None


class _Fault(Enum):
    """The faults of a partition, worst first. Each value has a text for one partition, and a text for several."""

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
        "cannot be read, and accepts writes only with acks=all and while a second replica is in sync",
        "cannot be read, and accept writes only with acks=all and while a second replica is in sync",
    )
    UNDER_REPLICATED = (
        "is under-replicated, but accepts writes",
        "are under-replicated, but accept writes",
    )
    UNDER_UNKNOWN_MINIMUM = (
        "is under-replicated, and may refuse writes with acks=all",
        "are under-replicated, and may refuse writes with acks=all",
    )


_UNDER_REPLICATED = frozenset({_Fault.UNDER_REPLICATED, _Fault.UNDER_UNKNOWN_MINIMUM})


def partition_causes(
    look: Look, names: Iterable[TopicPartition], *, is_stopped: bool = False
) -> list[Cause]:
    """Return the faults of these partitions, with their causes. Partitions with the same fault and causes share one
    `Cause`.

    With `is_stopped`, only faults that stop reads or writes are returned.
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


def coordinator_cause(look: Look, subject: str, topic: str, error: str) -> Cause:
    """Return why the coordinator of `subject` does not respond: partitions of its internal topic, or the quorum.
    `error` is the error of the request to the coordinator.
    """
    stopped = partition_causes(
        look, [name for name in look.partitions if name.topic == topic], is_stopped=True
    )
    return Cause(
        what=f"the coordinator of {subject} does not respond",
        evidence=error,
        because=tuple(stopped or quorum_causes(look)),
    )


def joined(names: Sequence[TopicPartition]) -> str:
    """Return the first NAMES_MAX names as text, followed by the number of further names."""
    text = ", ".join(map(str, names[:NAMES_MAX]))
    return text if len(names) <= NAMES_MAX else f"{text} and {len(names) - NAMES_MAX} more"


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(brokers))) or "none"


def _faults(look: Look, name: TopicPartition, p: Partition) -> Iterator[tuple[_Fault, Cause]]:
    """Yield the faults of a partition. The causes have no text in `what`: `partition_causes` writes this text, with the
    names of all partitions that share the fault.
    """
    replicas = f"replicas {_ids(p.replicas)}; in sync {_ids(p.isr)}"
    if p.leader_id < 0:
        eligible = [broker for broker in p.replicas if broker in p.isr or broker in p.elr]
        down = [cause for broker in eligible for cause in broker_causes(look, broker)]
        evidence = replicas + (f"; eligible {_ids(p.elr)}" if p.elr else "")
        remedy = (
            f"start broker {' or '.join(map(str, eligible))}, which has all committed records; if that is impossible,"
            if eligible
            else "no replica is known to have all committed records;"
        )
        yield (
            _Fault.NO_LEADER,
            Cause(
                what="",
                evidence=evidence,
                remedy=f"{remedy} `odradek partition elect --unclean` elects another replica, and loses the records"
                " that it does not have",
                because=tuple(dict.fromkeys([*quorum_causes(look), *down])),
            ),
        )
        return
    if leader := broker_causes(look, p.leader_id):
        evidence = f"broker {p.leader_id} leads"
        # Without controllers, leaders have no lease. Reads and writes with acks=1 need a lease; writes with acks=all do
        # not (acks.all.without.controller.enable).
        fault = _Fault.NO_CONTROLLER if look.cluster is None else _Fault.LEADER_UNABLE
        yield fault, Cause(what="", evidence=evidence, because=tuple(leader))
    behind = [broker for broker in p.replicas if broker not in p.isr]
    required, source = look.insync_min.get(name.topic, (0, ""))
    because = [cause for broker in behind for cause in _why_not_in_sync(look, name, p, broker)]
    if len(p.isr) < required:
        if len(p.replicas) < required:
            because.append(
                Cause(
                    what=f"there are only {len(p.replicas)} replicas, but {required} must be in sync",
                    evidence=f"replicas {_ids(p.replicas)}",
                    remedy=f"run `odradek partition set-replicas {name.topic} {required}`,"
                    " or lower min.insync.replicas",
                )
            )
        evidence = f"{replicas}; min.insync.replicas is {required} ({source})"
        yield _Fault.ACKS_ALL_REFUSED, Cause(what="", evidence=evidence, because=tuple(because))
    elif behind and required:
        yield _Fault.UNDER_REPLICATED, Cause(what="", evidence=replicas, because=tuple(because))
    elif behind:
        evidence = f"{replicas}; min.insync.replicas was not read, because there are many topics"
        remedy = "run `odradek why TOPIC`, which reads min.insync.replicas"
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
        else "it responds, and its disk is writable"
    )
    rate = look.throttles.get(broker_id)
    if broker_id in partition.adding_replicas:
        what = f"broker {broker_id} is still copying {name}, which is being moved to it"
        remedy = "wait; `odradek partition moves` shows the progress"
    else:
        what = f"broker {broker_id} is up, but is still catching up with the leader of {name}"
        remedy = "wait; if the replica does not get in sync, the logs of both brokers say why"
    if rate is not None:
        evidence += f"; it is throttled to {rate:,} bytes per second"
        remedy = "wait, or remove the limit with `odradek partition throttle --remove`"
    yield Cause(what=what, evidence=evidence, remedy=remedy)

"""Chains of causes for faults that tests with real processes do not cause: disks, quorums, throttles, slow readers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from odradek.admin.causes import (
    Cause,
    Look,
    Probe,
    Reached,
    broker_causes,
    cluster_causes,
    partition_causes,
    quorum_causes,
    unseen,
)
from odradek.admin.descriptions import (
    BrokerDescription,
    ClusterDescription,
    GroupDescription,
    GroupMember,
    LogDirDescription,
    Partition,
    QuorumDescription,
    TopicDescription,
    Voter,
)
from odradek.admin.group_causes import GroupLook, PartitionProgress, group_causes
from odradek.admin.transaction_admin import (
    HangingState,
    OldTransaction,
    TransactionDescription,
)
from odradek.admin.transaction_causes import TransactionLook, transaction_causes
from odradek.cli.why import existing, lines_of
from odradek.partitions import TopicPartition

ORDERS = TopicPartition("orders", 0)


def broker(broker_id: int, **fields: Any) -> BrokerDescription:
    known = {"broker_epoch": 1, "listeners": (), "rack": "", "leader_count": 0}
    flags = {"is_fenced": False, "is_in_shutdown": False}
    return BrokerDescription(broker_id=broker_id, **{**known, **flags, **fields})


def cluster(*brokers: BrokerDescription) -> ClusterDescription:
    return ClusterDescription(
        cluster_id="c",
        active_controller_id=1,
        controller_epoch=1,
        controller_endpoints=(),
        brokers=brokers or (broker(1), broker(2)),
    )


def partition(**fields: Any) -> Partition:
    known = {"partition": 0, "leader_id": 1, "leader_epoch": 1, "replicas": (1, 2), "isr": (1,)}
    return Partition(**{**known, **fields})


def directory(broker_id: int, **fields: Any) -> list[LogDirDescription]:
    return [LogDirDescription(broker_id=broker_id, path=f"/data/{broker_id}", **fields)]


def look(**fields: Any) -> Look:
    return Look(**{"cluster": cluster(), "partitions": {ORDERS: partition()}, **fields})


def only(causes: list[Cause]) -> Cause:
    (cause,) = causes
    return cause


def progress(**fields: Any) -> PartitionProgress:
    known = {"start": 0, "end": 100, "end_before": 90, "stable_end": 100}
    return PartitionProgress(**{**known, "committed": 10, "committed_before": 10, **fields})


def behind(*, seen: Look | None = None, **fields: Any) -> Cause:
    """Return why a group with one member is behind on its one partition."""
    member = GroupMember(
        member_id="m",
        instance_id=None,
        client_id="app",
        host="h1",
        epoch=1,
        assignment=(ORDERS,),
    )
    description = GroupDescription(
        group="billing",
        state="Stable",
        type="consumer",
        protocol="",
        epoch=1,
        coordinator_id=1,
        members=(member,),
    )
    group = GroupLook(
        group="billing",
        description=description,
        partitions={ORDERS: progress(**fields)},
        seconds=2.0,
    )
    return only(list(only(group_causes(seen or look(), group)).because))


def test_a_full_disk_is_why_a_follower_is_missing_and_why_a_leader_does_not_write() -> None:
    full = directory(2, full_reason="no space", total_bytes=9 << 20, usable_bytes=1 << 20)
    suffices = {"orders": (1, "set by: topic")}
    cause = only(partition_causes(look(directories={2: full}, insync_min=suffices), [ORDERS]))
    assert cause.what == "orders-0 is under-replicated, but accepts writes"
    assert "cannot write: its data directory /data/2 is full" in only(list(cause.because)).what
    assert only(list(cause.because)).evidence == "no space (1 of 9 MiB free)"
    led = look(directories={2: full}, partitions={ORDERS: partition(leader_id=2, isr=(1, 2))})
    cause = only(partition_causes(led, [ORDERS]))
    assert cause.what == "orders-0 cannot be written: its leader is unable to write"


def test_partitions_with_the_same_causes_share_a_line() -> None:
    names = [TopicPartition("orders", n) for n in range(5)]
    shared = look(
        partitions={name: partition(partition=name.partition) for name in names},
        cluster=cluster(broker(1), broker(2, is_fenced=True)),
        insync_min={"orders": (2, "set by: topic")},
    )
    cause = only(partition_causes(shared, names))
    assert cause.what == "orders-0, orders-1, orders-2 and 2 more refuse writes with acks=all"


def test_a_minimum_that_was_not_looked_up_is_not_said_to_suffice() -> None:
    cause = only(partition_causes(look(), [ORDERS]))
    assert cause.what == "orders-0 is under-replicated, and may refuse writes with acks=all"
    assert cause.evidence == (
        "replicas 1,2; in sync 1; min.insync.replicas was not read, because there are many topics"
    )
    assert partition_causes(look(), [ORDERS], is_stopped=True) == []


def test_too_few_replicas_are_a_cause_of_their_own() -> None:
    one = look(
        partitions={ORDERS: partition(replicas=(1,))},
        insync_min={"orders": (2, "set by: broker default")},
    )
    cause = only(list(only(partition_causes(one, [ORDERS])).because))
    assert cause.what == "there are only 1 replicas, but 2 must be in sync"
    assert "set-replicas orders 2" in cause.remedy


def test_a_replica_that_catches_up_is_shown_with_its_bytes_and_its_throttle() -> None:
    sizes = {
        broker_id: directory(broker_id, partition_bytes={ORDERS: size})
        for broker_id, size in ((1, 5000), (2, 1000))
    }
    cause = only(list(only(partition_causes(look(directories=sizes), [ORDERS])).because))
    assert "still catching up with the leader of orders-0" in cause.what
    assert "it has 1,000 of the leader's 5,000 bytes of orders-0" in cause.evidence
    throttled = look(directories=sizes, throttles={2: 100})
    cause = only(list(only(partition_causes(throttled, [ORDERS])).because))
    assert cause.evidence.endswith("it is throttled to 100 bytes per second")
    assert "throttle --remove" in cause.remedy
    moving = look(directories=sizes, partitions={ORDERS: partition(adding_replicas=(2,))})
    cause = only(list(only(partition_causes(moving, [ORDERS])).because))
    assert "still copying orders-0, which is being moved to it" in cause.what


def test_partitions_with_the_same_replicas_in_another_order_share_an_entry() -> None:
    payments = TopicPartition("payments", 0)
    here = {ORDERS: partition(), payments: partition(replicas=(2, 1))}
    cause = only(
        partition_causes(
            look(partitions=here, cluster=cluster(broker(1), broker(2, is_fenced=True))), here
        )
    )
    assert cause.what.startswith("orders-0, payments-0 are under-replicated")
    assert "replicas 1,2; in sync 1" in cause.evidence


def test_a_cause_is_explained_only_once() -> None:
    gone = Cause(
        what="broker 2 is fenced", evidence="no session", because=(Cause(what="it hangs"),)
    )
    explained: set[Cause] = set()
    for first in ("orders-0", "payments-0"):
        cause = Cause(what=f"{first} is under-replicated", because=(gone,))
        lines = list(lines_of(cause, explained))
        if first == "orders-0":
            assert lines[1:] == [
                "  because broker 2 is fenced",
                "      seen: no session",
                "    because it hangs",
            ]
        else:
            assert lines[1:] == ["  because broker 2 is fenced (explained above)"]


def test_without_a_leader_only_replicas_with_all_records_are_a_way_out() -> None:
    gone = partition(leader_id=-1, isr=(), elr=(2,))
    fenced = cluster(broker(1), broker(2, is_fenced=True))
    cause = only(partition_causes(look(partitions={ORDERS: gone}, cluster=fenced), [ORDERS]))
    assert "eligible 2" in cause.evidence
    assert "start broker 2" in cause.remedy
    assert [deeper.what.split(" is ")[0] for deeper in cause.because] == ["broker 2"]


def test_controllers_that_are_silent_or_too_few_are_named() -> None:
    voters = tuple(
        Voter(controller_id=n, endpoint=f"c{n}:9095", log_end=1, heard_ms_ago=n * 4_000)
        for n in (1, 2)
    )
    quorum = QuorumDescription(leader_id=1, term=1, commit_offset=1, answered_by=1, voters=voters)
    reached = {2: Probe(endpoint="c2:9095", reached=Reached.UNREACHABLE)}
    cause = only(quorum_causes(look(quorum=quorum, controllers_reached=reached)))
    assert cause.what == "controller 2 does not take part in the metadata quorum"
    assert "last heard from it 8 s ago" in cause.evidence
    assert "cannot be reached" in only(list(cause.because)).evidence
    lost = look(quorum=replace(quorum, leader_id=-1), controllers_reached=reached)
    cause = only(quorum_causes(lost))
    assert "a majority of them is up: 2 of 2" in cause.remedy
    assert "the host of controller 2 is down" in only(list(cause.because)).what


def test_controllers_that_no_broker_reaches_are_named() -> None:
    reached = {1: Probe(endpoint="c1:9094", reached=Reached.REFUSED)}
    lost = look(cluster=None, controllers_error="none responded", controllers_reached=reached)
    cause = only(quorum_causes(lost))
    assert cause.evidence == "none responded"
    assert "the process of controller 1 is not running" in only(list(cause.because)).what
    assert quorum_causes(look(cluster=None)) == []


def test_without_controllers_partitions_still_take_acks_all() -> None:
    healthy = {ORDERS: partition(isr=(1, 2))}
    lost = look(cluster=None, controllers_error="none responded", partitions=healthy)
    cause = only(partition_causes(lost, [ORDERS]))
    assert cause.what.startswith("orders-0 cannot be read, and accepts writes only with acks=all")
    assert "no active controller" in only(list(cause.because)).what
    voters = tuple(
        Voter(controller_id=n, endpoint=f"c{n}:9095", log_end=1, heard_ms_ago=n * 4_000)
        for n in (1, 2)
    )
    quorum = QuorumDescription(leader_id=1, term=1, commit_offset=1, answered_by=1, voters=voters)
    undescribed = look(cluster=None, quorum=quorum, partitions=healthy)
    assert partition_causes(undescribed, [ORDERS]) == [], "a silent voter stops no partition"


def test_a_broker_that_responds_or_was_stopped_is_told_apart_from_one_that_is_down() -> None:
    responds = {2: Probe(endpoint="b2:9090", reached=Reached.RESPONDS)}
    fenced = look(cluster=cluster(broker(2, is_fenced=True)), brokers_reached=responds)
    assert "its heartbeats do not reach" in only(list(only(broker_causes(fenced, 2)).because)).what
    stopped = look(
        cluster=cluster(broker(2, is_fenced=True, is_in_shutdown=True)), brokers_reached=responds
    )
    assert "was shut down" in only(list(only(broker_causes(stopped, 2)).because)).what
    hands_over = look(cluster=cluster(broker(2, is_in_shutdown=True)))
    assert only(broker_causes(hands_over, 2)).what == "broker 2 is shutting down"


def test_a_broker_with_a_full_disk_is_not_said_to_shut_down() -> None:
    """It hands its leaderships over as one that shuts down does."""
    full = directory(2, full_reason="no space")
    seen = look(cluster=cluster(broker(2, is_in_shutdown=True)), directories={2: full})
    assert "/data/2 is full" in only(broker_causes(seen, 2)).what


def test_what_could_not_be_looked_at_is_told() -> None:
    partly = look(partitions={}, problems=("User:a needs DESCRIBE on CLUSTER",))
    assert cluster_causes(partly) == []
    assert "User:a needs DESCRIBE" in only(unseen(partly)).what


def test_a_reader_is_stuck_slow_or_catching_up() -> None:
    assert behind().what == "orders-0: member m (app on h1) commits nothing"
    assert behind().evidence == "in 2.0 s, it committed 0 records, and producers wrote 10"
    assert "reads more slowly" in behind(committed=15).what
    assert "is catching up" in behind(committed=60).what


def test_a_reader_is_slow_although_its_partition_was_empty_before() -> None:
    slow = behind(end_before=0, committed_before=0, committed=10)
    assert slow.what.endswith("reads more slowly than records are written")
    assert slow.evidence == "in 2.0 s, it committed 10 records, and producers wrote 100"
    assert behind(end_before=None).evidence.endswith("producers wrote 0")


def caught_up(state: str, *members: GroupMember, type: str = "consumer") -> list[Cause]:
    """Return what is wrong with a group that has read all records."""
    description = GroupDescription(
        group="billing",
        state=state,
        type=type,
        protocol="",
        epoch=1,
        coordinator_id=1,
        members=members,
    )
    ends = {ORDERS: progress(committed=100)}
    return group_causes(
        look(), GroupLook(group="billing", description=description, partitions=ends)
    )


def member(member_id: str, *assignment: TopicPartition) -> GroupMember:
    return GroupMember(
        member_id=member_id,
        instance_id=None,
        client_id="app",
        host="h1",
        epoch=1,
        assignment=assignment,
    )


def test_a_member_that_waits_for_the_partitions_of_a_killed_one_is_told() -> None:
    waits = only(caught_up("Reconciling", member("killed", ORDERS), member("new")))
    assert waits.what == "group billing is rebalancing, so its members may not read"
    assert "member killed (app on h1) owns orders-0" in waits.evidence
    assert waits.evidence.endswith("member new (app on h1) has no partitions")
    assert "killed is removed" in waits.remedy
    assert "45 s unless `odradek group config billing --set consumer.session" in waits.remedy
    owners = [member(f"m{i}", TopicPartition("orders", i)) for i in range(5)]
    many = only(caught_up("Reconciling", *owners, member("a"), member("b")))
    assert "; 2 more members own partitions; members a (app on h1), b" in many.evidence
    assert "45 s" not in only(caught_up("PreparingRebalance", member("m"), type="classic")).remedy


def test_members_without_any_partition_are_told() -> None:
    """The usual cause is a misspelt topic, whose name the description of a group does not have."""
    idle = only(caught_up("Stable", member("m")))
    assert idle.what == "no member of group billing has a partition"
    assert idle.evidence == "its state is Stable, with member m (app on h1)"
    assert "check that the topics exist" in idle.remedy
    assert caught_up("Stable", member("m", ORDERS), member("spare")) == []
    assert caught_up("Empty") == []
    # The coordinator of a classic group does not know the partitions of its members.
    assert caught_up("Stable", member("m"), type="classic") == []


def test_a_group_whose_records_were_deleted_is_told() -> None:
    cause = behind(start=50)
    assert cause.what == "orders-0: records were deleted before they were read"
    assert cause.evidence == "the committed offset is 10, but the earliest is 50"


def test_a_partition_of_a_group_may_be_gone() -> None:
    """A member keeps the partitions of a deleted topic until its group rebalances."""
    topic = TopicDescription(
        name="orders", topic_id=b"", is_internal=False, partitions=(partition(),)
    )
    gone = [TopicPartition("orders", 1), TopicPartition("deleted", 0)]
    assert list(existing([ORDERS, *gone], {"orders": topic})) == [ORDERS]
    assert behind(end=None).what == "orders-0: its end offset is not known"
    assert "does not exist" in behind(seen=look(partitions={}), end=None).what


def test_a_group_without_a_coordinator_leads_to_the_partition_of_its_offsets() -> None:
    offsets = TopicPartition("__consumer_offsets", 3)
    gone = partition(partition=3, leader_id=-1, isr=(2,))
    lost = look(partitions={offsets: gone}, cluster=cluster(broker(1), broker(2, is_fenced=True)))
    cause = only(group_causes(lost, GroupLook(group="billing", error="timed out")))
    assert cause.what == "the coordinator of group billing does not respond"
    assert "__consumer_offsets-3 cannot be written or read" in only(list(cause.because)).what


def transaction(state: str = "Ongoing", **fields: Any) -> TransactionLook:
    """Return a look at a transaction that began 20 s ago, with a time-out of a minute."""
    described = TransactionDescription(
        transactional_id="t",
        state=state,
        producer_id=7,
        producer_epoch=1,
        timeout_ms=fields.pop("timeout_ms", 60_000),
        started_ms=fields.pop("started_ms", 80_000),
        partitions=(ORDERS,),
    )
    return TransactionLook(**{"name": "t", "description": described, "now_ms": 100_000, **fields})


def test_an_open_transaction_is_explained_when_it_is_old() -> None:
    cause = only(transaction_causes(look(), transaction()))
    assert "the transaction of t is open" in cause.what
    assert cause.evidence == "producer 7 with epoch 1 began it 20 s ago; it has records in orders-0"
    assert "`odradek transaction abort t`; its coordinator aborts it in 40 s" in cause.remedy
    assert transaction_causes(look(), transaction(started_ms=99_000)) == []
    assert transaction_causes(look(), transaction("CompleteCommit", started_ms=None)) == []
    endless = only(transaction_causes(look(), transaction(timeout_ms=(1 << 31) - 1)))
    assert "its coordinator never aborts it" in endless.remedy


def test_a_young_transaction_is_explained_if_its_partition_has_no_leader() -> None:
    lost = look(partitions={ORDERS: partition(leader_id=-1)})
    cause = only(transaction_causes(lost, transaction(started_ms=99_000)))
    assert "has no leader" in only([*cause.because]).what


def test_a_decided_transaction_waits_for_the_leader_of_its_partition() -> None:
    lost = look(partitions={ORDERS: partition(leader_id=-1)})
    decided = transaction("PrepareCommit", was_decided=True)
    cause = only(transaction_causes(lost, decided))
    assert "is decided, but not complete" in cause.what
    assert "its state is PrepareCommit" in cause.evidence
    assert "the marker is missing in orders-0" in cause.evidence
    assert "has no leader" in only([*cause.because]).what
    assert not cause.remedy
    repeated = only(transaction_causes(look(), decided))
    assert "the coordinator retries the commit" in repeated.remedy
    # It was decided between the two looks, so its markers are on their way.
    assert transaction_causes(look(), transaction("PrepareCommit")) == []


def test_a_transaction_that_hangs_is_explained() -> None:
    old = OldTransaction(
        partition=ORDERS,
        producer_id=7,
        producer_epoch=1,
        first_offset=5,
        open_for_ms=90_000,
        state=HangingState.ABORTED,
    )
    done = transaction("CompleteAbort", started_ms=None, hanging=(old,))
    cause = only(transaction_causes(look(), done))
    assert "orders-0: read_committed consumers wait" in cause.what
    assert "at offset 5; it has been open for 90 s" in cause.evidence
    assert "`odradek transaction find-hanging --abort`" in cause.remedy


def test_a_transactional_id_without_a_coordinator_is_explained() -> None:
    coordinator = TopicPartition("__transaction_state", 3)
    lost = look(partitions={coordinator: partition(leader_id=-1, partition=3)})
    unknown = TransactionLook(name="t", error="no coordinator")
    cause = only(transaction_causes(lost, unknown))
    assert cause.evidence == "no coordinator"
    assert "__transaction_state-3 cannot be written or read" in only([*cause.because]).what

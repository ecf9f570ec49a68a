"""Authorization compared with a model that checks every entry, and the delays of clients beyond their quota."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odradek_broker.access.authorizer import AclAuthorizer
from odradek_broker.access.quotas import (
    BUCKETS_MAX,
    BURST_S,
    FETCH_RATE,
    MUTATION_RATE,
    PRODUCE_RATE,
    Quotas,
    TokenBucket,
)
from odradek_broker.kafka.registry import Registry
from odradek_protocol.access import (
    IMPLIED_BY,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.metadata.records import AccessControlEntry
from tests.unit.kafka import fake_broker

OPERATIONS = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS)
NAMES = ("a", "ab", "abc", "abd", "b", "ba", "*")

entries = st.builds(
    AccessControlEntry,
    acl_id=st.binary(min_size=16, max_size=16),
    resource_type=st.sampled_from((ResourceType.TOPIC, ResourceType.GROUP)),
    resource_name=st.sampled_from(NAMES),
    pattern_type=st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    principal=st.sampled_from(("User:alice", "User:bob", "User:*")),
    host=st.sampled_from(("*", "10.0.0.1")),
    operation=st.sampled_from((*OPERATIONS, Operation.ALL)),
    permission_type=st.sampled_from((Permission.ALLOW, Permission.DENY)),
)


def entry(pattern: PatternType, permission: Permission) -> AccessControlEntry:
    """Return an entry about the name or the prefix `a`."""
    return AccessControlEntry(
        acl_id=bytes([permission]) * 16,
        resource_type=ResourceType.TOPIC,
        resource_name="a",
        pattern_type=pattern,
        principal="User:alice",
        host="*",
        operation=Operation.WRITE,
        permission_type=permission,
    )


def model(
    found: list[AccessControlEntry], principal: str, host: str, operation: Operation, name: str
) -> bool:
    """Decide by checking all entries: a DENY wins, and without a match the operation is refused."""
    allowed = False
    for one in found:
        literal = one.pattern_type == PatternType.LITERAL
        names = (name, "*") if literal else ()
        fits = one.resource_name in names or (not literal and name.startswith(one.resource_name))
        if (
            one.resource_type != ResourceType.TOPIC
            or not fits
            or one.principal not in (principal, "User:*")
            or one.host not in (host, "*")
        ):
            continue
        if one.permission_type == Permission.DENY:
            if one.operation in (operation, Operation.ALL):
                return False
        elif one.operation in (operation, Operation.ALL, *IMPLIED_BY.get(operation, ())):
            allowed = True
    return allowed


@given(
    st.lists(entries, max_size=12, unique_by=lambda one: one.acl_id),
    st.sampled_from(("User:alice", "User:carol")),
    st.sampled_from(("10.0.0.1", "10.0.0.2")),
    st.sampled_from((*OPERATIONS, Operation.DESCRIBE_CONFIGS)),
    st.sampled_from(("a", "ab", "abcd", "abe", "b", "c")),
)
def test_the_index_finds_what_looking_at_every_entry_finds(
    found: list[AccessControlEntry], principal: str, host: str, operation: Operation, name: str
) -> None:
    authorizer = AclAuthorizer()
    authorizer.entries_changed({one.acl_id: one for one in found})
    expected = model(found, principal, host, operation, name)
    assert authorizer.allows(principal, host, operation, ResourceType.TOPIC, name) == expected


@given(st.lists(entries, max_size=12, unique_by=lambda one: one.acl_id))
@example(
    [
        entry(PatternType.PREFIXED, Permission.ALLOW),
        entry(PatternType.LITERAL, Permission.DENY),
    ]
)
def test_a_right_to_any_topic_is_a_right_to_at_least_one_name(
    found: list[AccessControlEntry],
) -> None:
    authorizer = AclAuthorizer()
    authorizer.entries_changed({one.acl_id: one for one in found})
    asked = "User:alice", "10.0.0.1", Operation.WRITE
    # Each name that an entry has, and for each a longer one that no literal entry has.
    names = {"~", *(one.resource_name + more for one in found for more in ("", "~"))} - {"*"}
    expected = any(model(found, *asked, name) for name in names)
    assert authorizer.allows_any(*asked, ResourceType.TOPIC) == expected


def test_without_any_entry_only_super_users_may() -> None:
    authorizer = AclAuthorizer(["User:root"])
    asked = ("10.0.0.1", Operation.READ, ResourceType.TOPIC, "t")
    assert authorizer.allows("User:root", *asked)
    assert not authorizer.allows("User:alice", *asked)
    assert not authorizer.allows_any("User:alice", *asked[:-1])


def test_a_bucket_lends_and_makes_wait() -> None:
    bucket = TokenBucket(rate=100, burst_s=2, now_s=0)
    assert bucket.take(200, 0) == 0
    assert bucket.take(100, 0) == 1.0
    assert bucket.debt_s(0.5) == 0.5
    assert bucket.take(0, 1.0) == 0
    assert bucket.is_full(3.0)
    bucket.set_rate(10, 3.0)
    assert bucket.take(30, 3.0) == 1.0


def test_the_most_specific_quota_counts() -> None:
    now_s = [0.0]
    quotas = Quotas(clock_s=lambda: now_s[0])
    quotas.quotas_changed(
        {
            (("user", None),): {PRODUCE_RATE: 1.0},
            (("user", "alice"),): {PRODUCE_RATE: 1000.0},
            (("client-id", "batch"), ("user", "alice")): {PRODUCE_RATE: 10.0},
        }
    )

    def wait_ms(user: str, client: str, amount: float = 11_000) -> int:
        return quotas.throttle_ms(PRODUCE_RATE, f"User:{user}", client, amount)

    assert wait_ms("alice", "other") == 1000
    assert wait_ms("alice", "batch", 110) == 1000
    assert wait_ms("bob", "x") == 30_000, "a wait has an upper bound"
    assert quotas.throttle_ms(FETCH_RATE, "User:bob", "x", 1e9) == 0, "no such quota"
    now_s[0] = 1000.0
    assert wait_ms("alice", "other", 10) == 0


def test_buckets_are_bounded() -> None:
    quotas = Quotas(clock_s=lambda: 0.0)
    quotas.quotas_changed({(("client-id", None),): {PRODUCE_RATE: 1.0}})
    for number in range(BUCKETS_MAX + 100):
        quotas.throttle_ms(PRODUCE_RATE, "User:x", f"c{number}", 1)
    assert len(quotas._buckets) <= BUCKETS_MAX


def _created_by_hand() -> Any:
    topic = messages.CreateTopicsRequest.CreatableTopic
    return messages.CreateTopicsRequest(
        topics=[
            topic(
                name="new",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[
                    topic.CreatableReplicaAssignment(partition_index=index, broker_ids=[1])
                    for index in range(5)
                ],
                configs=[],
            )
        ]
    )


@pytest.mark.parametrize(
    ("key", "message", "count"),
    [
        (ApiKey.CREATE_TOPICS, _created_by_hand(), 5),
        (
            ApiKey.CREATE_PARTITIONS,  # there are two
            messages.CreatePartitionsRequest(
                topics=[
                    messages.CreatePartitionsRequest.CreatePartitionsTopic(
                        name="orders", count=7, assignments=None
                    )
                ]
            ),
            5,
        ),
        (
            ApiKey.DELETE_TOPICS,
            messages.DeleteTopicsRequest(
                topics=[
                    messages.DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None)
                    for name in ("orders", "payments")
                ]
            ),
            4,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
async def test_the_partitions_that_a_request_makes_or_removes_count_against_its_quota(
    key: ApiKey, message: Any, count: int
) -> None:
    """controller_mutation_rate (KIP-599) counts partitions per second, and ten seconds' worth may
    be saved up.
    """
    served = fake_broker.services()
    rate = 0.2
    served.quotas.quotas_changed({(("client-id", "test"),): {MUTATION_RATE: rate}})
    handler = Registry(served).find(key, SUPPORTED[key].highest)
    assert handler is not None
    request = fake_broker.request(served, key, SUPPORTED[key].highest, message)
    await handler.handle(request)
    saved_up = rate * BURST_S
    assert request.throttle_ms == pytest.approx((count - saved_up) / rate * 1000, rel=0.02)

"""The accepted differences from Apache Kafka 4.4, each with its reason."""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple


class Explained(NamedTuple):
    """Patterns for a conversation, a request's label and a path in its response, and the reason why the values differ.
    In a pattern, `*` matches any text and `?` any character.
    """

    talk: str
    label: str
    path: str
    reason: str


_BUG: Final = "Kafka fails on this request: it sends no response, or UNKNOWN_SERVER_ERROR"
_CLOSES: Final = "Kafka closes the connection; Odradek responds INVALID_REQUEST"
_ONCE: Final = "a name that a request repeats has one answer, so that responses stay small"
_EACH: Final = (
    "Kafka refuses, or forgets, a partition that is named twice; Odradek answers each mention"
)
_NO_ITEMS: Final = "a topic without partitions, which clients do not send, is listed or left out"
_LENIENT: Final = "Odradek takes what Kafka refuses; no client sends it, and it harms nobody"
_STRICT: Final = "Odradek refuses what Kafka takes although nobody can use it"
_OPAQUE: Final = (
    "leaders do not look into batches: a consumer that gets them checks what is in them"
)
_ANOTHER: Final = "another error, which clients handle in the same way"
_BESIDE: Final = "a field beside an error, which clients do not read then"
_NO_SHARE: Final = "there are no share groups"
_NO_METRICS: Final = "there are no client metrics and no log levels of classes to describe"
_AT_ONCE: Final = "Odradek has created the topic when it responds"
_DEFAULTS: Final = "the brokers' settings have other names or defaults"

_A: Final = "ALTER_CLIENT_QUOTAS *: "
_D: Final = "DESCRIBE_CLIENT_QUOTAS *: "
_I: Final = "INCREMENTAL_ALTER_CONFIGS *: "
_P: Final = "PRODUCE *: "

EXPLAINED: Final[tuple[Explained, ...]] = (
    # topics
    Explained("metadata", "*by null and no id", "*", _BUG),
    Explained(
        "metadata",
        "*by id and by name",
        "topics[nowhere]",
        "Kafka forgets the topics by name when another one is named by id",
    ),
    Explained("create_topics", "*no time", "*", _AT_ONCE),
    Explained("create_topics", "*negative time", "*", _AT_ONCE),
    Explained(
        "create_topics",
        "*",
        "topics[*].topic_id",
        "Kafka draws an id for a topic that is only validated",
    ),
    Explained("delete_topics", "*name and the same id", "responses[*]*", _ANOTHER),
    Explained("describe_topic_partitions", "*empty name", "*", _BUG),
    # records
    Explained("produce_ordinary", _P + "null records", "*", _BUG),
    Explained("produce_ordinary", _P + "no partitions", "responses*", _NO_ITEMS),
    Explained("produce_ordinary", _P + "partition twice", "*[0#2]", _EACH),
    Explained("produce_ordinary", _P + "topic twice", "*#2]", _EACH),
    Explained(
        "produce_ordinary", _P + "*", "*.base_offset", "follows from the partition named twice"
    ),
    Explained(
        "produce_damaged", _P + "*", "*.base_offset", "follows from the batches that were taken"
    ),
    Explained("*", "PRODUCE *", "*.log_start_offset", _BESIDE),
    Explained(
        "produce_damaged",
        _P + "cut*",
        "*.error_code",
        "CORRUPT_MESSAGE, because bytes are missing; Kafka finds no whole batch",
    ),
    Explained(
        "produce_damaged",
        _P + "5 bytes",
        "*.error_code",
        "CORRUPT_MESSAGE, because bytes are missing; Kafka finds no whole batch",
    ),
    Explained("produce_damaged", _P + "magic *", "*.error_code", _ANOTHER),
    Explained(
        "*",
        _P + "two batches",
        "*",
        "Odradek appends several batches of a partition in one request",
    ),
    Explained(
        "produce_damaged",
        _P + "batch and rubbish",
        "*.error_code",
        "Kafka ignores bytes behind the last batch",
    ),
    Explained("produce_damaged", _P + "codec ?", "*.error_code", _BUG),
    Explained("produce_damaged", _P + "says gzip*", "*", _OPAQUE),
    Explained("produce_damaged", _P + "in gzip*", "*", _OPAQUE),
    Explained("produce_damaged", _P + "base offset 9", "*", _LENIENT),
    Explained(
        "produce_damaged",
        "PRODUCE 3: codec ZSTD",
        "*",
        "versions below 7 may send zstd, since consumers are asked for none of theirs",
    ),
    Explained("list_offsets", "*twice", "*", _EACH),
    Explained("*", "*no partitions", "topics*", _NO_ITEMS),
    Explained("*", "*: level *", "*", "a level that does not exist is read_uncommitted"),
    Explained("delete_records", "*twice", "*", _EACH),
    Explained("*", "*: current *-2", "*", "-2 is no epoch"),
    # fetches
    Explained(
        "*", "FETCH *", "*.aborted_transactions", "null instead of an empty list beside an error"
    ),
    Explained("*", "FETCH *", "*.high_watermark", _BESIDE),
    Explained("*", "FETCH *", "*.last_stable_offset", _BESIDE),
    Explained("*", "FETCH *", "*.log_start_offset", _BESIDE),
    Explained("fetch", "*: twice", "*", _EACH),
    Explained(
        "fetch", "*bytes *", "*.records", "Odradek sends whole batches, Kafka also parts of one"
    ),
    Explained("fetch", "*bytes -1", "*.error_code", "a negative limit lets one batch through"),
    Explained(
        "fetch", "*: replica 99", "*", "followers of Odradek do not fetch by Kafka's protocol"
    ),
    Explained("fetch", "*: last epoch 5", "*", "an epoch above the leader's does not occur"),
    Explained(
        "fetch_sessions",
        "*: new and empty",
        "session_id",
        "a session without partitions is not kept",
    ),
    # groups
    Explained("sync_group", "*: null *", "*", _LENIENT),
    Explained("*", "DESCRIBE_GROUPS *twice", "groups[*#2]", _ONCE),
    Explained("describe_groups", "DELETE_GROUPS *twice", "results[*#2]", _EACH),
    Explained("describe_groups", "*unknown with rights", "*.authorized_operations", _BESIDE),
    Explained("offset_commit", "*: none", "topics*", _NO_ITEMS),
    Explained("offset_fetch", "*twice", "*#2]", _ONCE),
    Explained("offset_fetch", "*no partitions", "*topics*", _NO_ITEMS),
    Explained(
        "offset_delete",
        "*: none",
        "error_code",
        "a group without members and offsets does not exist any more",
    ),
    # consumer groups
    Explained("heartbeat_checks", "CONSUMER_GROUP_HEARTBEAT 0: blank member id", "*", _STRICT),
    Explained(
        "*",
        "CONSUMER_GROUP_DESCRIBE *",
        "*.subscribed_topic_regex",
        "null instead of an empty pattern; clients take both for none",
    ),
    Explained("*", "CONSUMER_GROUP_DESCRIBE *", "groups[*].group_state", _BESIDE),
    Explained("other_protocols", "*: empty id", "groups[-].error_code", _ANOTHER),
    Explained("other_protocols", "CONSUMER_GROUP_DESCRIBE *twice", "groups[*#2]", _ONCE),
    Explained(
        "other_protocols",
        "*: beats in a classic group",
        "error_code",
        "a member that has to join again is told so by UNKNOWN_MEMBER_ID",
    ),
    Explained(
        "consumer_group",
        "OFFSET_COMMIT 10: old epoch",
        "*",
        "commits at an earlier epoch (KIP-1251) are not taken yet; clients repeat them at the new one",
    ),
    Explained(
        "consumer_group",
        "OFFSET_COMMIT ?: committed",
        "*",
        "Kafka wants version 9 of members of the consumer protocol",
    ),
    Explained(
        "consumer_group",
        "OFFSET_FETCH ?: *",
        "*.committed_offset",
        "follows from the commit that Kafka refuses",
    ),
    Explained(
        "consumer_group",
        "JOIN_GROUP *",
        "generation_id",
        "the epochs of groups rise on other occasions",
    ),
    Explained(
        "consumer_group",
        "LEAVE_GROUP *: classic leave of who asked",
        "*error_code",
        "a member that was given an id and leaves before it uses it is known",
    ),
    # transactions
    Explained("init_producer_id", "*-2*", "*", _STRICT),
    Explained(
        "*",
        "DESCRIBE_TRANSACTIONS *",
        "*.transaction_start_time_ms",
        "a transaction that is complete has no start",
    ),
    Explained("add_partitions", "*no transactions", "*", _BUG),
    Explained("transactional_offsets", "*empty transactional id", "*", _STRICT),
    Explained("find_coordinator", "*kind 1, ''", "*", _STRICT),
    Explained("find_coordinator", "*kind 2, *", "*", _NO_SHARE),
    Explained(
        "write_markers",
        "*unknown producer",
        "*.error_code",
        "only a transaction that hangs is ended, so a marker cannot hit another one",
    ),
    Explained("write_markers", "*no partitions", "markers*", _NO_ITEMS),
    # configs
    Explained(
        "describe_configs",
        "*",
        "*[min.insync.replicas].config_source",
        "Kafka sets it as a dynamic config of the cluster when it is created",
    ),
    Explained("*", "DESCRIBE_CONFIGS *", "*.synonyms*", _DEFAULTS),
    Explained("describe_configs", "*: broker", "*", _DEFAULTS),
    Explained("describe_configs", "*: empty topic", "*.error_code", _ANOTHER),
    Explained("describe_configs", "*: bad topic", "*.error_code", _ANOTHER),
    Explained("describe_configs", "*: loggers", "*", _NO_METRICS),
    Explained("describe_configs", "*: metrics", "*", _NO_METRICS),
    Explained("describe_configs", "*: empty group", "*", _LENIENT),
    Explained("describe_configs", "*: twice", "results[*#2]", _ONCE),
    Explained("list_config_resources", "*kinds [8]", "*", _NO_METRICS),
    Explained("alter_configs", "*: empty topic", "*.error_code", _ANOTHER),
    Explained("alter_configs", "*: resource twice", "*", _BUG),
    Explained("incremental_alter_configs", _I + "operation 4*", "*.error_code", _BUG),
    Explained("incremental_alter_configs", _I + "operation -1*", "*.error_code", _BUG),
    Explained("incremental_alter_configs", _I + "empty topic", "*.error_code", _ANOTHER),
    Explained("incremental_alter_configs", _I + "bad topic", "*.error_code", _ANOTHER),
    Explained("incremental_alter_configs", _I + "broker, unknown", "*.error_code", _STRICT),
    Explained("incremental_alter_configs", _I + "cluster, read only", "*.error_code", _ANOTHER),
    Explained("incremental_alter_configs", _I + "logger", "*.error_code", _NO_METRICS),
    # the cluster
    Explained("reassignments", "* False", "*.error_code", _ANOTHER),
    Explained(
        "features",
        "UPDATE_FEATURES 0: *",
        "*",
        "versions 0 and 1 tell the error of each feature, as their schema has it",
    ),
    Explained(
        "features",
        "UPDATE_FEATURES 1: *",
        "*",
        "versions 0 and 1 tell the error of each feature, as their schema has it",
    ),
    Explained("elect_leaders", "*no partitions", "replica_election_results*", _NO_ITEMS),
    Explained("elect_leaders", "kind * all", "replica_election_results*", _NO_ITEMS),
    Explained("metadata", "*unknown with rights", "*.authorized_operations", _BESIDE),
    Explained("quorum", "DESCRIBE_QUORUM *", "*", _BESIDE),
    # access
    Explained("acls", "*'0'", "*", _CLOSES),
    Explained("acls", "* 0", "*", _CLOSES),
    Explained("acls", "CREATE_ACLS *_type '1'", "*.error_code", _BUG),
    Explained("acls", "CREATE_ACLS *_type '2'", "*.error_code", _BUG),
    Explained("acls", "CREATE_ACLS *operation '1'", "*.error_code", _BUG),
    Explained("acls", "CREATE_ACLS *principal '*'", "*.error_code", _STRICT),
    Explained(
        "scram",
        "*",
        "results[u]*",
        "Odradek takes credentials for both mechanisms in one request; it refuses empty and short ones",
    ),
    Explained("quotas", _A + "alter user twice", "*", _STRICT),
    Explained("quotas", _A + "alter remove nonsense", "*", _STRICT),
    Explained("quotas", _A + "alter no ip", "*", _LENIENT),
    Explained("quotas", _A + "alter producer_byte_rate=*", "*", _LENIENT),
    Explained("quotas", _A + "alter twice", "*", _LENIENT),
    Explained("quotas", _D + "describe empty kind", "*", _ANOTHER),
    Explained("quotas", _D + "describe exactly nothing", "*", _LENIENT),
    Explained("quotas", _D + "describe twice", "*", _LENIENT),
    Explained("quotas", _D + "describe ip and user", "*", _LENIENT),
    # rights
    Explained("*", "JOIN_GROUP *", "member_id", _BESIDE),
    Explained("no_rights", "DESCRIBE_GROUPS *", "groups[g].group_state", _BESIDE),
    Explained(
        "no_rights",
        "FETCH *without rights, topic",
        "*.error_code",
        "whoever has no right to a topic does not learn from its id whether it exists",
    ),
)


def reason(talk: str, label: str, path: str) -> Explained | None:
    """Return the explanation of a difference, if there is one."""
    for one in EXPLAINED:
        patterns = ((talk, one.talk), (label, one.label), (path, one.path))
        if all(_matches(text, pattern) for text, pattern in patterns):
            return one
    return None


def _matches(text: str, pattern: str) -> bool:
    return _expression(pattern).fullmatch(text) is not None


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(escaped, re.DOTALL)

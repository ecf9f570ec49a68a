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
_ONCE: Final = (
    "if a request names an item twice, Odradek's response has the item once, so that responses"
    " stay small"
)
_EACH: Final = (
    "if a request names a partition twice, Kafka refuses or forgets one of them; Odradek responds"
    " to both"
)
_NO_ITEMS: Final = (
    "one of the brokers leaves out a topic without partitions; clients do not send such topics"
)
_LENIENT: Final = (
    "Odradek accepts a request that Kafka refuses; no client sends it, and it harms no client"
)
_STRICT: Final = (
    "Odradek refuses a request that Kafka accepts, although no client can make use of it"
)
_OPAQUE: Final = "Odradek's leaders do not look into batches; consumers check the content of batches that they get"
_ANOTHER: Final = "another error, which clients handle in the same way"
_BESIDE: Final = "a field beside an error code, which clients do not read in that case"
_NO_SHARE: Final = "Odradek has no share groups"
_NO_METRICS: Final = "Odradek has no client metrics, and no log levels of classes"
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
        "Kafka leaves out topics that are given by name if another topic is given by id",
    ),
    Explained("create_topics", "*no time", "*", _AT_ONCE),
    Explained("create_topics", "*negative time", "*", _AT_ONCE),
    Explained(
        "create_topics",
        "*",
        "topics[*].topic_id",
        "Kafka assigns a random id to a topic that is only validated",
    ),
    Explained("delete_topics", "*name and the same id", "responses[*]*", _ANOTHER),
    Explained("describe_topic_partitions", "*empty name", "*", _BUG),
    # records
    Explained("produce_ordinary", _P + "null records", "*", _BUG),
    Explained("produce_ordinary", _P + "no partitions", "responses*", _NO_ITEMS),
    Explained("produce_ordinary", _P + "partition twice", "*[0#2]", _EACH),
    Explained("produce_ordinary", _P + "topic twice", "*#2]", _EACH),
    Explained(
        "produce_ordinary",
        _P + "*",
        "*.base_offset",
        "a consequence of the partition that is named twice",
    ),
    Explained(
        "produce_damaged", _P + "*", "*.base_offset", "a consequence of which batches were accepted"
    ),
    Explained("*", "PRODUCE *", "*.log_start_offset", _BESIDE),
    Explained(
        "produce_damaged",
        _P + "cut*",
        "*.error_code",
        "Odradek responds CORRUPT_MESSAGE, because bytes are missing; Kafka finds no complete batch",
    ),
    Explained(
        "produce_damaged",
        _P + "5 bytes",
        "*.error_code",
        "Odradek responds CORRUPT_MESSAGE, because bytes are missing; Kafka finds no complete batch",
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
        "Kafka ignores bytes after the last batch",
    ),
    Explained("produce_damaged", _P + "codec ?", "*.error_code", _BUG),
    Explained("produce_damaged", _P + "says gzip*", "*", _OPAQUE),
    Explained("produce_damaged", _P + "in gzip*", "*", _OPAQUE),
    Explained("produce_damaged", _P + "base offset 9", "*", _LENIENT),
    Explained(
        "produce_damaged",
        "PRODUCE 3: codec ZSTD",
        "*",
        "Odradek accepts zstd in versions below 7, too",
    ),
    Explained("list_offsets", "*twice", "*", _EACH),
    Explained("*", "*no partitions", "topics*", _NO_ITEMS),
    Explained(
        "*", "*: level *", "*", "Odradek takes an unknown isolation level for read_uncommitted"
    ),
    Explained("delete_records", "*twice", "*", _EACH),
    Explained("*", "*: current *-2", "*", "-2 is no leader epoch"),
    # fetches
    Explained(
        "*",
        "FETCH *",
        "*.aborted_transactions",
        "the list is null instead of empty if there is an error code",
    ),
    Explained("*", "FETCH *", "*.high_watermark", _BESIDE),
    Explained("*", "FETCH *", "*.last_stable_offset", _BESIDE),
    Explained("*", "FETCH *", "*.log_start_offset", _BESIDE),
    Explained("fetch", "*: twice", "*", _EACH),
    Explained(
        "fetch",
        "*bytes *",
        "*.records",
        "Odradek sends whole batches, Kafka also a part of a batch",
    ),
    Explained(
        "fetch", "*bytes -1", "*.error_code", "with a negative limit, Odradek returns one batch"
    ),
    Explained(
        "fetch", "*: replica 99", "*", "followers of Odradek do not fetch by Kafka's protocol"
    ),
    Explained(
        "fetch", "*: last epoch 5", "*", "a leader epoch above that of the leader does not occur"
    ),
    Explained(
        "fetch_sessions",
        "*: new and empty",
        "session_id",
        "Odradek does not keep a session without partitions",
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
        "in Odradek, a group without members and offsets no longer exists",
    ),
    # consumer groups
    Explained("heartbeat_checks", "CONSUMER_GROUP_HEARTBEAT 0: blank member id", "*", _STRICT),
    Explained(
        "*",
        "CONSUMER_GROUP_DESCRIBE *",
        "*.subscribed_topic_regex",
        "null instead of an empty pattern; clients take both for no pattern",
    ),
    Explained("*", "CONSUMER_GROUP_DESCRIBE *", "groups[*].group_state", _BESIDE),
    Explained("other_protocols", "*: empty id", "groups[-].error_code", _ANOTHER),
    Explained("other_protocols", "CONSUMER_GROUP_DESCRIBE *twice", "groups[*#2]", _ONCE),
    Explained(
        "other_protocols",
        "*: beats in a classic group",
        "error_code",
        "Odradek responds UNKNOWN_MEMBER_ID, after which the member joins again",
    ),
    Explained(
        "consumer_group",
        "OFFSET_COMMIT 10: old epoch",
        "*",
        "Odradek does not accept commits with an earlier epoch (KIP-1251); clients repeat them with the"
        " new epoch",
    ),
    Explained(
        "consumer_group",
        "OFFSET_COMMIT ?: committed",
        "*",
        "Kafka requires version 9 from members of the consumer protocol",
    ),
    Explained(
        "consumer_group",
        "OFFSET_FETCH ?: *",
        "*.committed_offset",
        "a consequence of the commit that Kafka refuses",
    ),
    Explained(
        "consumer_group",
        "JOIN_GROUP *",
        "generation_id",
        "Kafka and Odradek raise the epoch of a group on different occasions",
    ),
    Explained(
        "consumer_group",
        "LEAVE_GROUP *: classic leave of who asked",
        "*error_code",
        "Odradek knows a member that got an id and leaves before it joins with this id",
    ),
    # transactions
    Explained("init_producer_id", "*-2*", "*", _STRICT),
    Explained(
        "*",
        "DESCRIBE_TRANSACTIONS *",
        "*.transaction_start_time_ms",
        "in Odradek, a complete transaction has no start time",
    ),
    Explained("add_partitions", "*no transactions", "*", _BUG),
    Explained("transactional_offsets", "*empty transactional id", "*", _STRICT),
    Explained("find_coordinator", "*kind 1, ''", "*", _STRICT),
    Explained("find_coordinator", "*kind 2, *", "*", _NO_SHARE),
    Explained(
        "write_markers",
        "*unknown producer",
        "*.error_code",
        "Odradek ends only hanging transactions, so a marker cannot end another transaction",
    ),
    Explained("write_markers", "*no partitions", "markers*", _NO_ITEMS),
    # configs
    Explained(
        "describe_configs",
        "*",
        "*[min.insync.replicas].config_source",
        "Kafka sets this config as a dynamic config when the cluster is created",
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
        "in versions 0 and 1, Odradek returns the error of each feature, for which they have a field",
    ),
    Explained(
        "features",
        "UPDATE_FEATURES 1: *",
        "*",
        "in versions 0 and 1, Odradek returns the error of each feature, for which they have a field",
    ),
    Explained("elect_leaders", "*no partitions", "replica_election_results*", _NO_ITEMS),
    Explained("elect_leaders", "kind * all", "replica_election_results*", _NO_ITEMS),
    Explained("metadata", "*unknown with rights", "*.authorized_operations", _BESIDE),
    Explained("*", "DESCRIBE_QUORUM *", "*", _BESIDE),
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
        "Odradek accepts credentials for both mechanisms in one request; it refuses empty and short"
        " credentials",
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
    Explained("no_rights", "DESCRIBE_USER_SCRAM_CREDENTIALS *", "results*", _BESIDE),
    Explained("no_rights", "DESCRIBE_GROUPS *", "groups[g].group_state", _BESIDE),
    Explained(
        "no_rights",
        "FETCH *without rights, topic",
        "*.error_code",
        "Odradek does not reveal whether the id is that of a topic to users without a right to the topic",
    ),
)


def reason(talk: str, label: str, path: str) -> Explained | None:
    """Return the explanation of a difference, if there is one."""
    for explained in EXPLAINED:
        patterns = ((talk, explained.talk), (label, explained.label), (path, explained.path))
        if all(_matches(text, pattern) for text, pattern in patterns):
            return explained
    return None


def _matches(text: str, pattern: str) -> bool:
    return _expression(pattern).fullmatch(text) is not None


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(escaped, re.DOTALL)

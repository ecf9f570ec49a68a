"""Options of the Spark source and sink: defaults, precedence, and errors in the words of Spark's
Kafka source.
"""

from __future__ import annotations

import pickle
import re

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from odradek.cluster.security import SaslCredentials
from odradek.errors import InvalidConfig
from odradek.partitions import TopicPartition
from pyspark_odradek import option_names
from pyspark_odradek.connection_options import parse_connection
from pyspark_odradek.data_source import OdradekDataSource
from pyspark_odradek.sink_options import _PRODUCER_OPTIONS, parse_sink_options
from pyspark_odradek.source_options import (
    Anchor,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    SourceOptions,
    duration_ms,
    parse_source_options,
)

BOOTSTRAP = {"kafka.bootstrap.servers": "a:1"}


def batch(**options: str) -> SourceOptions:
    return parse_source_options(BOOTSTRAP | {"subscribe": "t"} | options, is_streaming=False)


def stream(**options: str) -> SourceOptions:
    return parse_source_options(BOOTSTRAP | {"subscribe": "t"} | options, is_streaming=True)


def test_defaults_are_those_of_kafkas_source() -> None:
    assert batch().starting is Anchor.EARLIEST
    assert stream().starting is Anchor.LATEST
    assert batch().ending is Anchor.LATEST
    told = stream()
    assert told.fail_on_data_loss
    assert not told.include_headers
    assert not told.read_committed
    assert told.max_trigger_delay_ms == 15 * 60_000
    assert told.poll_timeout_ms == 120_000


def test_a_time_for_all_goes_before_times_before_offsets() -> None:
    given = {
        "startingTimestamp": " 5 ",
        "startingOffsetsByTimestamp": '{"t":{"0":7}}',
        "startingOffsets": '{"t":{"0":9,"1":-2}}',
    }
    assert batch(**given).starting == AtTimestamp(5)
    del given["startingTimestamp"]
    assert batch(**given).starting == AtTimestamps({TopicPartition("t", 0): 7})
    del given["startingOffsetsByTimestamp"]
    expected = {TopicPartition("t", 0): 9, TopicPartition("t", 1): -2}
    assert batch(**given).starting == AtOffsets(expected)


def test_names_of_options_are_case_insensitive_and_both_prefixes_work() -> None:
    told = parse_source_options(
        {
            "ODRADEK.Bootstrap.Servers": "b:2",
            "kafka.bootstrap.servers": "a:1",
            "SUBSCRIBE": " x , y,,x ",
            "FAILONDATALOSS": "False",
            "kafka.isolation.level": "read_committed",
        },
        is_streaming=True,
    )
    assert told.connection.bootstrap == ("b:2",)
    assert told.subscription.topics == ("x", "y")
    assert not told.fail_on_data_loss
    assert told.read_committed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": " , "}, "No topics to subscribe to"),
        ({"assign": "{}"}, "Only one of the following options can be specified"),
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets for t-0 can't be latest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "ending offset for t-0 can't be earliest"),
        ({"startingOffsets": "{"}, r'Expected e\.g\. \{"topicA":\{"0":23'),
        ({"startingOffsets": '{"t":{"0":"x"}}'}, r"option startingOffsets: Expected e\.g\."),
        (
            {"startingOffsets": " earlyest"},
            "option startingOffsets is 'earlyest'; allowed: earliest, latest, or offsets as JSON"
            r" such as \{.*\}; did you mean earliest\?",
        ),
        (
            {"endingOffsets": "lattest"},
            "option endingOffsets is 'lattest'; allowed: latest, or .*; did you mean latest",
        ),
        ({"startingOffsetsByTimestamp": "5"}, "option startingOffsetsByTimestamp: Expected e"),
        ({"startingOffsetsByTimestampStrategy": "eror"}, "error, latest; did you mean error"),
        (
            {"kafka.isolation.level": "read_comitted"},
            "option kafka.isolation.level is 'read_comitted'; allowed: read_committed,"
            " read_uncommitted; did you mean read_committed",
        ),
        ({"kafka.security.protocol": "SASL"}, "it must be one of PLAINTEXT, SSL, .*; did you mean"),
        ({"startingTimestamp": "soon"}, "Expected a single long value, got soon"),
        ({"minPartitions": "0"}, "minPartitions must be positive"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be positive"),
        ({"kafka.auto.offset.reset": "latest"}, "'auto.offset.reset' is not supported"),
        ({"kafka.key.deserializer": "x"}, "keys are deserialized as byte arrays"),
        ({"kafka.enable.auto.commit": "true"}, "'enable.auto.commit' is not supported"),
        ({"kafka.interceptor.classes": "x"}, "'interceptor.classes' is not supported"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "allowed: error, latest"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: 'maybe' is not true or false"),
        ({"kafkaConsumer.pollTimeoutMs": "0"}, "kafkaConsumer.pollTimeoutMs must be positive"),
        ({"startingOfsets": "earliest"}, "'startingOfsets'; did you mean startingOffsets?"),
        ({"failOnDataLos": "false"}, "did you mean failOnDataLoss?"),
        ({"kafkaConsumer.pollTimeout": "9"}, "did you mean kafkaConsumer.pollTimeoutMs?"),
        ({"isolationLevel": "snapshot"}, "allowed: read_committed, read_uncommitted"),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
            "start offset 5 is greater than the end offset 4 for topic t partition 0",
        ),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":9}}'},
            "should have the same topic-partitions",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "One of the following options must be specified for Kafka source: subscribe,"),
        ({"subscribe": "t", "includeHeaders": "maybe"}, "option includeHeaders: 'maybe' is not"),
        ({"subscribe": "t", "kafka.value.deserializer": "x"}, "values are deserialized as byte"),
    ],
)
def test_what_is_wrong_in_a_batch_and_in_a_stream_is_told_at_load(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        OdradekDataSource(BOOTSTRAP | options).schema()
    for fits_one in ({"startingOffsets": "latest"}, {"endingOffsets": "latest"}):
        source = OdradekDataSource(BOOTSTRAP | {"subscribe": "t"} | fits_one)
        assert "headers" not in source.schema().names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.enable.idempotence": "yes"}, "Invalid value yes for option"),
        ({"kafka.batch.size": "16k"}, "Invalid value 16k for option 'kafka.batch.size'"),
        ({"kafka.allow.auto.create.topics": "ja"}, "it must be true or false"),
        ({"delivery": "exactly-ones"}, "at-least-once; did you mean exactly-once"),
        ({"kafka.transactional.id": "x"}, "'transactional.id' is not supported"),
        ({"kafka.value.serializer": "x"}, "values are serialized with ByteArraySerializer"),
    ],
)
def test_options_of_the_sink_that_make_no_sense_are_refused(
    options: dict[str, str], message: str
) -> None:
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(ValueError, match=message):
        parse_sink_options(BOOTSTRAP | {"topic": "t"} | options, schema)


SINK_SCHEMA = StructType([StructField("value", StringType())])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kafka.isolation.levl", "kafka.isolation.level"),
        ("kafka.Isolation.Levl", "kafka.isolation.level"),
        ("odradek.bootstrap.server", "odradek.bootstrap.servers"),
        ("kafka.sasl.pasword", "kafka.sasl.password"),
        ("kafka.enable.idempotance", "kafka.enable.idempotence"),
        ("kafka.compression", "kafka.compression.type"),
        ("odradek.Compression", "odradek.compression.type"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("allow.auto.create.topics", "kafka.allow.auto.create.topics"),
    ],
)
def test_a_misspelt_option_of_the_client_is_refused_by_source_and_sink(
    name: str, meant: str
) -> None:
    message = f"unknown option '{name}'; did you mean {meant}\\? .*begin with kafka. or odradek."
    with pytest.raises(ValueError, match=message) as refused:
        batch(**{name: "hidden"})
    assert "hidden" not in str(refused.value)
    with pytest.raises(ValueError, match=message):
        parse_sink_options(BOOTSTRAP | {"topic": "t", name: "hidden"}, SINK_SCHEMA)


def test_a_misspelt_option_without_prefix_is_refused_with_the_options_that_exist() -> None:
    for name in ("topik", "kafka.topic"):
        with pytest.raises(ValueError, match=f"'{name}'; did you mean topic\\?") as refused:
            parse_sink_options(BOOTSTRAP | {name: "t"}, SINK_SCHEMA)
        assert "The options of the sink are topic, includeHeaders, delivery," in str(refused.value)
    with pytest.raises(
        ValueError, match=r"did you mean subscribe \(topic is an option of the sink\)\?"
    ):
        batch(topik="t")
    with pytest.raises(
        ValueError, match=r"did you mean topic \(subscribe is an option of the source\)\?"
    ):
        parse_sink_options(BOOTSTRAP | {"subscrib": "t"}, SINK_SCHEMA)
    with pytest.raises(ValueError, match="The option topic is one of the sink: use subscribe"):
        parse_source_options(BOOTSTRAP | {"topic": "t"}, is_streaming=True)
    with pytest.raises(
        ValueError, match=r"'odradek\.startingOffsets'; did you mean startingOffsets"
    ):
        batch(**{"odradek.startingOffsets": "earliest"})


@pytest.mark.parametrize(
    "name",
    [
        *("kafka.acme.unit", "odradek.acme", "kafka.path.of.trust"),
        *("kafka.path", "kafka.truncate", "odradek.outputMode", "kafka.checkpointLocation"),
        *("odradek.stepNumber", "kafka.stepQuery"),
    ],
)
def test_an_unknown_option_with_a_prefix_is_refused_and_not_reported_as_kafkas(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = BOOTSTRAP | {name: "hidden"}
    message = f"unknown option '{name}'. The options of the"
    with pytest.raises(ValueError, match=message) as refused:
        OdradekDataSource(given | {"subscribe": "t"}).schema()
    assert "hidden" not in str(refused.value)
    with pytest.raises(ValueError, match=message):
        OdradekDataSource(given | {"topic": "t"}).writer(SINK_SCHEMA, False)
    assert "without effect" not in caplog.text


def test_options_that_are_kafkas_or_sparks_are_no_misspellings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(option_names, "_warned", set())
    without_effect = {"kafka.fetch.min.bytes": "1", "odradek.session.timeout.ms": "9"}
    others = {"path": "/p", "checkpointLocation": "/c", "queryName": "q", "acme.unit": "x"}
    others |= {"compression": "gzip", "truncate": "false", "outputMode": "append"}
    effective = {"kafka.acks": "all", "kafka.isolation.level": "read_committed"}
    for _ in range(2):
        given = BOOTSTRAP | without_effect | others | effective
        pickle.loads(pickle.dumps(OdradekDataSource(given | {"subscribe": "t"}))).schema()
        parse_sink_options(given | {"topic": "t"}, SINK_SCHEMA)
    names = "kafka.fetch.min.bytes, odradek.session.timeout.ms"
    assert [text for text in caplog.messages if "without effect" in text] == [
        f"Options without effect, because the connector uses no Kafka client: {names}"
    ]


def test_every_option_that_is_read_is_a_known_name(caplog: pytest.LogCaptureFixture) -> None:
    """A name that the check of names does not know would be refused, or reported as one without effect."""
    OdradekDataSource(
        {f"kafka.{name}": "1" for name in [*_PRODUCER_OPTIONS, "client.rack", "sasl.username"]}
    )
    assert "without effect" not in caplog.text


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("key", IntegerType(), r"string or binary: .* CAST\(key AS STRING\)"),
        ("value", DoubleType(), r"string or binary: .* CAST\(value AS STRING\)"),
        ("value", SINK_SCHEMA, r"string or binary: .* to_json\(value\)"),
        ("topic", BinaryType(), r"string: .* CAST\(topic AS STRING\)"),
        ("partition", LongType(), r"int: .* CAST\(partition AS INT\)"),
        ("partition", SINK_SCHEMA, "int$"),
        (
            "headers",
            MapType(StringType(), StringType()),
            "array<struct<key:string,value:binary>>$",
        ),
    ],
)
def test_a_column_of_a_wrong_type_is_named_with_the_type_that_it_needs(
    column: str, kind: DataType, message: str
) -> None:
    fields = {"topic": StringType(), "value": StringType()} | {column: kind}
    schema = StructType([StructField(name, kind) for name, kind in fields.items()])
    start = re.escape(f"{column} attribute unsupported type {kind.simpleString()}. {column} must")
    with pytest.raises(ValueError, match=f"{start} be a\\(n\\) {message}"):
        parse_sink_options(BOOTSTRAP, schema)


def test_columns_that_the_sink_does_not_have_are_left_out() -> None:
    fields = [*SINK_SCHEMA.fields, StructField("timestamp", TimestampType())]
    assert parse_sink_options(BOOTSTRAP | {"topic": "t"}, StructType(fields)).columns == ("value",)


def test_streams_have_no_end_and_limits_agree() -> None:
    with pytest.raises(ValueError, match="ending offset not valid in streaming queries"):
        stream(endingOffsets="latest")
    with pytest.raises(ValueError, match="ending timestamp not valid in streaming queries"):
        stream(endingTimestamp="1")
    with pytest.raises(ValueError, match=r"minOffsetPerTrigger\(5\) is higher"):
        stream(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4")


def test_a_missing_or_malformed_address_is_said() -> None:
    with pytest.raises(ValueError, match=r"Option 'kafka\.bootstrap\.servers' must be specified"):
        parse_connection({})
    with pytest.raises(InvalidConfig, match="it has no port"):
        parse_connection({"kafka.bootstrap.servers": "host"})


def test_tls_by_file_or_inline() -> None:
    told = parse_connection(
        BOOTSTRAP
        | {
            "kafka.security.protocol": "SSL",
            "kafka.ssl.ca.location": "/ca.pem",
            "kafka.ssl.keystore.certificate.chain": "CERT",
            "kafka.ssl.keystore.key": "KEY",
        }
    )
    assert (told.is_tls, told.ca, told.cert, told.key) == (True, "/ca.pem", b"CERT", b"KEY")
    tls = told.tls()
    assert tls is not None
    assert tls.cert == b"CERT"
    assert parse_connection(BOOTSTRAP).tls() is None
    with pytest.raises(ValueError, match="only one of"):
        parse_connection(BOOTSTRAP | {"kafka.ssl.key.location": "/key.pem"})
    with pytest.raises(ValueError, match="must be PEM"):
        parse_connection(BOOTSTRAP | {"kafka.ssl.truststore.type": "JKS"})
    for name in ("ssl.truststore.password", "ssl.keystore.password", "ssl.key.password"):
        with pytest.raises(ValueError, match=f"'kafka.{name}'.* PEM") as refused:
            parse_connection(BOOTSTRAP | {f"kafka.{name}": "hidden"})
        assert "hidden" not in str(refused.value)


MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    "login",
    [
        {"kafka.sasl.username": "alice", "kafka.sasl.password": 'a "b" \\'},
        {
            "kafka.sasl.jaas.config": f'{MODULE} required username="alice" password="a \\"b\\" \\\\";'
        },
        {
            "kafka.sasl.jaas.config": f"{MODULE} required\n username=alice\n password='a \"b\" \\';\n"
        },
    ],
)
def test_a_login_is_told_as_kafkas_clients_tell_it(login: dict[str, str]) -> None:
    options = BOOTSTRAP | login | {"kafka.security.protocol": "SASL_SSL"}
    told = parse_connection(options)
    assert told.is_tls
    assert told.credentials == SaslCredentials(username="alice", password='a "b" \\')
    assert 'a "b"' not in repr(told)
    other = parse_connection(options | {"kafka.sasl.mechanism": "SCRAM-SHA-256"})
    assert other.credentials is not None
    assert other.credentials.mechanism == "SCRAM-SHA-256"
    plain = parse_connection(options | {"kafka.security.protocol": "SASL_PLAINTEXT"})
    assert (plain.is_tls, plain.credentials) == (False, told.credentials)
    assert parse_connection(options | {"kafka.security.protocol": "SSL"}).credentials is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.security.protocol": "SASL_SSL"}, "a login needs a name and a password"),
        ({"kafka.sasl.username": "alice"}, "a login needs a name and a password"),
        ({"kafka.sasl.mechanism": "GSSAPI"}, "must be one of SCRAM-SHA-512"),
        ({"kafka.sasl.jaas.config": "secret"}, "expected one entry of a ScramLoginModule"),
        ({"kafka.sasl.kerberos.service.name": "x"}, r"'sasl\.kerberos\.service\.name' is not"),
        ({"kafka.security.protocol": "QUIC"}, "Invalid value QUIC"),
    ],
)
def test_a_login_that_makes_no_sense_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        parse_connection(BOOTSTRAP | options)
    assert "secret" not in str(refused.value)


def test_durations_are_sparks() -> None:
    given = ["15m", "30s", "500ms", "7", "2h", "1d", "3 min"]
    expected = [900_000, 30_000, 500, 7, 7_200_000, 86_400_000, 180_000]
    assert [duration_ms(text) for text in given] == expected
    with pytest.raises(ValueError, match="Time must be specified"):
        duration_ms("soon")


@pytest.mark.parametrize("text", ["{}", '{"t":[]}'])
def test_an_assignment_of_no_partition_is_refused(text: str) -> None:
    """Otherwise the query would run for ever, read nothing, and report no error."""
    with pytest.raises(ValueError, match="option 'assign' names no partition"):
        parse_source_options({"kafka.bootstrap.servers": "a:1", "assign": text}, is_streaming=True)

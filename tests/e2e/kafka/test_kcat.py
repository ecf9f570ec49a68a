"""Tests with the unmodified client kcat, as Debian packages it."""

from __future__ import annotations

import re
import subprocess
import threading
import uuid

import pytest
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from tests.e2e.kafka.access import (
    PASSWORD,
    allow,
    make_topic,
    make_user,
    produce,
    static_members,
)
from tests.e2e.kafka.conftest import Guarded
from tests.e2e.kafka.group_shares import assert_shared_and_taken_over
from tests.tools import need

TIMEOUT_S = 60  # so high that a slow machine does not exceed it


def kcat(*arguments: str, stdin: str = "", refused: bool = False) -> str:
    """Run kcat and return its output; if it is `refused`, its error output."""
    need("kcat")
    ran = subprocess.run(
        ["kcat", *arguments],
        input=stdin,
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (ran.returncode != 0) == refused, ran.stderr
    return ran.stderr if refused else ran.stdout


@pytest.mark.scenario("kcat", "compression", "headers", "describe")
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(bootstrap: str, topic: str, compression: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(500))
    kcat("-b", bootstrap, "-P", "-t", topic, "-z", compression, "-H", "h=1", stdin=lines)
    assert kcat("-b", bootstrap, "-C", "-t", topic, "-o", "beginning", "-e") == lines
    last = kcat("-b", bootstrap, "-C", "-t", topic, "-o", "-1", "-e", "-f", "%o %h %s")
    assert last == "499 h=1 line 499"
    assert f'topic "{topic}" with 1 partitions' in kcat("-b", bootstrap, "-L", "-t", topic)


@pytest.mark.scenario("kcat", "nulls")
def test_nulls(bootstrap: str, topic: str) -> None:
    kcat("-b", bootstrap, "-P", "-t", topic, "-K", ":", "-Z", stdin="tombstone:\n:no key\n")
    form = "%K %k %S %s\n"  # -1 is the length of a null
    read = kcat("-b", bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-f", form)
    assert read == "9 tombstone -1 \n-1  6 no key\n"


def test_in_a_group(bootstrap: str, topic: str) -> None:
    kcat("-b", bootstrap, "-P", "-t", topic, stdin="a\nb\nc\n")
    read = kcat(
        "-b", bootstrap, "-G", f"g-{topic}", topic, "-c", "3", "-X", "auto.offset.reset=earliest"
    )
    assert read == "a\nb\nc\n"


class GroupMember:
    """A kcat process that stays in a group; it prints each rebalance."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.owned = 0
        self._process = subprocess.Popen(
            [
                *("kcat", "-b", bootstrap, "-G", f"g-{topic}", topic),
                *("-X", "heartbeat.interval.ms=300", "-X", "session.timeout.ms=6000"),
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                if "assigned:" in line:
                    self.owned = len(re.findall(r"\[\d+\]", line))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_S)
        self._thread.join(TIMEOUT_S)


@pytest.mark.scenario("kcat", "rebalance")
def test_members_share_the_partitions_and_take_over(bootstrap: str, topic: str) -> None:
    need("kcat")
    assert_shared_and_taken_over(bootstrap, topic, GroupMember)


@pytest.mark.scenario("kcat", "static member")
def test_a_static_member_comes_back(bootstrap: str, topic: str) -> None:
    kcat("-b", bootstrap, "-P", "-t", topic, stdin="a\nb\n")
    member = ["-X", "group.instance.id=one", "-X", "auto.offset.reset=earliest", "-c", "1"]
    for expected in ("a\n", "b\n"):
        assert kcat("-b", bootstrap, "-G", f"g-{topic}", *member, topic) == expected
    assert static_members(bootstrap, f"g-{topic}") == ["one"]


@pytest.mark.scenario("kcat", "seek by time")
def test_seeking_by_time(bootstrap: str, topic: str) -> None:
    times = [1000 * (n + 1) for n in range(9)]
    produce(bootstrap, topic, [b"%d" % n for n in range(9)], timestamps_ms=times)
    read = kcat("-b", bootstrap, "-C", "-t", topic, "-o", "s@4500", "-e", "-f", "%s ")
    assert read == "4 5 6 7 8 "


@pytest.mark.scenario("kcat", "sasl over tls", "acl denied")
def test_login_and_rights(open_admin: AdminClient, guarded: Guarded, topic: str) -> None:
    """The login is by PLAIN over TLS, because kcat's SCRAM (librdkafka before 2.6.1) repeats the
    nonce, which Kafka 4 refuses as well. kcat prints the reason.
    """
    user = f"u-{uuid.uuid4().hex[:8]}"
    make_user(open_admin, user)
    make_topic(open_admin, topic)
    config = {
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(guarded.ca),
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "message.timeout.ms": "45000",
    }
    options = [word for name, value in config.items() for word in ("-X", f"{name}={value}")]
    where = ["-b", f"127.0.0.1:{guarded.ports['KAFKA_TLS']}", "-t", topic, *options]
    allow(open_admin, user, ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    assert "authorization failed" in kcat("-P", *where, stdin="denied\n", refused=True)
    allow(open_admin, user, ResourceType.TOPIC, topic, AclOperation.ALL)
    scram = ["-X", "sasl.mechanism=SCRAM-SHA-512"]
    refused = kcat("-P", *where, *scram, stdin="x\n", refused=True)
    assert "use a newer librdkafka, or sasl.mechanism=PLAIN over TLS" in refused
    kcat("-P", *where, stdin="allowed\n")
    assert kcat("-C", *where, "-o", "beginning", "-e") == "allowed\n"

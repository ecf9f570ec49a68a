"""TLS, SCRAM, certificates, tokens and ACLs: with each way of authentication a client can produce and consume what
its entries allow, and no more.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka as ck
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from odradek.admin.access import Acl, AclOperation, ResourceType
from odradek.cli.certificate_authority import CertificateAuthority
from odradek.client import Client
from odradek.errors import AuthenticationFailed, AuthorizationFailed, OdradekError
from tests.e2e.secure_cluster import SecureCluster

PASSWORD = "correct horse"
T = TypeVar("T")
WAYS = ("bearer", "basic", "mtls")
V2 = "application/vnd.kafka.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"


SETTLED_S = 60.0  # so high that a slow machine does not exceed it


def settled(ask: Callable[[], httpx.Response], status: int) -> httpx.Response:
    """Repeat a request until it has this status, because brokers apply a change one after the
    other.
    """
    deadline_s = time.monotonic() + SETTLED_S
    while (response := ask()).status_code != status and time.monotonic() < deadline_s:
        pass
    assert response.status_code == status, response.text
    return response


def until_listed(http: httpx.Client, topic: str) -> None:
    """Wait until this topic, and no other, is listed."""
    deadline_s = time.monotonic() + SETTLED_S
    while (listed := http.get("/topics").json()) != [topic] and time.monotonic() < deadline_s:
        pass
    assert listed == [topic]


@dataclass
class Visitor:
    """A user of the gateways, with an HTTP client for each gateway that sends the user's
    credentials.
    """

    principal: str
    gateways: list[httpx.Client]

    @property
    def http(self) -> httpx.Client:
        return self.gateways[0]


async def allow(
    cluster: SecureCluster, principal: str, kind: ResourceType, name: str, *what: AclOperation
) -> None:
    async with cluster.admin() as admin:
        await admin.admin.create_acls(
            Acl(resource_type=kind, resource_name=name, principal=principal, operation=one)
            for one in what
        )


async def make_user(cluster: SecureCluster, name: str) -> None:
    """Create a user, and wait until every broker accepts the login."""
    async with cluster.admin() as admin:
        await admin.admin.set_scram_password(name, PASSWORD, iterations=4096)
    deadline_s = time.monotonic() + SETTLED_S
    for broker_id in cluster.brokers:
        while not await logs_in(cluster.user(name, PASSWORD, [broker_id])):
            assert time.monotonic() < deadline_s, f"broker {broker_id} does not know {name}"


async def logs_in(client: Client) -> bool:
    async with client:
        try:
            await client.connect(SETTLED_S)
        except AuthenticationFailed:
            return False
    return True


@pytest.fixture
async def topic(cluster: SecureCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    async with cluster.admin() as admin:
        await admin.admin.create_topic(name, partitions=1, replication_factor=2)
    return name


def clients(cluster: SecureCluster, certificate: str | None = None, **options: Any) -> Any:
    """Return one HTTP client for each gateway."""
    context = ssl.create_default_context(cafile=str(cluster.ca))
    if certificate is not None:
        context.load_cert_chain(*cluster.certificate(certificate))
    urls = [one.replace("http://", "https://") for one in cluster.describe()["gateways"]]
    return [httpx.Client(base_url=url, verify=context, timeout=30, **options) for url in urls]


@contextlib.asynccontextmanager
async def visiting(cluster: SecureCluster, way: str, name: str) -> AsyncIterator[Visitor]:
    if way == "bearer":
        token = cluster.issuer.token(name)
        found = clients(cluster, headers={"Authorization": f"Bearer {token}"})
        principal = f"User:{name}"
    elif way == "basic":
        await make_user(cluster, name)
        found = clients(cluster, auth=(name, PASSWORD))
        principal = f"User:{name}"
    else:
        found = clients(cluster, certificate=name)
        principal = f"User:CN={name}"
    try:
        yield Visitor(principal, found)
    finally:
        for one in found:
            one.close()


@pytest.fixture
def anybody(cluster: SecureCluster) -> Iterator[httpx.Client]:
    found = clients(cluster)
    yield found[0]
    for one in found:
        one.close()


def produce(http: httpx.Client, topic: str, value: bytes) -> httpx.Response:
    record = {"value": base64.b64encode(value).decode()}
    return http.post(
        f"/topics/{topic}", json={"records": [record]}, headers={"Content-Type": BINARY}
    )


def make_instance(http: httpx.Client, group: str) -> str:
    made = http.post(
        f"/consumers/{group}",
        json={"format": "binary", "auto.offset.reset": "earliest"},
        headers={"Content-Type": V2},
    )
    assert made.status_code == 200, made.text
    return f"/consumers/{group}/instances/{made.json()['instance_id']}"


def values(http: httpx.Client, instance: str) -> list[bytes]:
    """Repeat the read until it returns records, and return their values. It may be refused at first, because brokers
    apply a new entry one after the other.
    """
    for _ in range(30):
        response = http.get(
            f"{instance}/records", params={"timeout": 1000}, headers={"Accept": BINARY}
        )
        assert response.status_code in (200, 403), response.text
        if response.status_code == 200 and response.json():
            return [base64.b64decode(one["value"]) for one in response.json()]
    raise AssertionError(f"no records within 30 requests: {response.text}")


@pytest.mark.parametrize("way", WAYS)
async def test_a_visitor_of_the_gateway_may_what_entries_allow(
    cluster: SecureCluster, topic: str, way: str
) -> None:
    name = f"{way}-{uuid.uuid4().hex[:6]}"
    group = f"g-{name}"
    async with visiting(cluster, way, name) as visitor:
        assert settled(lambda: visitor.http.get("/topics"), 200).json() == []
        refused = produce(visitor.http, topic, b"1")
        assert refused.status_code == 403, refused.text
        assert refused.json()["error_code"] == 40301
        async with cluster.admin() as admin:
            assert sum((await _ends(admin, topic)).values()) == 0
        await allow(
            cluster,
            visitor.principal,
            ResourceType.TOPIC,
            topic,
            AclOperation.WRITE,
            AclOperation.READ,
        )
        done = settled(lambda: produce(visitor.http, topic, b"1"), 200)
        assert done.json()["offsets"][0]["offset"] == 0
        until_listed(visitor.http, topic)
        await allow(
            cluster,
            visitor.principal,
            ResourceType.GROUP,
            group,
            AclOperation.READ,
            AclOperation.DESCRIBE,
        )
        instance = make_instance(visitor.http, group)
        settled(
            lambda: visitor.http.post(
                f"{instance}/subscription", json={"topics": [topic]}, headers={"Content-Type": V2}
            ),
            204,
        )
        assert values(visitor.http, instance) == [b"1"]
        # The other gateway passes the request on, whatever the credentials are.
        assert produce(visitor.http, topic, b"2").status_code == 200
        assert values(visitor.gateways[1], instance) == [b"2"]
        async with visiting(cluster, "mtls", "stranger") as stranger:
            for one in stranger.gateways:
                theirs = one.get(f"{instance}/records", headers={"Accept": BINARY})
                assert theirs.status_code == 403, theirs.text
                assert theirs.json()["error_code"] == 40301
                assert one.delete(instance, headers={"Accept": V2}).status_code == 403
        assert visitor.http.delete(instance, headers={"Accept": V2}).status_code == 204
    events = [e for b in cluster.brokers for e in cluster.logged(f"broker-{b}") if "via" in e]
    mine = [e for e in events if e["principal"] == visitor.principal]
    assert mine
    assert all(e["via"] in ("User:CN=gateway-1", "User:CN=gateway-2") for e in mine)


async def _ends(client: Client, topic: str) -> dict[Any, int]:
    async with client.consumer() as consumer:
        return dict(await consumer.end_offsets([(topic, 0)]))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer nonsense"}, 401),
        ({"Authorization": "Basic bm9ib2R5OndoYXRldmVy"}, 401),
        ({"Authorization": "Basic %%%"}, 401),
        ({"Authorization": "Digest x"}, 401),
        ({"odradek-on-behalf-of": "User:CN=admin"}, 403),
        ({"odradek-on-behalf-of-host": "10.0.0.1"}, 403),
        ({"X-Forwarded-For": "10.0.0.1"}, 401),
    ],
)
@pytest.mark.parametrize("path", ["/topics", "/v3/clusters", "/openapi.json", "/docs", "/metrics"])
def test_who_does_not_say_who_he_is_gets_nothing(
    cluster: SecureCluster, anybody: httpx.Client, headers: dict[str, str], status: int, path: str
) -> None:
    response = anybody.get(path, headers=headers)
    assert response.status_code == status
    assert response.json()["error_code"] == {401: 40101, 403: 40301}[status]
    if status == 401:
        challenges = response.headers.get_list("www-authenticate")
        assert {one.split()[0] for one in challenges} == {"Bearer", "Basic"}
    assert "access-control-allow-origin" not in response.headers
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "max-age" in response.headers["strict-transport-security"]
    audited = [e for e in cluster.logged("gateway-1") if e["source"] == "odradek_gateway.audit"]
    assert any(e["request"] == f"GET {path}" and e["status"] == status for e in audited)
    assert all(e["host"] == "127.0.0.1" for e in audited)


def test_probes_are_answered_to_everybody(anybody: httpx.Client) -> None:
    for path in ("/livez", "/readyz"):
        assert anybody.get(path).status_code == 200


async def test_metrics_take_the_right_to_describe_the_cluster(cluster: SecureCluster) -> None:
    async with visiting(cluster, "basic", "prometheus") as visitor:
        settled(lambda: visitor.http.get("/metrics"), 403)
        await allow(
            cluster,
            visitor.principal,
            ResourceType.CLUSTER,
            "kafka-cluster",
            AclOperation.DESCRIBE,
        )
        assert "kafka_brokers" in settled(lambda: visitor.http.get("/metrics"), 200).text
        assert visitor.http.get("/openapi.json").status_code == 200
        text = visitor.http.get("/metrics").text
    for address in cluster.describe()["metrics"].values():
        text += httpx.get(f"http://{address}/metrics").text  # noqa: ASYNC210  nothing else runs
    ends_s = {
        family.name: {sample.labels["setting"]: sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
        if family.name.endswith("certificate_expiry_timestamp_seconds")
    }
    own = {"ssl.certificate.location", "ssl.ca.location"}
    assert {name: set(ends) for name, ends in ends_s.items()} == {
        "odradek_broker_certificate_expiry_timestamp_seconds": own,
        "odradek_metadata_quorum_certificate_expiry_timestamp_seconds": own,
        "odradek_gateway_certificate_expiry_timestamp_seconds": own
        | {f"http.{name}" for name in own},
    }
    assert all(end_s > time.time() for ends in ends_s.values() for end_s in ends.values())


async def test_a_certificate_does_not_speak_for_others_at_the_gateway(
    cluster: SecureCluster,
) -> None:
    async with visiting(cluster, "mtls", "mallory") as visitor:
        response = visitor.http.get("/topics", headers={"odradek-on-behalf-of": "User:CN=admin"})
        assert response.status_code == 403
        wrong = visitor.http.get("/topics", headers={"Authorization": "Bearer nonsense"})
        assert wrong.status_code == 401  # a valid certificate does not replace a wrong header


def test_a_certificate_of_another_authority_is_refused(
    cluster: SecureCluster, tmp_path: Path
) -> None:
    other = CertificateAuthority(tmp_path)
    other.create(common_name="another", days=1)
    context = ssl.create_default_context(cafile=str(cluster.ca))
    context.load_cert_chain(*other.issue("admin", hosts=["127.0.0.1"], days=1))
    url = cluster.describe()["gateways"][0].replace("http://", "https://")
    with httpx.Client(verify=context) as client, pytest.raises(httpx.HTTPError):
        client.get(f"{url}/topics")


@pytest.mark.parametrize("listener", ["KAFKA", "GRPC", "GRPC_USERS", "REPLICATION", "HTTP"])
def test_a_renewed_certificate_is_shown_without_a_restart(
    cluster: SecureCluster, listener: str
) -> None:
    name = "gateway-1" if listener == "HTTP" else "broker-1"
    process = cluster.gateways[1] if listener == "HTTP" else cluster.brokers[1]
    port = process.ready_line["ports"][listener]
    context = ssl.create_default_context(cafile=str(cluster.ca))
    context.load_cert_chain(*cluster.certificate("admin"))
    if listener not in ("KAFKA", "HTTP"):
        context.set_alpn_protocols(["h2"])

    def serial() -> str:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            return str((connection.getpeercert() or {})["serialNumber"])

    before = serial()
    cluster.certificate(name)
    deadline_s = time.monotonic() + SETTLED_S
    while serial() == before:
        assert time.monotonic() < deadline_s, "the listener still shows the old certificate"


def test_keys_that_are_rotated_count_without_a_restart(cluster: SecureCluster) -> None:
    old = cluster.issuer.token("rotating")
    cluster.issuer.rotate("2")
    new = cluster.issuer.token("rotating", kid="ec-2")
    [one, other] = clients(cluster)

    def status(token: str) -> int:
        return int(one.get("/topics", headers={"Authorization": f"Bearer {token}"}).status_code)

    with one, other:
        deadline_s = time.monotonic() + SETTLED_S
        while status(new) != 200:  # the gateway checks the file at most once a second
            assert time.monotonic() < deadline_s, "the gateway does not accept the new keys"
        # The requests above with the new token may be too many failed logins for one address.
        while (refused := status(old)) == 429:
            assert time.monotonic() < deadline_s + SETTLED_S, "the gateway still limits logins"
        assert refused == 401


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"])
async def test_a_kafka_client_logs_in_over_tls(
    cluster: SecureCluster, topic: str, mechanism: str
) -> None:
    name = f"kafka-{mechanism.lower()}"
    if mechanism != "OAUTHBEARER":
        await make_user(cluster, name)
    outcomes: list[Any] = []
    config: dict[str, Any] = {
        "bootstrap.servers": cluster.kafka_bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.ca),
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": PASSWORD,
        "message.timeout.ms": 45_000,
    }

    if mechanism == "OAUTHBEARER":
        token = cluster.issuer.token(name)
        config |= {"oauth_cb": lambda _: (token, time.time() + 300)}
        del config["sasl.username"], config["sasl.password"]

    def produce_one() -> Any:
        producer = ck.Producer(config)
        producer.produce(topic, b"x", on_delivery=lambda e, _: outcomes.append(e and e.code()))
        assert producer.flush(60) == 0
        return outcomes.pop()

    assert produce_one() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    await allow(cluster, f"User:{name}", ResourceType.TOPIC, topic, AclOperation.WRITE)
    deadline_s = time.monotonic() + SETTLED_S
    while produce_one() is not None:
        assert time.monotonic() < deadline_s, "the new ACL was not applied"


async def first_success(work: Callable[[], Awaitable[T]]) -> T:
    """Repeat the work until no broker refuses it for lack of rights, and return its result."""
    deadline_s = time.monotonic() + SETTLED_S
    while True:
        try:
            return await work()
        except AuthorizationFailed:
            if time.monotonic() > deadline_s:
                raise


async def produce_with(client: Client, topic: str, value: bytes) -> None:
    async with client.producer() as producer:
        await producer.send_and_wait(topic, value)


async def consume_with(client: Client, topic: str, group: str) -> bytes | None:
    async with client.consumer(topic, group=group, auto_offset_reset="earliest") as consumer:
        first: bytes | None = (await consumer.getmany(timeout_ms=20_000))[0].value
        return first


async def refusal(client: Client, topic: str, group: str) -> str:
    with pytest.raises(AuthorizationFailed) as refused:
        await consume_with(client, topic, group)
    return str(refused.value)


@pytest.mark.parametrize("way", ["login", "certificate"])
async def test_an_sdk_client_logs_in_or_shows_a_certificate(
    cluster: SecureCluster, topic: str, way: str
) -> None:
    if way == "login":
        await make_user(cluster, "sdk")
        principal, client = "User:sdk", cluster.user("sdk", PASSWORD)
    else:
        principal = "User:CN=sdk-cert"
        client = Client(cluster.bootstrap, tls=cluster.tls("sdk-cert"))
    group = f"g-{way}"
    async with client:
        with pytest.raises(AuthorizationFailed):
            await produce_with(client, topic, b"x")
        await allow(cluster, principal, ResourceType.TOPIC, topic, AclOperation.ALL)
        await first_success(lambda: produce_with(client, topic, b"y"))
        deadline_s = time.monotonic() + SETTLED_S
        while f"READ on GROUP {group}" not in (refused := await refusal(client, topic, group)):
            # Another broker may not have applied the entry of the topic.
            assert time.monotonic() < deadline_s, refused
        await allow(cluster, principal, ResourceType.GROUP, group, AclOperation.READ)
        assert await first_success(lambda: consume_with(client, topic, group)) == b"y"
        with pytest.raises(AuthorizationFailed):
            await client.admin.describe_acls()


async def test_a_wrong_password_is_told_at_once(cluster: SecureCluster) -> None:
    await make_user(cluster, "sdk")
    async with cluster.user("sdk", "wrong") as client:
        with pytest.raises(AuthenticationFailed):
            await client.connect(20)


async def test_a_client_certificate_is_no_broker(cluster: SecureCluster) -> None:
    """The replication listener serves only registered brokers, whatever certificate a client
    has.
    """
    ports = cluster.brokers[1].ready_line["ports"]
    for name in ("admin", "broker-99", "gateway-1"):
        tls = cluster.tls(name)
        async with Client(f"127.0.0.1:{ports['REPLICATION']}", tls=tls) as client:
            with pytest.raises(OdradekError) as refused:
                await client.admin.list_groups()
            assert "brokers of the cluster" in str(refused.value)


async def test_no_secret_is_in_any_log(cluster: SecureCluster) -> None:
    for path in cluster.data_dir.glob("*.log"):
        text = path.read_text(errors="replace")
        assert PASSWORD not in text, path
        assert "Bearer ey" not in text, path
        assert base64.b64encode(f"sdk:{PASSWORD}".encode()).decode() not in text, path

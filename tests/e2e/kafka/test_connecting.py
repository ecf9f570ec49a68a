"""Each configuration in docs/connecting.md is given to the client that it is for, which then writes
a record.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kafka.test_java_tools import fetched
from tests.e2e.token_issuer import TokenIssuer
from tests.integration.documentation.machines import Machine, Machines
from tests.integration.documentation.pages import ROOT
from tests.tools import need

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
PAGE = "docs/connecting.md"
LOGINS = ("none", "certificate", "password", "token")
BUILD = ROOT / "build" / "documentation"

TOKENS = """
import base64, http.server, json, sys
class Tokens(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        allowed = login == "alice:secret" and b"grant_type=client_credentials" in body
        answer = json.dumps({"access_token": sys.argv[1], "token_type": "Bearer", "expires_in": 300}).encode()
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Tokens).serve_forever()
"""

LIBRDKAFKA = """
import sys, confluent_kafka
lines = [line.split("=", 1) for line in open(sys.argv[1]) if "=" in line]
producer = confluent_kafka.Producer({name: value.strip() for name, value in lines})
producer.produce("orders", b"librdkafka")
assert producer.flush(60) == 0
"""

AIOKAFKA = """
import asyncio, aiokafka
async def main():
    async with aiokafka.AIOKafkaProducer(**options) as producer:
        await producer.send_and_wait("orders", b"aiokafka")
asyncio.run(main())
"""

KAFKAJS = """
import kafkajs from "kafkajs";
const producer = new kafkajs.Kafka(options).producer();
await producer.connect();
await producer.send({ topic: "orders", messages: [{ value: "kafkajs" }] });
await producer.disconnect();
"""

GO = """package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

var authorities = x509.NewCertPool()

var (
	_ = tls.Config{}
	_ = oauth.Auth{}
	_ = scram.Auth{}
)

func fetchToken(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(
		ctx, "POST", "http://login:8080/token", strings.NewReader("grant_type=client_credentials"))
	if err != nil {
		return "", err
	}
	request.SetBasicAuth("alice", "secret")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var found struct {
		Token string `json:"access_token"`
	}
	return found.Token, json.NewDecoder(response.Body).Decode(&found)
}

func main() {
	if pem, err := os.ReadFile("ca.crt"); err == nil {
		authorities.AppendCertsFromPEM(pem)
	}
CONFIGURATION
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(context.Background(), &kgo.Record{Topic: "orders"}).FirstErr(); err != nil {
		log.Fatal(err)
	}
}
"""


def configuration(client: str, login: str) -> str:
    """Return the block below the client's heading on the page whose first line names this login."""
    text = (ROOT / PAGE).read_text()
    (section,) = [part for part in re.split(r"^## ", text, flags=re.M) if part.startswith(client)]
    found = re.findall(r"^```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (chosen,) = [text for text in found if re.match(rf"(#|//) {login}\n", text)]
    return str(chosen)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Yield the machine of a broker with the listeners in the page's table; its home directory has
    the files that the page names.
    """
    need("network namespaces")
    scratch = tmp_path_factory.mktemp("connecting")
    issuer = TokenIssuer(scratch / "jwks.json")
    with Machines(scratch / "machines", ["host1", "login"]) as machines:
        host = machines["host1"]
        token = issuer.token("alice", lifetime_s=3_600)
        machines["login"].begin(f"exec python -c {shlex.quote(TOKENS)} {token} 2>/dev/null")
        host.run(
            "odradek tls init --dir tls; for name in controller-1 broker-1 alice admin; do"
            " odradek tls issue $name --dir tls --host host1 --host 127.0.0.1; done;"
            " cp tls/ca.crt tls/alice.* .; cat alice.key alice.crt > alice.pem"
        )
        tls = {"ssl.ca.location": "tls/ca.crt"}
        quorum = {
            "node.id": "1",
            "cluster.id": "c",
            "log.dirs": "quorum",
            "storage.format.if.empty": "true",
            "controller.quorum.voters": "1@host1:9095",
            "controller.rpc.endpoints": "1@host1:9094",
            "listeners": "RAFT://host1:9095,CONTROLLER://host1:9094",
            "default.replication.factor": "1",
            "min.insync.replicas": "1",
        }
        broker = {
            "node.id": "1",
            "cluster.id": "c",
            "log.dirs": "broker",
            "controller.rpc.endpoints": "1@host1:9094",
            "listeners": "KAFKA_NONE://127.0.0.1:9092,KAFKA://host1:9092,KAFKA_TLS://host1:9192,"
            "GRPC://host1:9090,REPLICATION://host1:9093",
            "listener.security.protocol.map": "KAFKA_NONE:PLAINTEXT,KAFKA:SASL_SSL,KAFKA_TLS:SSL,GRPC:SSL",
            "ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
            "sasl.oauthbearer.jwks.location": str(issuer.jwks),
            "sasl.oauthbearer.expected.issuer": issuer.name,
            "sasl.oauthbearer.expected.audience": issuer.audience,
        }
        for program, settings in (("quorum", quorum), ("broker", broker)):
            name = {"quorum": "controller-1", "broker": "broker-1"}[program]
            settings |= tls | {
                "ssl.certificate.location": f"tls/{name}.crt",
                "ssl.key.location": f"tls/{name}.key",
            }
            words = " ".join(f"--set '{key}={value}'" for key, value in settings.items())
            host.begin(f"exec odradek {program} {words} > {program}.log 2>&1")
        connect = "--bootstrap host1:9090 --ca ca.crt --cert tls/admin.crt --key tls/admin.key"
        host.run(
            f"until odradek {connect} topic create orders --if-not-exists 2>/dev/null; do sleep 1; done;"
            f" echo secret | odradek {connect} user create alice --mechanism SCRAM-SHA-512"
        )
        yield host


@pytest.mark.parametrize("login", LOGINS)
def test_librdkafka(host: Machine, login: str) -> None:
    file = host.folder / "root" / "librdkafka.properties"
    file.write_text(configuration("librdkafka", login))
    host.run(f"python -c {shlex.quote(LIBRDKAFKA)} librdkafka.properties")


@pytest.mark.parametrize("login", LOGINS)
def test_java(host: Machine, login: str) -> None:
    jars = fetched("pom.xml", ROOT / "build" / "kafka-tools", "connect-mirror-*.jar")
    file = host.folder / "root" / "java.properties"
    text = configuration("Java", login)
    file.write_text(text)
    (bootstrap,) = re.findall(r"^bootstrap.servers=(.*)$", text, re.M)
    (option,) = re.findall(r"`(-Dorg\.apache\.kafka\S+)`", (ROOT / PAGE).read_text())
    host.run(
        f"echo java | java -Xmx256M {option} -cp '{jars}/*' org.apache.kafka.tools.ConsoleProducer"
        f" --bootstrap-server {bootstrap} --command-config java.properties --topic orders"
    )


@pytest.mark.parametrize("login", LOGINS)
def test_aiokafka(host: Machine, login: str) -> None:
    program = configuration("aiokafka", login) + AIOKAFKA
    host.run(f"python -c {shlex.quote(program)}")


@pytest.fixture(scope="module")
def node_modules() -> Path:
    need("npm")
    BUILD.mkdir(parents=True, exist_ok=True)
    package = {"private": True, "type": "module", "dependencies": {"kafkajs": "2.2.4"}}
    (BUILD / "package.json").write_text(json.dumps(package))
    command = ["npm", "install", "--no-package-lock", "--no-audit", "--silent"]
    subprocess.run(command, cwd=BUILD, check=True, timeout=300)
    return BUILD / "node_modules"


@pytest.mark.parametrize("login", LOGINS)
def test_kafkajs(host: Machine, node_modules: Path, login: str) -> None:
    home = host.folder / "root"
    if not (home / "node_modules").exists():
        (home / "node_modules").symlink_to(node_modules)
    (home / "program.mjs").write_text(configuration("kafkajs", login) + KAFKAJS)
    host.run("PATH=$PATH:/usr/local/bin node program.mjs")


@pytest.mark.parametrize("login", LOGINS)
def test_go(host: Machine, login: str, tmp_path: Path) -> None:
    need("Go")
    clients = ROOT / "tests/e2e/kafka/go_clients"
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_bytes((clients / name).read_bytes())
    (tmp_path / "main.go").write_text(GO.replace("CONFIGURATION", configuration("Go", login)))
    program = host.folder / "root" / f"go-{login}"
    subprocess.run(
        ["go", "build", "-mod=mod", "-o", str(program), "."], cwd=tmp_path, check=True, timeout=600
    )
    host.run(f"./go-{login}")

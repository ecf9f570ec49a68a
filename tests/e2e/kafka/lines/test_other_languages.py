"""Clients in Java, Go, JavaScript and Rust; each release is built in a separate folder below
build/.

They need `java` and `mvn`, `go`, `npm`, `cargo`, and a C compiler with `make`, because rdkafka
includes the source of librdkafka.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.kafka.lines.installation import (
    BUILD,
    EXPECTED,
    HERE,
    INSTALL_S_MAX,
    report,
    run,
    tool,
    tries,
)
from tests.e2e.kafka.lines.releases import RELEASES

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(INSTALL_S_MAX + 200)]
GO_MODULES: Final = {
    "sarama": "github.com/IBM/sarama",
    "sarama (Shopify)": "github.com/Shopify/sarama",
    "kafka-go": "github.com/segmentio/kafka-go",
    "franz-go": "github.com/twmb/franz-go",
}


def cases(*clients: str) -> list[object]:
    return [tries(client, release) for client in clients for release in RELEASES[client]]


@pytest.mark.parametrize(("client", "release"), cases("Java"))
def test_a_java_client_does_its_work(bootstrap: str, topic: str, client: str, release: str) -> None:
    folder = BUILD / f"java-{release}"
    if not any(folder.glob("kafka-clients-*.jar")):
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        pom = ["-f", HERE / "java" / "pom.xml", f"-Dclients.version={release}"]
        run(tool("mvn", "Maven"), "-q", "-B", *pom, *goal, folder=HERE, timeout_s=INSTALL_S_MAX)
    java = [
        tool("java", "a JDK"),
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{folder}/*",
        HERE / "java" / "UseClient.java",
    ]
    assert report(*java, bootstrap, topic, folder=folder) == EXPECTED


@pytest.mark.parametrize(("client", "release"), cases(*GO_MODULES))
def test_a_go_client_does_its_work(bootstrap: str, topic: str, client: str, release: str) -> None:
    number, _, kafka = release.partition(" as to Kafka ")
    program = go_program(client, number)
    spoken = [f"{kafka}.0.0" if kafka == "0.11" else f"{kafka}.0"] if kafka else []
    assert report(program, bootstrap, topic, *spoken, folder=program.parent) == EXPECTED


def go_program(client: str, release: str) -> Path:
    """Return the path of the client's program, which is built with that release on first use."""
    folder = BUILD / f"{client.replace(' ', '-')}-{release}"
    program = folder / "program"
    if program.exists():
        return program
    go = tool("go", "Go")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    name = client.partition(" ")[0]
    # sarama moved from Shopify to IBM: the same program imports it by either name. Without a retention, its
    # releases as Shopify's commit by OffsetCommit 1, which Apache Kafka 4 removed.
    source = (HERE / "go" / f"{name}.go").read_text().replace(GO_MODULES[name], GO_MODULES[client])
    if client == "sarama (Shopify)":
        start = "config := sarama.NewConfig()\n"
        source = source.replace(start, start + "\tconfig.Consumer.Offsets.Retention = time.Hour\n")
    (folder / "main.go").write_text(source)
    run(go, "mod", "init", "use", folder=folder, timeout_s=INSTALL_S_MAX)
    run(go, "get", f"{GO_MODULES[client]}@v{release}", folder=folder, timeout_s=INSTALL_S_MAX)
    run(go, "mod", "tidy", folder=folder, timeout_s=INSTALL_S_MAX)
    run(go, "build", "-o", program, ".", folder=folder, timeout_s=INSTALL_S_MAX)
    return program


@pytest.mark.parametrize(("client", "release"), cases("kafkajs"))
def test_a_node_client_does_its_work(bootstrap: str, topic: str, client: str, release: str) -> None:
    folder = BUILD / f"{client}-{release}"
    if not (folder / "node_modules" / client).exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        npm = [tool("npm", "npm"), "install", "--no-package-lock", "--no-audit"]
        run(*npm, f"{client}@{release}", folder=folder, timeout_s=INSTALL_S_MAX)
    shutil.copy(HERE / "node" / "kafkajs.js", folder)
    node = tool("node", "Node")
    assert report(node, "kafkajs.js", bootstrap, topic, folder=folder) == EXPECTED


@pytest.mark.parametrize(("client", "release"), cases("rdkafka (Rust, librdkafka)"))
def test_a_rust_client_does_its_work(bootstrap: str, topic: str, client: str, release: str) -> None:
    folder = BUILD / f"rdkafka-{release}"
    program = folder / "target/debug/use-rdkafka"
    if not program.exists():
        cargo = tool("cargo", "Rust")
        shutil.copytree(HERE / "rust", folder, dirs_exist_ok=True)
        manifest = folder / "Cargo.toml"
        manifest.write_text(manifest.read_text().replace("RELEASE", release))
        run(cargo, "build", "--quiet", folder=folder, timeout_s=INSTALL_S_MAX)
    assert report(program, bootstrap, topic, folder=folder) == EXPECTED

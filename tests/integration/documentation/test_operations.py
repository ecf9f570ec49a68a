"""Runs the pages about operating a cluster section by section, on machines that are set up as in
docs/cluster.md.
"""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from tests.integration.documentation.conftest import DataCentre
from tests.integration.documentation.pages import ROOT, blocks, script

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
PAGE = "docs/operations.md"
WRITTEN = 200


@pytest.fixture
def orders(data_centre: DataCentre) -> str:
    """Write the records of the topic that all sections use; return the shell variables that the
    page takes from docs/cluster.md.
    """
    data_centre.run(
        "odradek topic create orders --if-not-exists --partitions 6 --replicas 3;"
        f" seq {WRITTEN} | odradek produce orders"
    )
    return "voters=1@host1:9095,2@host2:9095,3@host3:9095; cluster_id=$(sed -n 's/^cluster.id=//p' quorum.properties)\n"


def count(data_centre: DataCentre, topic: str = "orders") -> int:
    read = data_centre.run(f"odradek consume {topic} --from-beginning --exit-at-end | wc -l")
    return int(read.split()[-1])


SECTIONS = {
    "Restarting": "healthy",
    "Upgrades": "transaction.version",
    "Adding a broker": "broker",
    "Retiring a broker": "no longer registered",
    "Replacing a controller": "leader",
    "Disks": "",
    "Balance": "balanced",
    "Configuration": "auto.create.topics.enable",
}
"""Sections in the order in which they are run, each with a text of its output."""


def test_every_section_with_commands_is_run() -> None:
    sections = re.split(r"^## ", (ROOT / PAGE).read_text(), flags=re.MULTILINE)
    with_commands = {text.partition("\n")[0] for text in sections if "\n```sh\n" in text}
    assert with_commands == {*SECTIONS, "Backup", "From Apache Kafka"}


@pytest.mark.parametrize(("heading", "expected"), SECTIONS.items())
def test_no_record_is_lost_by_what_a_section_does(
    data_centre: DataCentre, orders: str, heading: str, expected: str
) -> None:
    before = count(data_centre)
    commands = script(PAGE, heading=heading)
    assert expected in data_centre.run(orders + commands)
    assert count(data_centre) == before


def test_a_backup_is_restored(data_centre: DataCentre, orders: str) -> None:
    data_centre.run("odradek topic delete orders-restored || true")
    data_centre.run(orders + script(PAGE, heading="Backup"))
    assert count(data_centre, "orders-restored") == count(data_centre)


def test_a_file_of_kafkas_is_imported(data_centre: DataCentre) -> None:
    data_centre.run(
        "mkdir -p import && cd import && printf 'process.roles=broker\\nnode.id=1\\nlog.dirs=/data\\n"
        "controller.quorum.voters=9@host1:9093\\nlisteners=PLAINTEXT://127.0.0.1:9092\\n' > server.properties"
        f" && {{ {script(PAGE, heading='From Apache Kafka')}\n}}"
    )


@pytest.mark.parametrize("page", ["docs/operations.md", "docs/access.md"])
def test_the_python_programs_run(data_centre: DataCentre, page: str) -> None:
    if page == "docs/access.md":
        data_centre.run("odradek user delete alice || true")
        data_centre.run(script(page))
    for block in blocks(page):
        if block.language == "python":
            data_centre.run(f"python -c {shlex.quote(block.text)}")


def test_metrics_are_scraped_where_the_page_says(data_centre: DataCentre) -> None:
    page = "docs/monitoring.md"
    (block,) = [block for block in blocks(page) if block.language == "yaml"]
    jobs = {job["job_name"]: job for job in yaml.safe_load(block.text)["scrape_configs"]}
    assert "kafka_brokers 3" in data_centre.run(script(page))
    for job in ("quorum", "broker"):
        for target in jobs[job]["static_configs"][0]["targets"]:
            host, port = target.split(":")
            assert "odradek_" in data_centre.run(
                f"ssh {host} 'curl -fsS http://127.0.0.1:{port}/metrics'"
            )
    rules = yaml.safe_load((data_centre.admin.folder / "root" / "odradek-alerts.yml").read_text())
    assert len(rules["groups"][0]["rules"]) > 10
    dashboards = (ROOT / "deploy/k8s/components/monitoring/dashboards").glob("*.json")
    expected = {
        job for path in dashboards for job in re.findall(r'job=\\"(\w+)\\"', path.read_text())
    }
    assert expected <= set(jobs)

"""Runs docs/quick-start.md and the README's tour block by block, on a machine whose usual ports are free."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from tests.integration.documentation.machines import Machine
from tests.integration.documentation.pages import ROOT, Block, blocks
from tests.tools import need

PAGE = "docs/quick-start.md"
OUTPUT = {
    "odradek consume": ["hello"],
    "import odradek": ["b'hello from Python'"],
    "kcat": ["hello from kcat", "hello from Python"],
    "curl": ['"offset"', "KafkaCluster"],
}


def page() -> tuple[Block, list[Block]]:
    """Return the block that starts the cluster and runs until it is stopped, and the other
    blocks.
    """
    server, *rest = blocks(PAGE)
    assert server.text.endswith("\nodradek dev\n")
    return server, rest


@pytest.fixture(scope="module")
def dev(machine: Machine) -> Iterator[Popen[str]]:
    need("a C compiler")
    server, _ = page()
    process = machine.begin(f"cd {ROOT}; exec bash -c '{server.text}'")
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if "In another terminal" in line:
                break
        assert any("The cluster accepts writes" in line for line in lines), "".join(lines)
        table = [line.rstrip() for line in lines if "-1 " in line]
        assert table
        assert max(map(len, table)) <= 80, "the table fits a terminal of 80 columns"
        yield process
    finally:
        machine.kill_all()


@pytest.mark.timeout(300)
def test_every_command_of_the_page_does_what_it_says(dev: Popen[str], machine: Machine) -> None:
    need("kcat")
    expected = dict(OUTPUT)
    for block in page()[1]:
        if "pyspark" in block.text:
            continue  # the next test
        command = {"sh": "bash -e", "python": "python"}[block.language]
        output = machine.run(f"cd {ROOT}; {command} <<'END_OF_BLOCK'\n{block.text}END_OF_BLOCK")
        for words in [words for words in expected if words in block.text]:
            for text in expected.pop(words):
                assert text in output, f"line {block.line}: {output}"
    assert not expected, "the page lost these commands"


@pytest.mark.timeout(300)
def test_the_spark_program_counts_what_the_page_has_written(
    dev: Popen[str], machine: Machine
) -> None:
    need("Java 17 or 21")
    (block,) = [block for block in page()[1] if "pyspark" in block.text]
    machine.run("odradek topic delete greetings || true")
    machine.run("odradek topic create greetings -p 3 && seq 7 | odradek produce greetings")
    java = f"export PATH=$PATH:{Path(shutil.which('java') or '/usr/bin/java').parent}"
    output = machine.run(f"{java}; python <<'END_OF_BLOCK'\n{block.text}END_OF_BLOCK")
    assert re.search(r"\|greetings\|.*\|7 +\|", output), output


@pytest.mark.timeout(300)
def test_the_tour_of_the_readme_runs_as_it_is_written(dev: Popen[str], machine: Machine) -> None:
    tour, python, curl, spark, checks = blocks("README.md")
    assert "spark.readStream" in spark.text  # tests/e2e/spark/test_stream_read.py runs it
    assert re.findall("^make .*?  ", checks.text, re.MULTILINE) == ["make demo  ", "make test  "]
    commands = tour.text.partition("# in another terminal")[2].partition("\n")[2]
    machine.run("odradek topic delete greetings || true")
    output = machine.run(f"set -e; {commands}")
    assert "\nhello\n" in output
    assert re.search(r"healthy +yes", output)
    assert "b'world' b'hello'" in machine.run(f"python <<'END_OF_BLOCK'\n{python.text}END_OF_BLOCK")
    assert '"offset"' in machine.run(curl.text)

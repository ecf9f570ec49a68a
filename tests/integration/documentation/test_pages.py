"""Every fenced block of the documentation names its language, and the commands of every page are run by a test."""

from __future__ import annotations

import re

import pytest

from tests.integration.documentation.pages import ROOT, blocks

RUN_BY = {
    "README.md": "tests/integration/documentation/test_quick_start.py",
    "deploy/k8s/README.md": "tests/integration/deployment/test_readme.py",
    "docs/administration.md": "tests/integration/sdk/test_moves.py",
    "docs/cluster.md": "tests/integration/documentation/conftest.py",
    "docs/connecting.md": "tests/e2e/kafka/test_connecting.py",
    "docs/installing.md": "tests/integration/documentation/test_services.py",
    "docs/operations.md": "tests/integration/documentation/test_operations.py",
    "docs/access.md": "tests/integration/documentation/test_operations.py",
    "docs/monitoring.md": "tests/integration/documentation/test_operations.py",
    "docs/quick-start.md": "tests/integration/documentation/test_quick_start.py",
    "docs/transactions.md": "tests/integration/sdk/test_commands.py",
}
# What is shown and not run: output, files of other programs, and commands of programs that no test can have.
SHOWN = {"text", "ini", "json", "console", "properties", "yaml"}
LANGUAGES = SHOWN | {"sh", "python", "java", "javascript", "go"}
# test_compose.py starts the same processes, and test_mirror_maker.py the program behind the script.
WITHOUT_A_TEST = {"docker", "bin/connect-mirror-maker.sh"}
# These pages are older than the rule. Their commands are run, or they have none.
WITHOUT_LANGUAGES = {"README.md", "docs/administration.md"}
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WITHOUT_LANGUAGES])
def test_each_block_names_its_language(page: str) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_test_runs_the_commands_of_the_page(page: str) -> None:
    runnable = {block.language for block in blocks(page)} - SHOWN
    if runnable:
        assert page in RUN_BY, f"{runnable} of {page} are not run"
        assert page.rpartition("/")[2] in (ROOT / RUN_BY[page]).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_commands_stand_in_blocks_that_tests_find(page: str) -> None:
    """A block of indented lines would be shown alike, and run by no test."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^    \S.*", text, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_a_console_block_is_about_a_program_that_no_test_has(page: str) -> None:
    for block in blocks(page):
        if block.language == "console":
            assert block.text.split()[0] in WITHOUT_A_TEST, f"{page}:{block.line}"

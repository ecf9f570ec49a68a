"""Everything that documents and docstrings refer to exists: files, headings, metrics, settings,
names in the code.
"""

from __future__ import annotations

import functools
import posixpath
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.tools import need

ROOT = Path(__file__).parents[2]
IMPORT_ROOTS = (
    "proto/python",
    "services/runtime",
    "services/metadata_quorum",
    "services/broker",
    "services/broker/odradek_broker",
)
SOURCES = (".py", ".proto", ".c", ".md", ".toml", ".yaml", ".properties")
TOP = "tests|deploy|clients|services|proto|spark_connector"
PATH = re.compile(rf"(?<![\w./-])(?:{TOP})/[\w./-]*\w")
FILE = re.compile(r"[\w./-]*\w\.(?:py|proto|c|md)|[\w.-]+(?:/[\w.-]+)*/")
OF_THE_READER = {"conftest.py", "example.com/"}
PREFIXES = ("odradek_broker_", "odradek_metadata_quorum_", "odradek_gateway_", "kafka_")


@functools.cache
def tracked() -> tuple[str, ...]:
    need("a git checkout")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    return tuple(one for one in listed if (ROOT / one).exists())


@functools.cache
def places() -> frozenset[str]:
    """Return the paths of all files and folders."""
    found = set(tracked())
    for one in tracked():
        found.update(str(parent) for parent in PurePosixPath(one).parents)
    return frozenset(found)


def documents() -> list[str]:
    return [one for one in tracked() if one.endswith(".md") and one != "CHANGELOG.md"]


def prose(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def code_spans(document: str) -> Iterator[str]:
    yield from re.findall(r"`([^`\n]+)`", prose((ROOT / document).read_text()))


def leads_somewhere(document: str, name: str) -> bool:
    """Return whether a name is a path: below the document's folder, beside it, above it, or below
    an import root.
    """
    folder = PurePosixPath(document).parent
    name = name.removeprefix("./").rstrip("/")
    bases = [folder, *folder.parents, *map(PurePosixPath, IMPORT_ROOTS)]
    if any(_normal(base, name) in places() for base in bases):
        return True
    prefix = "" if str(folder) == "." else f"{folder}/"
    return any(one.startswith(prefix) and one.endswith("/" + name) for one in places())


def _normal(base: PurePosixPath, name: str) -> str:
    return posixpath.normpath(base / name)


def test_links_lead_somewhere() -> None:
    dead = []
    for document in documents():
        text = (ROOT / document).read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
            if "://" in target:
                continue
            name, _, heading = target.partition("#")
            place = ROOT / PurePosixPath(document).parent / name if name else ROOT / document
            if not place.exists() or (heading and heading not in headings(place)):
                dead.append(f"{document}: {target}")
    assert not dead


def headings(place: Path) -> set[str]:
    found = re.findall(r"^#+ (.*)$", place.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one).strip().lower().replace(" ", "-") for one in found}


def test_files_that_documents_name_exist() -> None:
    dead = []
    for document in documents():
        text = (ROOT / document).read_text()
        dead += [f"{document}: {one}" for one in PATH.findall(text) if one not in places()]
        for span in code_spans(document):
            for word in span.split():
                is_file = FILE.fullmatch(word) is not None and word not in OF_THE_READER
                if is_file and not leads_somewhere(document, word):
                    dead.append(f"{document}: {word}")
    assert not dead


def test_documents_that_the_code_names_exist() -> None:
    dead = []
    for one in tracked():
        if one.endswith(SOURCES) and one != "tests/tidy/test_references.py":
            for name in re.findall(r"[\w./-]*\w\.md\b", (ROOT / one).read_text()):
                if not leads_somewhere(one, name):
                    dead.append(f"{one}: {name}")
    assert not dead


def test_names_of_the_code_in_documents_exist() -> None:
    """This includes metrics, although their prefix is added at one place in the code."""
    words: set[str] = set()
    for one in tracked():
        if one.endswith(SOURCES) and not one.endswith(".md"):
            words.update(re.findall(r"\w+", (ROOT / one).read_text()))
            words.update(PurePosixPath(one).parts)
            words.add(PurePosixPath(one).stem)
    dead = []
    for document in documents():
        text = (ROOT / document).read_text()
        names = {span.removesuffix("()") for span in code_spans(document)}
        names = {one for one in names if re.fullmatch(r"[a-zA-Z_][\w.]*\w", one)}
        names |= set(re.findall(r"\bodradek_\w+", text))
        for name in names:
            for part in name.split("."):
                # prometheus_client adds the end `_total` to the name of a counter.
                short = [part.removeprefix(prefix).removesuffix("_total") for prefix in PREFIXES]
                if not part.isupper() and words.isdisjoint([part, *short]):
                    dead.append(f"{document}: {name}")
    assert not dead

"""Reads the instructions of the Containerfile by stage, and which files .dockerignore lets into the
build.
"""

from __future__ import annotations

import fnmatch
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.unit.kubernetes.rendered import K8S, ROOT

PATH = K8S / "Containerfile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction with its continued lines joined.

    `stage` counts from 0; it is -1 before the first FROM.
    """

    stage: int
    word: str
    text: str

    def words(self) -> list[str]:
        """Return the arguments of an instruction without flags."""
        return [word for word in self.text.split() if not word.startswith("--")]

    def listed(self) -> list[str]:
        """Return the words of an instruction's JSON form."""
        found: list[str] = json.loads(self.text)
        return found


def read(path: Path = PATH) -> list[Instruction]:
    """Return all instructions in order."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    stage, found = -1, []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        stage += word.upper() == "FROM"
        found.append(Instruction(stage=stage, word=word.upper(), text=rest.strip()))
    return found


def last_stage(path: Path = PATH) -> list[Instruction]:
    """Return the instructions of the last stage, which makes the image."""
    found = read(path)
    return [one for one in found if one.stage == found[-1].stage]


def is_ignored(path: str) -> bool:
    """Return whether .dockerignore excludes a path from the build: the last pattern that matches
    decides.
    """
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    ignored = False
    for line in filter(None, map(str.strip, patterns)):
        pattern = line.removeprefix("!")
        places = [PurePosixPath(path), *PurePosixPath(path).parents][:-1]
        if any(_matches(str(place), pattern) for place in places):
            ignored = not line.startswith("!")
    return ignored


def _matches(path: str, pattern: str) -> bool:
    """Match as Go's filepath.Match does, with ** for any number of folders."""
    if pattern.startswith("**/"):
        return fnmatch.fnmatchcase(PurePosixPath(path).name, pattern.removeprefix("**/"))
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))

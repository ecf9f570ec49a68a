"""Finds the packages of an extra (as in `pip install 'odradek[server]'`) that are not installed."""

from __future__ import annotations

import re

_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+).*;.*extra == ['"](?P<extra>[\w-]+)['"]""")
_ELSEWHERE = re.compile(r"sys_platform != ")


def missing_packages(extra: str) -> list[str]:
    """Return the names of the extra's packages that are not installed. The list is also empty if odradek itself is not
    installed.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        requirements = requires("odradek") or []
    except PackageNotFoundError:  # The code runs from a source tree that was never installed.
        return []
    matches = (_REQUIREMENT.match(line) for line in requirements if not _ELSEWHERE.search(line))
    return sorted(
        match["name"]
        for match in matches
        if match and match["extra"] == extra and not _is_installed(match["name"])
    )


def what_is_missing(what: str, extra: str) -> str | None:
    """Return a sentence that names the packages that `what` needs and how to install them; None if all are
    installed.
    """
    missing = missing_packages(extra)
    if not missing:
        return None
    named = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
    return f"{what} needs packages that are not installed ({named}): run pip install 'odradek[{extra}]'"


def _is_installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True

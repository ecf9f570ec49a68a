"""Reads CPU time and resident memory of other processes from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def cpu_s(pids: Iterable[int]) -> float:
    """Return the user and system seconds that these processes have used together so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_mib(pids: Iterable[int]) -> float:
    """Return the present resident memory of these processes together."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def machine_idle_s() -> float:
    """Return the seconds that all cores together were idle so far."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[4]) / os.sysconf("SC_CLK_TCK")

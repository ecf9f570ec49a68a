"""The results of the comparison with Kafka: one row for each target, and the table of all rows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

RATIO_MIN: Final = 1.0
WORST_RATIO_MIN: Final = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure with its target, both as text, and the figures of both sides."""

    what: str
    figure: str
    bar: str
    is_met: bool
    odradek: str = ""
    kafka: str = ""


def throughput_row(what: str, pairs: Sequence[tuple[float, float]]) -> Row:
    """Return a row for pairs of (Odradek's, Kafka's) records per second."""
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    median = statistics.median(ratios)
    return Row(
        what=what,
        figure=f"{median:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
        bar=f">= {RATIO_MIN}, no pair < {WORST_RATIO_MIN}",
        is_met=median >= RATIO_MIN and ratios[0] >= WORST_RATIO_MIN,
        odradek=f"{statistics.median(ours for ours, _ in pairs):,.0f}/s",
        kafka=f"{statistics.median(theirs for _, theirs in pairs):,.0f}/s",
    )


def ratio_row(
    what: str, pairs: Sequence[tuple[float, float]], *, ratio_max: float, unit: str
) -> Row:
    """Return a row for figures where less is better: the ratio of Odradek's median to Kafka's."""
    ours = statistics.median(one for one, _ in pairs)
    theirs = statistics.median(one for _, one in pairs)
    return Row(
        what=what,
        figure=f"{ours / theirs:.2f}",
        bar=f"<= {ratio_max}",
        is_met=ours / theirs <= ratio_max,
        odradek=f"{ours:.4g} {unit}",
        kafka=f"{theirs:.4g} {unit}",
    )


def cost_row(what: str, pairs: Sequence[tuple[float, float]], *, cpu_s_per_gb_max: float) -> Row:
    """Return a row for the brokers' CPU time.

    Only Odradek's median over the pairs is compared with the target; Kafka's is reported.
    """
    ours = statistics.median(one for one, _ in pairs)
    return Row(
        what=what,
        figure=f"{ours:.2f}",
        bar=f"<= {cpu_s_per_gb_max}",
        is_met=ours <= cpu_s_per_gb_max,
        odradek=f"{ours:.2f} s/GB",
        kafka=f"{statistics.median(one for _, one in pairs):.2f} s/GB",
    )


def as_json(row: Row) -> dict[str, Any]:
    """Return the row as an object for a JSON line."""
    return {
        "row": row.what,
        "figure": row.figure,
        "bar": row.bar,
        "is_met": row.is_met,
        "odradek": row.odradek,
        "kafka": row.kafka,
    }


def table(rows: Sequence[Row]) -> str:
    """Return all rows as an aligned table."""
    lines = [("what", "odradek", "kafka", "figure", "bar", "")]
    lines += [
        (row.what, row.odradek, row.kafka, row.figure, row.bar, "met" if row.is_met else "NOT MET")
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )

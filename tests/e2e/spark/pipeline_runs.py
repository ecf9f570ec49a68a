"""Runs a pipeline in the Spark session of the tests until it has read all present records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from odradek_pipelines.__main__ import load
from odradek_pipelines.pipeline import parse_settings

RUN_S_MAX = 300


def run_pipeline(
    spark: SparkSession, name: str, bootstrap: str, checkpoint: Path, *arguments: str
) -> list[Any]:
    """The progress of each batch; raises what the query failed with."""
    pipeline = load(name)
    place = ("--bootstrap", bootstrap, "--checkpoint", str(checkpoint))
    settings = parse_settings(pipeline, (*place, "--available-now", *arguments))
    assert pipeline.plan(settings)
    progress = []
    for query in pipeline.start(spark, settings):
        ended = query.awaitTermination(RUN_S_MAX)
        progress += query.recentProgress
        assert ended, f"{name} still runs"
    return progress


def dropped(progress: list[Any]) -> int:
    """numRowsDroppedByWatermark, over all batches."""
    return sum(o.numRowsDroppedByWatermark for p in progress for o in p.stateOperators)

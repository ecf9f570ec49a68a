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
    """Run a pipeline and return the progress of each batch; raises the error with which the query
    failed.
    """
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
    """Return the sum of numRowsDroppedByWatermark over all batches."""
    return sum(o.numRowsDroppedByWatermark for p in progress for o in p.stateOperators)

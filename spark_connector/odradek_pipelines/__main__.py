"""`python -m odradek_pipelines NAME ...` runs a pipeline. Without a name it lists all pipelines."""

from __future__ import annotations

import importlib
import sys
from typing import Final

from odradek_pipelines.pipeline import READS_FLIGHTS, Pipeline, parse_settings, run

PIPELINES: Final = {
    "delay-windows": "delay_windows",
    "aircraft-rotations": "aircraft_rotations",
    "parquet-archive": "parquet_archive",
    "flight-enrichment": "flight_enrichment",
    "delay-backfill": "delay_backfill",
    "dead-letters": "dead_letters",
    "format-adaptation": "format_adaptation",
    "files-to-topic": "files_to_topic",
    "topic-to-files": "topic_to_files",
}


def load(name: str) -> Pipeline:
    """Return the pipeline with this name. Raises KeyError if there is none."""
    module = importlib.import_module(f"odradek_pipelines.{PIPELINES[name]}")
    pipeline: Pipeline = module.PIPELINE
    return pipeline


def main(arguments: list[str]) -> int:
    """Run the pipeline that the arguments name, and return the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: odradek pipeline NAME [arguments]; NAME --help lists them\n")
        for name in PIPELINES:
            pipeline = load(name)
            print(f"  {name:20}{pipeline.summary}{' (*)' if pipeline.reads_flights else ''}")
        print(f"\n(*) {READS_FLIGHTS}")
        print(
            "\nExample: odradek pipeline files-to-topic --directory lines --to orders --available-now"
        )
        return 0
    name = arguments[0]
    if name not in PIPELINES:
        print(
            f"there is no pipeline {name!r}; the pipelines are {', '.join(PIPELINES)}",
            file=sys.stderr,
        )
        return 2
    pipeline = load(name)
    return run(pipeline, parse_settings(pipeline, arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

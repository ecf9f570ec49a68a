"""The demo's pipeline computes windows over a topic into which flights still stream; it is killed,
and writes each result once.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from odradek_demo.live_pipeline import LivePipeline
from tests.e2e.spark.flight_facts import Flight, delays
from tests.e2e.spark.short_jvm import SHORT_JVM
from tests.e2e.spark.topics import Output, Topics


async def test_the_live_table_is_the_one_computed_directly(
    topics: Topics, sample: list[Flight], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", SHORT_JVM)
    name, target = topics.new(), topics.new(partitions=2)
    values = [json.dumps(flight).encode() for flight in sample[::4]]
    middle = len(values) // 2
    pipeline = LivePipeline(topics.bootstrap, name, len(values), target=target)
    try:
        await asyncio.to_thread(topics.send, name, map(Output, values[:middle]))
        await pipeline.start()
        await asyncio.to_thread(topics.send, name, map(Output, values[middle:]))
        outcome = await pipeline.finish(values)
    finally:
        await pipeline.cancel()
    assert outcome.is_well, outcome
    assert not outcome.skipped_because
    assert (outcome.driver_kills, outcome.batches_run_again) == (1, 1)
    assert outcome.written >= outcome.windows
    assert outcome.windows == len(delays(sample[::4]))
    assert sum(flights for _, flights, _, _ in outcome.carriers) == sum(
        flight["arr_delay"] is not None for flight in sample[::4]
    )
    assert all(by_spark == direct for _, _, by_spark, direct in outcome.carriers)

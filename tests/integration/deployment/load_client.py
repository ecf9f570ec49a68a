"""Runs in a separate pod: it writes records with acks=all to a topic, and reports in JSON lines.

It reads commands from standard input. For `gap` it prints the longest time in seconds between two
acknowledgements of one partition since the last `gap`. The end of input ends the load; then it
reads all records back and prints what is wrong.
"""

from __future__ import annotations

import asyncio
import json
import sys

from odradek import Client, TlsOptions
from tests.e2e.faults.cluster_faults import PARTITIONS, new_topic, wait_for_full_isr
from tests.e2e.faults.workload import Workload, faults_of, read_all, under_load

CERTIFICATES = "/etc/odradek-tls"
RECORDS_AFTER = 100  # of each partition, before a gap is told: one that is open has ended by then


async def main(bootstrap: str, rate: int) -> None:
    tls = TlsOptions(
        ca=f"{CERTIFICATES}/ca.crt", cert=f"{CERTIFICATES}/tls.crt", key=f"{CERTIFICATES}/tls.key"
    )
    async with Client(bootstrap, tls=tls) as client:
        topic = await new_topic(client)
        await wait_for_full_isr(client, topic)
        async with under_load(client, topic, partitions=PARTITIONS, rate=rate) as load:
            _tell(topic=topic)
            await _obey(load)
        await wait_for_full_isr(client, topic)
        faults = faults_of(load.acknowledged, load.sent, await read_all(client, topic, PARTITIONS))
        _tell(
            sent=load.sent,
            acknowledged=len(load.acknowledged),
            failures=load.failures[:5],
            faults=faults[:5],
        )


async def _obey(load: Workload) -> None:
    while command := await asyncio.to_thread(sys.stdin.readline):
        assert command == "gap\n", command
        await load.progress(RECORDS_AFTER)
        _tell(gap_s=round(load.longest_gap_s, 3))
        load.begin_gap()


def _tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

"""`python -m tests.e2e.spark.fault_rounds MASTER ROUNDS DIRECTORY`: one query, a fault a round, every row once.

Three brokers, three replicas. In each round records are sent and read while a broker is killed, or stopped in
good order so that its leaderships move, and started again. At the end the rows are compared with a direct
read, per offset.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from odradek.embedded import ClusterPlan, EmbeddedCluster
from pyspark_odradek import session
from tests.e2e.spark.topics import Output, Topics

RECORDS_A_ROUND = 20_000
PARTITIONS = 4
PAUSE_S_MAX = 1.5


def main(master: str, rounds: int, directory: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    dice = random.Random(seed)
    with EmbeddedCluster(ClusterPlan(brokers=3, controllers=3)) as cluster:
        cluster.start()
        cluster.wait_ready()
        topics = Topics(cluster.bootstrap)
        topics.create("faults", partitions=PARTITIONS, replicas=3, min_insync_replicas="2")
        spark = session(
            "faults",
            spark__master=master,
            spark__ui__enabled="false",
            spark__sql__shuffle__partitions="2",
        )
        spark.sparkContext.setLogLevel("ERROR")
        options = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "subscribe": "faults",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(RECORDS_A_ROUND // 4),
        }
        frame = spark.readStream.format("odradek").options(**options).load()
        stream = frame.selectExpr("partition", "offset", "crc32(value) crc").writeStream
        query = (
            stream.format("parquet")
            .option("path", str(directory / "rows"))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        for number in range(rounds):
            victim = cluster.brokers[dice.choice(sorted(cluster.brokers))]
            pause_s, is_kill = dice.random() * PAUSE_S_MAX, dice.random() < 0.7

            def fault(pause_s: float = pause_s, is_kill: bool = is_kill, victim=victim) -> None:  # type: ignore[no-untyped-def]
                time.sleep(pause_s)
                if is_kill:
                    victim.kill()
                else:
                    victim.terminate(20)
                victim.start()
                victim.wait_ready(60)

            striking = threading.Thread(target=fault)
            striking.start()
            value = dice.randbytes(100)
            topics.send("faults", [Output(b"%d" % i + value) for i in range(RECORDS_A_ROUND)])
            query.processAllAvailable()
            striking.join()
            what = "killed" if is_kill else "stopped"
            print(f"round {number}: {victim.name} {what} after {pause_s:.2f} s", flush=True)
        query.processAllAvailable()
        query.stop()
        found = Counter(
            (row.partition, row.offset)
            for row in spark.read.parquet(str(directory / "rows")).toLocalIterator()
        )
        direct = {(r.partition, r.offset) for r in topics.read("faults")}
        spark.stop()
    missing, more = direct - found.keys(), found.keys() - direct
    doubled = sum(count - 1 for count in found.values())
    print(f"{len(direct)} rows, {len(missing)} missing, {len(more)} made up, {doubled} twice")
    if missing or more or doubled:
        raise SystemExit(1)
    print(f"{rounds} rounds, every row once")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))

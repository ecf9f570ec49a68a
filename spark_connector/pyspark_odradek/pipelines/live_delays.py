"""`python -m pyspark_odradek.pipelines.live_delays BOOTSTRAP TOPIC RECORDS`: what `odradek demo` runs.

Prints one line of JSON, `run_live`'s answer, when so many records were read; status 3 and a sentence when Spark is
missing.
"""

from __future__ import annotations

import json
import sys

from pyspark_odradek.pipelines.delay_windows import run_live
from pyspark_odradek.spark_session import SparkUnavailable, missing

EXIT_UNAVAILABLE = 3


def main() -> int:
    """Run until the records are read."""
    bootstrap, topic, records = sys.argv[1:4]
    reason = missing()
    if reason is not None:
        print(reason, file=sys.stderr)
        return EXIT_UNAVAILABLE
    wanted = int(records)
    try:
        table = run_live(bootstrap, topic, is_complete=lambda count: count >= wanted)
    except SparkUnavailable as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    print(json.dumps(table), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

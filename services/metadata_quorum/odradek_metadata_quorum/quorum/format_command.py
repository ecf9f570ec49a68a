"""What `odradek storage format` runs: `... DIR CLUSTER_ID NODE_ID VOTER,...` as a process."""

from __future__ import annotations

import sys
from pathlib import Path

from odradek_metadata_quorum.quorum.errors import QuorumError
from odradek_metadata_quorum.quorum.storage_format import format_storage


def main() -> int:
    """Format; 1 with one line on stderr when the directory belongs to somebody else."""
    data_dir, cluster_id, node_id, voters = sys.argv[1:5]
    try:
        format_storage(
            Path(data_dir),
            cluster_id=cluster_id,
            node_id=int(node_id),
            voters=[int(voter) for voter in voters.split(",")],
        )
    except OSError as error:
        print(f"odradek: {data_dir}: {error.strerror or error}", file=sys.stderr)
        return 1
    except (QuorumError, ValueError) as error:
        print(f"odradek: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
